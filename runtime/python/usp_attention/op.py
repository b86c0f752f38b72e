# SPDX-License-Identifier: Apache-2.0
"""Attention over a mesh as operators of torch: usp::attend and its backward usp::attend_grad.

An operator holds no state: the batch travels as a tensor of its number, what backward needs as the tensor
`saved`. So recomputation, accumulation and batches in flight need nothing special.
"""

from __future__ import annotations

import ctypes

from . import _structs as s
from ._library import import_torch, lib
from ._plans import Plan, Shape, Terms, check_terms
from .batch import Batch, BatchState, entered_batch, state_of
from .errors import UsageError

torch = import_torch()

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor as _DTENSOR
else:
    _DTENSOR = ()

_DTYPE_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
_DTYPE_NUMBERS = {dtype: s.DTYPES.index(word) for dtype, word in _DTYPE_WORDS.items()}
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
    terms = Terms(causal, window, scale, softcap, dropout, sinks is not None, return_lse)
    check_terms(terms)
    out, lse, _ = torch.ops.usp.attend(q, k, v, sinks, batch_id, rules_of(terms, chunk, layer, save))
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
        raise UsageError(f"{name} is {type(tensor).__name__}; attention takes tensors of torch")
    if isinstance(tensor, _DTENSOR):
        raise UsageError(f"{name} is a DTensor; attention takes this rank's rows: pass {name}.to_local()")
    if tensor.device != q.device or tensor.device.type == "meta":
        raise UsageError(f"{name} lies on {tensor.device}, q on {q.device}; move them to the mesh's device")


# ---- one call on this rank --------------------------------------------------------------------------------------


class _Call:
    """Batch, plan and structs of one call."""

    def __init__(self, q, k, v, sinks, batch_id, rules):
        if batch_id.device.type != "cpu":
            raise UsageError(f"batch_id lies on {batch_id.device}; it is a CPU tensor: pass Batch.batch_id as it is")
        whole = state_of(int(batch_id))
        self.mesh = whole.mesh
        self.terms, chunk, self.layer = _terms(rules, sinks is not None)
        self.batch: BatchState = whole if chunk is None else whole.parts(chunk)
        self.shape = _shape_of(q, k, v, sinks, whole)
        self.plan: Plan = self.batch.plan(self.terms, self.shape)
        self.tensors = [x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (q, k, v)]
        self.inputs = s.AttentionInputs()
        self.inputs.q, self.inputs.k, self.inputs.v = map(_view, self.tensors)
        self.inputs.sink_dtype = s.DTYPES.index("fp64")
        if sinks is not None:
            self.sinks = sinks.contiguous()
            self.inputs.sink = self.sinks.data_ptr()
            self.inputs.sink_dtype = _dtype_number(sinks, "sinks")
        self.struct = s.Call(layer=self.layer, untracked=1)
        if self.mesh.device.type == "cuda":
            self.struct.stream = torch.cuda.current_stream(self.mesh.device).cuda_stream or s.DEFAULT_STREAM

    def run(self, function, *arguments) -> None:
        self.mesh.call(function, self.mesh.engine, self.plan.handle, self.batch.handle, ctypes.byref(self.inputs),
                       *(ctypes.byref(argument) if argument is not None else None for argument in arguments),
                       ctypes.byref(self.struct))


def _attend(q, k, v, sinks, batch_id, rules):
    call = _Call(q, k, v, sinks, batch_id, rules)
    return_lse, save = call.terms.return_lse, _saves(rules)
    call.mesh.compare(batch=call.batch.ordinal, layer=call.layer, rules=call.plan.digest)
    batch, rows, heads, _ = q.shape
    out = q.new_empty((batch, rows, heads, v.shape[-1]))
    lse = q.new_empty((batch, rows, heads) if return_lse else (0,), dtype=_sum_dtype(q))
    saved = q.new_empty(call.batch.sizes(call.plan).saved_bytes if save else 0, dtype=torch.uint8)
    if save:
        call.struct.saved, call.struct.saved_bytes = _address(saved), saved.numel()
    call.run(lib().usp_attend, _view(out), _view(lse.unsqueeze(-1)) if return_lse else None)
    return out, lse, saved


def _attend_grad(d_out, q, k, v, out, sinks, saved, batch_id, rules):
    call = _Call(q, k, v, sinks, batch_id, rules)
    call.struct.saved, call.struct.saved_bytes = _address(saved), saved.numel()
    if d_out.stride(-1) != 1 and d_out.shape[-1] != 1:
        d_out = d_out.contiguous()
    out = out.contiguous()
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    d_sinks = q.new_zeros((0,) if sinks is None else sinks.shape, dtype=_sum_dtype(q))
    gradients = s.AttentionGradients(dq=_view(dq), dk=_view(dk), dv=_view(dv), d_sink=None,
                                     d_sink_dtype=_dtype_number(d_sinks, "d_sinks"))
    if sinks is not None:
        gradients.d_sink = d_sinks.data_ptr()
    call.run(lib().usp_attend_grad, _view(out), _view(d_out), gradients)
    return dq, dk, dv, d_sinks if sinks is None else d_sinks.to(sinks.dtype)


