# SPDX-License-Identifier: Apache-2.0
"""The structs and enumerators of usp.h, field for field. tests/python compares their offsets with a C program."""

from __future__ import annotations

import array
import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p

from . import _check
from .errors import InvalidInput

HEADER_VERSION = (0, 1)
"""Major and minor version of the usp.h that this file describes."""

OK, INTERNAL, USAGE, INVALID_INPUT, INFEASIBLE, ENVIRONMENT, VERIFICATION = range(7)
DTYPES = ("bf16", "fp16", "fp32", "fp64")
METHODS = ("ring", "ring_direct", "all_gather_kv", "double_ring")
LAYOUTS = ("contiguous", "zigzag", "striped", "balanced")
DKV_RETURNS = ("circulate", "direct", "cycle")
BACKENDS = ("cpu", "mma", "cudnn", "hopper", "hopper_cudnn")
TRANSPORTS = ("copy_engine", "nccl")
FORWARD, BACKWARD = 0, 1
FAULT_COMMUNICATION, FAULT_DISAGREEMENT = 0, 1
UNBOUNDED = 1 << 40
INT32_MAX = 2**31 - 1
DEFAULT_STREAM = 1
"""cudaStreamLegacy: torch's default stream by a name of its own, since null is the engine's stream."""

RankFunction = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p)
Interrupted = ctypes.CFUNCTYPE(c_int32, c_void_p)
OnListening = ctypes.CFUNCTYPE(None, c_void_p, c_int32)
Allocate = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_int64, c_int32, c_void_p)
Release = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int32, c_void_p)
ReleaseUnused = ctypes.CFUNCTYPE(None, c_void_p)


class Struct(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(self), **fields)


class Fault(Struct):
    _fields_ = [("size", c_size_t), ("kind", c_int32), ("tick", c_int32), ("rank", c_int32), ("rank_count", c_int32),
                ("ranks", POINTER(c_int32)), ("operation", c_char_p), ("field", c_char_p)]


class AttentionDesc(Struct):
    _fields_ = [("size", c_size_t), ("batch", c_int64), ("q_tokens", c_int64), ("kv_tokens", c_int64),
                ("query_heads", c_int32), ("kv_heads", c_int32), ("head_dim_qk", c_int32), ("head_dim_v", c_int32),
                ("dtype", c_int32), ("ring", c_int32), ("ring_outer", c_int32), ("ulysses", c_int32),
                ("method", c_int32), ("layout", c_int32), ("dkv_return", c_int32), ("head_chunks", c_int32),
                ("diff_min", c_int64), ("diff_max", c_int64), ("prune", c_int32), ("sink", c_int32),
                ("return_lse", c_int32), ("alibi", c_int32), ("save_exchanged_qkv", c_int32), ("backend", c_int32),
                ("scale", c_double), ("softcap", c_double), ("dropout", c_double), ("block_tokens", c_int64),
                ("replicated_q", POINTER(c_int64)), ("replicated_q_count", c_int64),
                ("replicated_k", POINTER(c_int64)), ("replicated_k_count", c_int64),
                ("gated", c_int32), ("gate_phases", c_int32)]


class CommOptions(Struct):
    _fields_ = [("size", c_size_t), ("watchdog_s", c_double), ("start_s", c_double), ("trust_network", c_int32),
                ("reserved", c_int32), ("interrupted", Interrupted), ("context", c_void_p)]


class SocketJob(Struct):
    _fields_ = [("size", c_size_t), ("host", c_char_p), ("port", c_int32), ("rank", c_int32), ("ranks", c_int32),
                ("one_host", c_int32), ("digest", c_uint64), ("secret", c_char_p), ("on_listening", OnListening),
                ("context", c_void_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("batch_stride", c_int64), ("row_stride", c_int64),
                ("head_stride", c_int64)]


class AttentionInputs(Struct):
    _fields_ = [("size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("sink", c_void_p),
                ("alibi_slopes", POINTER(c_double)), ("blocks", POINTER(c_uint8)), ("block_rows", c_int64),
                ("block_columns", c_int64), ("dropout_seed", c_uint64), ("sink_dtype", c_int32),
                ("reserved", c_int32)]


class AttentionGradients(Struct):
    _fields_ = [("size", c_size_t), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor), ("d_sink", c_void_p),
                ("d_sink_dtype", c_int32), ("reserved", c_int32)]


class PassRecord(Struct):
    _fields_ = [("size", c_size_t), ("planned_sent", c_int64), ("planned_received", c_int64),
                ("executed_sent", c_int64), ("executed_received", c_int64), ("equal", c_int32), ("ticks", c_int32),
                ("workspace_bytes", c_int64), ("host_wait_s", c_double)]


class Allocator(ctypes.Structure):
    _fields_ = [("allocate", Allocate), ("release", Release), ("context", c_void_p),
                ("release_unused", ReleaseUnused)]


class EngineDesc(Struct):
    _fields_ = [("size", c_size_t), ("ring", c_int32), ("ring_outer", c_int32), ("ulysses", c_int32),
                ("compare_inputs", c_int32), ("allocator", Allocator), ("device", c_int32), ("backend", c_int32),
                ("deterministic", c_int32), ("ring_transport", c_int32), ("ulysses_transport", c_int32),
                ("forward_only", c_int32), ("release_scratch", c_int32)]


class LayoutDesc(Struct):
    _fields_ = [("size", c_size_t), ("kind", c_int32), ("ring", c_int32), ("ulysses", c_int32),
                ("reserved", c_int32), ("tokens", c_int64), ("cu_seqlens", POINTER(c_int64)),
                ("documents", c_int64)]


class BatchSizes(Struct):
    _fields_ = [("size", c_size_t), ("q_rows", c_int64), ("kv_rows", c_int64), ("saved_bytes", c_int64),
                ("workspace_bytes", c_int64), ("backward_reads_q", c_int32), ("backward_reads_k", c_int32),
                ("backward_reads_v", c_int32), ("backward_reads_out", c_int32)]

    @functools.cached_property
    def reads(self) -> tuple[bool, bool, bool, bool]:
        """Whether backward reads q, k, v and out."""
        return (self.backward_reads_q != 0, self.backward_reads_k != 0, self.backward_reads_v != 0,
                self.backward_reads_out != 0)


class Call(Struct):
    _fields_ = [("size", c_size_t), ("saved", c_void_p), ("saved_bytes", c_int64), ("layer", c_int64),
                ("forward_id", c_uint64), ("retain", c_int32), ("untracked", c_int32), ("stream", c_void_p)]


def index_of(words: tuple[str, ...], word: str, name: str) -> int:
    """An enumerator's number by its word; UsageError names the argument and lists the words."""
    return words.index(_check.word(name, word, words))


def int64_array(values, name: str):
    """(ctypes array, count) of integers; keep the array as long as C reads it."""
    try:
        buffer = array.array("q", values)
    except OverflowError:
        raise InvalidInput(f"{name} holds a number beyond 64 bits; token counts are below 2**40") from None
    return (c_int64 * len(buffer)).from_buffer(buffer), len(buffer)
