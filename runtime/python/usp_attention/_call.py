# SPDX-License-Identifier: Apache-2.0
"""One attention call on this rank: checked tensors in, the library's functions run on them."""

from __future__ import annotations

import ctypes

from . import _structs as s
from ._library import import_torch, lib
from ._plans import Plan, Shape, Terms
from .batch import BatchState, state_of
from .errors import UsageError

torch = import_torch()

_DTYPE_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
_DTYPE_NUMBERS = {dtype: s.DTYPES.index(word) for dtype, word in _DTYPE_WORDS.items()}
_FP64 = s.DTYPES.index("fp64")


class Call:
    """What forward and backward of one call share: mesh, batch, plan and layer, of tensors that were checked."""

    __slots__ = ("mesh", "terms", "chunk", "layer", "batch", "plan", "shape")

    def __init__(self, q, k, v, sinks, batch_id, terms: Terms, chunk: int | None, layer: int):
        if batch_id.device.type != "cpu":
            raise UsageError(f"batch_id lies on {batch_id.device}; it is a CPU tensor: pass Batch.batch_id as it is")
        whole = state_of(int(batch_id))
        self.mesh, self.terms, self.chunk, self.layer = whole.mesh, terms, chunk, layer
        self.batch: BatchState = whole if chunk is None else whole.parts(chunk)
        self.shape = _shape_of(q, k, v, sinks, whole)
        self.plan: Plan = self.batch.plan(terms, self.shape)

    def forward(self, q, k, v, sinks, save: bool):
        """(out, lse, saved): saved is None unless `save`, as lse is unless the terms return it."""
        self.mesh.compare(self)
        batch, rows, heads, _ = q.shape
        out = q.new_empty((batch, rows, heads, v.shape[-1]))
        lse = q.new_empty((batch, rows, heads), dtype=sum_dtype(q)) if self.terms.return_lse else None
        saved = q.new_empty(self.batch.sizes(self.plan).saved_bytes, dtype=torch.uint8) if save else None
        self.run(lib().usp_attend, Inputs(q, k, v, sinks), self.struct(saved), view(out),
                 None if lse is None else view(lse.unsqueeze(-1)))
        return out, lse, saved

    def same_as(self, other: "Call") -> bool:
        """Whether both compute the same of equal tensors."""
        return (self.batch is other.batch and self.terms == other.terms and self.shape == other.shape and
                self.layer == other.layer)

    @property
    def backward_reads(self) -> tuple[bool, bool, bool, bool]:
        """Whether backward reads q, k, v and out; where it does not, `saved` holds what it reads instead."""
        return self.batch.sizes(self.plan).reads

    def shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Of q, k, v and out."""
        shape, rows = self.shape, self.batch.rows
        batch, heads, kv_heads, dim, dim_v, _ = shape
        return ((batch, rows, heads, dim), (batch, rows, kv_heads, dim), (batch, rows, kv_heads, dim_v),
                (batch, rows, heads, dim_v))

    def backward(self, d_out, q, k, v, out, sinks, saved):
        """(dq, dk, dv, d_sinks), the last one None without sinks. q, k, v and out may be None where backward does not
        read them."""
        if d_out.stride(-1) != 1 and d_out.shape[-1] != 1:
            d_out = d_out.contiguous()
        dq, dk, dv = (d_out.new_empty(shape) for shape in self.shapes()[:3])
        gradients = s.AttentionGradients(dq=view(dq), dk=view(dk), dv=view(dv), d_sink_dtype=_FP64)
        d_sinks = None
        if sinks is not None:
            d_sinks = d_out.new_zeros(sinks.shape, dtype=sum_dtype(d_out))
            gradients.d_sink, gradients.d_sink_dtype = d_sinks.data_ptr(), _dtype_number(d_sinks, "d_sinks")
        out_view = self.nowhere if out is None else view(out.contiguous())
        self.run(lib().usp_attend_grad, Inputs(q, k, v, sinks, self.nowhere), self.struct(saved), out_view, view(d_out),
                 gradients)
        return dq, dk, dv, None if sinks is None else d_sinks.to(sinks.dtype)

    @property
    def nowhere(self) -> s.Tensor:
        """A tensor of this call that is not read: elements that share one place."""
        return s.Tensor(_NOWHERE, s.DTYPES.index(self.shape.dtype), 0, 0, 0)

    def struct(self, saved) -> s.Call:
        """Of a call with this saved state, or with none to follow."""
        made = s.Call(layer=self.layer, untracked=1)
        if saved is not None:
            made.saved, made.saved_bytes = _address(saved), saved.numel()
        if self.mesh.device.type == "cuda":
            made.stream = torch.cuda.current_stream(self.mesh.device).cuda_stream or s.DEFAULT_STREAM
        return made

    def run(self, function, inputs: "Inputs", struct: s.Call, *arguments) -> None:
        byref = ctypes.byref
        self.mesh.call(function, self.mesh.engine, self.plan.handle, self.batch.handle, byref(inputs.struct),
                       *(byref(argument) if argument is not None else None for argument in arguments), byref(struct))


class Inputs:
    """usp_attention_inputs, and the tensors that it points into."""

    __slots__ = ("struct", "_kept")

    def __init__(self, q, k, v, sinks, absent: s.Tensor | None = None):
        """absent: the value that replaces None."""
        kept = [x if x is None or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (q, k, v)]
        q_view, k_view, v_view = (absent if x is None else view(x) for x in kept)
        self.struct = s.AttentionInputs(q=q_view, k=k_view, v=v_view, sink_dtype=_FP64)
        if sinks is not None:
            kept.append(sinks.contiguous())
            self.struct.sink, self.struct.sink_dtype = kept[-1].data_ptr(), _dtype_number(sinks, "sinks")
        self._kept = kept


def view(tensor) -> s.Tensor:
    """[B, n, H, D] as C sees it; a tensor without elements still has an address."""
    batch, row, head, _ = tensor.stride()
    return s.Tensor(_address(tensor), _DTYPE_NUMBERS[tensor.dtype], batch, row, head)


# The address of what has no bytes, and of what is not read: on the library's boundary, with room for one head.
_nowhere = torch.empty(256 + 8 * 1024, dtype=torch.uint8)
_NOWHERE = -(-_nowhere.data_ptr() // 256) * 256


def _address(tensor) -> int:
    return tensor.data_ptr() or _NOWHERE


def sum_dtype(q):
    """Of sums: the log-sum-exp and gradients of sinks."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _dtype_number(tensor, name: str) -> int:
    number = _DTYPE_NUMBERS.get(tensor.dtype)
    if number is None:
        raise UsageError(f"{name} is {tensor.dtype}; attention takes bfloat16, float16, float32 and float64")
    return number


