# SPDX-License-Identifier: Apache-2.0
"""Attention over a mesh as operators of torch: usp::attend and its backward usp::attend_grad.

An operator holds no state: the batch travels as a tensor of its number, what backward needs as the tensor
`saved`. So recomputation, accumulation and batches in flight need nothing special.
"""

from __future__ import annotations

from . import _check
from ._call import Call, sum_dtype
from ._kept import kept_calls
from ._library import import_torch
from ._plans import Terms, checked_terms
from .batch import Batch, entered_batch
from .errors import UsageError

torch = import_torch()
from torch.autograd import forward_ad  # noqa: E402: after import_torch

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor as _DTENSOR
else:
    _DTENSOR = ()

# rules: see _rules. One list, since torch's Python side walks the schema's arguments in quadratic time at each call.
_RULES = "Tensor batch_id, float[] rules"
_TAGS = (torch.Tag.cudagraph_unsafe, torch.Tag.needs_exact_strides)

_library = torch.library.Library("usp", "DEF")
_library.define(f"attend(Tensor q, Tensor k, Tensor v, Tensor? sinks, {_RULES})"
                " -> (Tensor out, Tensor lse, Tensor saved)", tags=_TAGS)
_library.define(f"attend_grad(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor? sinks, Tensor saved, "
                f"{_RULES}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_sinks)", tags=_TAGS)


def attention(q, k, v, batch: Batch | None = None, *, causal: bool = True, window: int | None = None,
              scale: float | None = None, softcap: float | None = None, sinks=None, dropout: float = 0.0,
              layer: int = 0, return_lse: bool = False):
    """Exact attention over the whole sequence of a mesh.

    q [B, n, Hq, Dqk], k [B, n, Hkv, Dqk], v [B, n, Hkv, Dv]: this rank's rows (Batch.local_tokens) of all heads,
    any strides but the last. KV heads are never repeated. Returns out [B, n, Hq, Dv] in q's type, and with
    return_lse the log-sum-exp [B, n, Hq] (fp32; fp64 for fp64), which is not differentiable. The B rows share
    the batch's documents.

    batch: of Mesh.batch; None: the one entered (not in compiled code). causal: within each document; False: each
    document attends fully. window: a query sees the `window` latest tokens, itself included. scale: of q.k (None:
    1 / sqrt(Dqk)); softcap: cap * tanh(logit / cap); sinks [Hq]: a logit per query head that joins the softmax,
    differentiable, its gradient a partial sum as every parameter's; dropout: probability, the same pairs on every
    mesh and in recomputation; layer: number of the layer, for dropout and for comparing the order of calls.

    Collective: all ranks call in the same order. Under autocast fp32 inputs are cast to its type; other mixed
    types raise. Raises UsageError, DisagreementError, CommunicationError.
    """
    if batch is None:
        batch = entered_batch()
    elif not isinstance(batch, Batch):
        _check.instance("batch", batch, Batch, "what Mesh.batch returns")
    return attend(q, k, v, batch.batch_id, causal=causal, window=window, scale=scale, softcap=softcap, sinks=sinks,
                  dropout=dropout, layer=layer, return_lse=return_lse)