def _view(tensor) -> s.Tensor:
    """[B, n, H, D] as C sees it; a tensor without elements still has an address."""
    batch, row, head, _ = tensor.stride()
    return s.Tensor(_address(tensor), _DTYPE_NUMBERS[tensor.dtype], batch, row, head)


_nowhere = torch.empty(512, dtype=torch.uint8)
_NOWHERE = -(-_nowhere.data_ptr() // 256) * 256  # on the boundary that the library asks of what has no bytes, too


def _address(tensor) -> int:
    return tensor.data_ptr() or _NOWHERE


def _sum_dtype(q):
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _dtype_number(tensor, name: str) -> int:
    number = _DTYPE_NUMBERS.get(tensor.dtype)
    if number is None:
        raise UsageError(f"{name} is {tensor.dtype}; attention takes bfloat16, float16, float32 and float64")
    return number


def _shape_of(q, k, v, sinks, batch: BatchState) -> Shape:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise UsageError(f"{name} has the shape {tuple(tensor.shape)}; it is [batch, rows, heads, head_dim]")
        if tensor.device != batch.mesh.device:
            raise UsageError(f"{name} lies on {tensor.device}, the mesh on {batch.mesh.device}; move it there")
        if tensor.shape[1] != batch.rows:
            hint = (f"; it looks like [batch, heads, rows, head_dim]: pass {name}.transpose(1, 2)"
                    if tensor.shape[2] == batch.rows else "")
            raise UsageError(f"{name} has {tensor.shape[1]} rows, this rank's part of the batch {batch.rows} "
                             f"(Batch.local_tokens){hint}")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; attention takes one type: cast them, or use "
                         "autocast")
    if not (q.shape[0] == k.shape[0] == v.shape[0] and k.shape[2] == v.shape[2] and q.shape[3] == k.shape[3]):
        raise UsageError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not go together: one batch, "
                         "k and v of the same heads, q and k of the same head_dim")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] != 0:
        raise UsageError(f"{k.shape[2]} KV heads do not divide {q.shape[2]} query heads")
    if sinks is not None and tuple(sinks.shape) != (q.shape[2],):
        raise UsageError(f"sinks has the shape {tuple(sinks.shape)}; it holds a logit for each of all {q.shape[2]} "
                         "query heads")
    if sinks is not None and sinks.device != batch.mesh.device:
        raise UsageError(f"sinks lies on {sinks.device}, the mesh on {batch.mesh.device}; move it there")
    _dtype_number(q, "q")
    return Shape(q.shape[0], q.shape[2], k.shape[2], q.shape[3], v.shape[3], _DTYPE_WORDS[q.dtype])


# ---- what torch must know of it ---------------------------------------------------------------------------------


def _attend_fake(q, k, v, sinks, batch_id, rules):
    batch, rows, heads, _ = q.shape
    size = torch.library.get_ctx().new_dynamic_size() if _saves(rules) else 0
    return (q.new_empty((batch, rows, heads, v.shape[-1])),
            q.new_empty((batch, rows, heads) if _returns_lse(rules) else (0,), dtype=_sum_dtype(q)),
            q.new_empty(size, dtype=torch.uint8))


def _attend_grad_fake(d_out, q, k, v, out, sinks, saved, batch_id, rules):
    d_sinks = q.new_empty((0,), dtype=_sum_dtype(q)) if sinks is None else sinks.new_empty(sinks.shape)
    return *(x.new_empty(x.shape) for x in (q, k, v)), d_sinks


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, sinks, batch_id, rules = inputs
    out, lse, saved = output
    ctx.mark_non_differentiable(lse, saved)
    ctx.set_materialize_grads(False)
    ctx.rules, ctx.has_sinks = rules, sinks is not None
    ctx.save_for_backward(q, k, v, out, saved, batch_id, *([] if sinks is None else [sinks]))


def _backward(ctx, d_out, _d_lse, _d_saved):
    nothing = (None,) * 2
    if d_out is None:
        return None, None, None, None, *nothing
    if not _saves(ctx.rules):
        raise UsageError("attention was run without state for backward; run it where gradients are enabled")
    q, k, v, out, saved, batch_id, *rest = ctx.saved_tensors
    sinks = rest[0] if ctx.has_sinks else None
    dq, dk, dv, d_sinks = torch.ops.usp.attend_grad(d_out, q, k, v, out, sinks, saved, batch_id, ctx.rules)
    return dq, dk, dv, d_sinks if ctx.has_sinks else None, *nothing


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