def _shape_of(q, k, v, sinks, batch: BatchState) -> Shape:
    device, rows = batch.mesh.device, batch.rows
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise UsageError(f"{name} has the shape {tuple(tensor.shape)}; it is [batch, rows, heads, head_dim]")
        if tensor.device != device:
            raise UsageError(f"{name} lies on {tensor.device}, the mesh on {device}; move it there")
        if tensor.shape[1] != rows:
            hint = (f"; it looks like [batch, heads, rows, head_dim]: pass {name}.transpose(1, 2)"
                    if tensor.shape[2] == rows else "")
            raise UsageError(f"{name} has {tensor.shape[1]} rows, this rank's part of the batch {rows} "
                             f"(Batch.local_tokens){hint}")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; attention takes one type: cast them, or use "
                         "autocast")
    (batches, _, heads, dim), (k_batches, _, kv_heads, k_dim) = q.shape, k.shape
    v_batches, _, v_heads, v_dim = v.shape
    if not (batches == k_batches == v_batches and kv_heads == v_heads and dim == k_dim):
        raise UsageError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not go together: one batch, "
                         "k and v of the same heads, q and k of the same head_dim")
    if kv_heads == 0 or heads % kv_heads != 0:
        raise UsageError(f"{kv_heads} KV heads do not divide {heads} query heads")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise UsageError(f"sinks has the shape {tuple(sinks.shape)}; it holds a logit for each of all {heads} "
                         "query heads")
    if sinks is not None and sinks.device != device:
        raise UsageError(f"sinks lies on {sinks.device}, the mesh on {device}; move it there")
    _dtype_number(q, "q")
    return Shape(batches, heads, kv_heads, dim, v_dim, _DTYPE_WORDS[q.dtype])