def attend(q, k, v, batch_id, *, causal: bool, window: int | None, scale: float | None, softcap: float | None,
           sinks, dropout: float, layer: int, return_lse: bool = False, chunk: int | None = None):
    """`attention` by the batch's number. chunk: documents are cut again at its multiples from each sample row."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("sinks", sinks)):
        _refuse_foreign(name, tensor, q)
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(dtype) if x.dtype == torch.float32 else x for x in (q, k, v))
    save = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                        (sinks is not None and sinks.requires_grad))
    terms = checked_terms(causal, window, scale, softcap, dropout, sinks is not None, return_lse)
    layer = _check.integer("layer", layer, 0)
    if not operators_are_watched(q, k, v, sinks):
        _refuse_tangents(q, k, v, sinks)
        call = Call(q, k, v, sinks, batch_id, terms, chunk, layer)
        if save:
            return UspAttention.apply(q, k, v, sinks, batch_id, call)
        out, lse, _ = call.forward(q, k, v, sinks, False)
        return (out, lse) if return_lse else out
    rules = rules_of(terms, chunk, layer, save)
    run = torch.ops.usp.attend if torch.compiler.is_compiling() else _attend_or_say
    out, lse, _ = run(q, k, v, sinks, batch_id, rules)
    return (out, lse.detach()) if return_lse else out


def rules_of(terms: Terms, chunk: int | None = None, layer: int = 0, save: bool = False) -> list[float]:
    """What an operator is told beside tensors, 0 for none: causal, window, scale, softcap, dropout, return_lse, chunk,
    layer, and whether a backward may follow."""
    return [float(terms.causal), float(terms.window or 0), terms.scale or 0.0, terms.softcap or 0.0, terms.dropout,
            float(terms.return_lse), float(chunk or 0), float(layer), float(save)]


def _terms(rules, sink: bool) -> tuple[Terms, int | None, int]:
    causal, window, scale, softcap, dropout, return_lse, chunk, layer, _ = rules
    return (Terms(causal != 0, int(window) or None, scale or None, softcap or None, dropout, sink, return_lse != 0),
            int(chunk) or None, int(layer))


def _returns_lse(rules) -> bool:
    return rules[5] != 0


def _saves(rules) -> bool:
    return rules[8] != 0


def _refuse_foreign(name: str, tensor, q) -> None:
    if tensor is None and name == "sinks":
        return
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{name} is {_check.shown(tensor)}; attention takes tensors of torch: torch.as_tensor({name})")
    if isinstance(tensor, _DTENSOR):
        raise UsageError(f"{name} is a DTensor; attention takes this rank's rows: pass {name}.to_local()")
    if tensor.device != q.device or tensor.device.type == "meta":
        raise UsageError(f"{name} lies on {tensor.device}, q on {q.device}; move them to the mesh's device")


# ---- in plain eager code ----------------------------------------------------------------------------------------
#
# torch's Python side of an operator with an autograd formula costs 50 us a call more than a Function of its own, so
# the operators run where something watches them: compiled code, fake tensors, dispatch modes (selective
# checkpointing), transforms. The questions are torch's own and not public: where a version lacks one, operators run.

_MODES = getattr(torch._C, "_len_torch_dispatch_stack", None)
_TRANSFORMS = getattr(torch._C, "_are_functorch_transforms_active", None)
_TRACING = getattr(torch._C, "_get_tracing_state", None)
_KNOWS = _MODES is not None and _TRANSFORMS is not None and _TRACING is not None
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def operators_are_watched(*tensors) -> bool:
    """Whether this code is compiled or traced, or runs in a dispatch mode or transform."""
    if torch.compiler.is_compiling() or not _KNOWS:
        return True
    return _MODES() > 0 or _TRANSFORMS() or _TRACING() is not None or not {*map(type, tensors)} <= _PLAIN


class UspAttention(torch.autograd.Function):
    """usp::attend and its formula, without the operator. `call` is checked, and holds the plan for backward too. What
    backward needs is kept by save_for_backward alone, so that hooks on saved tensors see all of it."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, batch_id, call: Call):
        kept = kept_calls()
        out, lse, saved = (call.forward(q, k, v, sinks, True) if kept is None else kept.results(call, q, k, v, sinks))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(x if read else None for x, read in zip((q, k, v, out), call.backward_reads)), saved,
                              batch_id, sinks)
        ctx.call = call
        if lse is None:
            return out
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, _d_lse=None):
        if d_out is None:
            return (None,) * 6
        q, k, v, out, saved, batch_id, sinks = ctx.saved_tensors
        call: Call = ctx.call
        if torch.is_grad_enabled() or operators_are_watched(d_out, q, k, v, out, sinks):
            rules = rules_of(call.terms, call.chunk, call.layer, True)
            q, k, v, out = (d_out.new_empty(()).expand(shape) if x is None else x
                            for x, shape in zip((q, k, v, out), call.shapes()))
            dq, dk, dv, d_sinks = torch.ops.usp.attend_grad(d_out, q, k, v, out, sinks, saved, batch_id, rules)
            d_sinks = None if sinks is None else d_sinks
        else:
            dq, dk, dv, d_sinks = call.backward(d_out, q, k, v, out, sinks, saved)
        return dq, dk, dv, d_sinks, None, None


def _refuse_tangents(*tensors) -> None:
    if getattr(forward_ad, "_current_level", 0) < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UsageError("attention has no forward-mode derivatives, and q, k, v or sinks carry a tangent; use backward")


def _attend_or_say(*arguments):
    """The operator, where something watches it."""
    try:
        return torch.ops.usp.attend(*arguments)
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        raise UsageError("attention cannot be differentiated by torch.func (grad, jvp, jacrev): use backward() or "
                         "torch.autograd.grad") from error


# ---- the operators ----------------------------------------------------------------------------------------------


def _attend(q, k, v, sinks, batch_id, rules):
    call = Call(q, k, v, sinks, batch_id, *_terms(rules, sinks is not None))
    out, lse, saved = call.forward(q, k, v, sinks, _saves(rules))
    return (out, q.new_empty((0,), dtype=sum_dtype(q)) if lse is None else lse,
            q.new_empty((0,), dtype=torch.uint8) if saved is None else saved)


def _attend_grad(d_out, q, k, v, out, sinks, saved, batch_id, rules):
    call = Call(q, k, v, sinks, batch_id, *_terms(rules, sinks is not None))
    *gradients, d_sinks = call.backward(d_out, q, k, v, out, sinks, saved)
    return *gradients, q.new_empty((0,), dtype=sum_dtype(q)) if d_sinks is None else d_sinks


def _attend_fake(q, k, v, sinks, batch_id, rules):
    batch, rows, heads, _ = q.shape
    size = torch.library.get_ctx().new_dynamic_size() if _saves(rules) else 0
    return (q.new_empty((batch, rows, heads, v.shape[-1])),
            q.new_empty((batch, rows, heads) if _returns_lse(rules) else (0,), dtype=sum_dtype(q)),
            q.new_empty(size, dtype=torch.uint8))


def _attend_grad_fake(d_out, q, k, v, out, sinks, saved, batch_id, rules):
    d_sinks = q.new_empty((0,), dtype=sum_dtype(q)) if sinks is None else sinks.new_empty(sinks.shape)
    return *(x.new_empty(x.shape) for x in (q, k, v)), d_sinks


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, sinks, batch_id, rules = inputs
    out, lse, saved = output
    ctx.mark_non_differentiable(lse, saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, saved, batch_id, sinks)
    ctx.rules = rules


def _backward(ctx, d_out, _d_lse, _d_saved):
    if d_out is None:
        return (None,) * 6
    if not _saves(ctx.rules):
        raise UsageError("attention was run without state for backward; run it where gradients are enabled")
    q, k, v, out, saved, batch_id, sinks = ctx.saved_tensors
    dq, dk, dv, d_sinks = torch.ops.usp.attend_grad(d_out, q, k, v, out, sinks, saved, batch_id, ctx.rules)
    return dq, dk, dv, None if sinks is None else d_sinks, None, None


def _no_second_order(ctx, *gradients):
    raise UsageError("attention has no second-order gradients: backward of its backward is not implemented; leave "
                     "create_graph off")


def _no_vmap(info, in_dims, *arguments):
    raise UsageError("attention cannot be mapped by vmap: it is collective; give the mapped axis as the batch axis")


for _name, _kernel, _fake in (("attend", _attend, _attend_fake), ("attend_grad", _attend_grad, _attend_grad_fake)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
    torch.library.register_fake(f"usp::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"usp::{_name}", _no_vmap, lib=_library)
torch.library.register_autograd("usp::attend", _backward, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("usp::attend_grad", _no_second_order, setup_context=lambda ctx, inputs, output: None,
                                lib=_library)
