# SPDX-License-Identifier: Apache-2.0
"""What an attention call is, apart from its tensors and documents, and its plan on a mesh."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from . import _check
from . import _structs as s
from ._library import check, lib
from .errors import UsageError


class Terms(NamedTuple):
    """The rules of one attention call. window: None, or how many tokens a query sees, itself included."""

    causal: bool
    window: int | None
    scale: float | None
    softcap: float | None
    dropout: float
    sink: bool
    return_lse: bool


class Shape(NamedTuple):
    """What all ranks' tensors have in common. dtype: a word of _structs.DTYPES."""

    batch: int
    query_heads: int
    kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    dtype: str


@dataclass(frozen=True)
class Recipe:
    """How a mesh runs every call: the part of a plan that does not depend on the call."""

    ring: int = 1
    ulysses: int = 1
    ring_outer: int = 1
    method: str = "ring"
    layout: str = "zigzag"
    dkv_return: str = "circulate"
    head_chunks: int = 1
    keep_entry: bool = True
    gated: bool = False
    gate_phases: int = 1
    backend: str = "cpu"

    @property
    def ranks(self) -> int:
        return self.ring * self.ulysses

    @classmethod
    def of_plan_file(cls, text: str) -> "Recipe":
        """Of the first layer of a plan file; all its layers run on one mesh."""
        handle = ctypes.c_void_p()
        check(lib().usp_plan_parse(text.encode(), 0, ctypes.byref(handle)))
        try:
            desc = s.AttentionDesc()
            check(lib().usp_plan_get_desc(handle, ctypes.byref(desc)))
        finally:
            lib().usp_plan_destroy(handle)
        return cls(ring=desc.ring, ulysses=desc.ulysses, ring_outer=desc.ring_outer, method=s.METHODS[desc.method],
                   layout=s.LAYOUTS[desc.layout], dkv_return=s.DKV_RETURNS[desc.dkv_return],
                   head_chunks=desc.head_chunks, keep_entry=bool(desc.save_exchanged_qkv), gated=bool(desc.gated),
                   gate_phases=desc.gate_phases, backend=s.BACKENDS[desc.backend])


MAX_TOKENS = s.UNBOUNDED - 1
"""The greatest count of tokens of a plan: its capacity where none is asked for. Counts and schedules follow a batch's
tokens, so it costs nothing."""


MAX_GPU_ROWS = 2**31 - 1
"""Rows times heads of a step that a GPU's kernels can number (usp/schedule/limits.hpp)."""


def most_tokens(recipe: Recipe, shape: Shape) -> int:
    """The capacity of a plan for which none is asked."""
    if recipe.backend == "cpu":
        return MAX_TOKENS
    parts = recipe.ulysses * recipe.head_chunks
    heads = -(-shape.query_heads // parts)
    return min(MAX_TOKENS, recipe.ring * max(1, MAX_GPU_ROWS // (shape.batch * heads)))


class Plan:
    """A usp_plan of a recipe, rules and a shape. Local; shared by all layers and steps with these. prune: send only the
    keys that a receiver sees, where it does not see them all."""

    def __init__(self, recipe: Recipe, terms: Terms, shape: Shape, prune: bool, capacity_tokens: int | None):
        desc = s.AttentionDesc()
        check(lib().usp_attention_desc_init(ctypes.byref(desc), ctypes.sizeof(desc)))
        desc.batch, desc.q_tokens = shape.batch, capacity_tokens or most_tokens(recipe, shape)
        desc.query_heads, desc.kv_heads = shape.query_heads, shape.kv_heads
        desc.head_dim_qk, desc.head_dim_v = shape.head_dim_qk, shape.head_dim_v
        desc.dtype = s.DTYPES.index(shape.dtype)
        desc.ring, desc.ring_outer, desc.ulysses = recipe.ring, recipe.ring_outer, recipe.ulysses
        desc.method = s.index_of(s.METHODS, recipe.method, "method")
        desc.layout = s.index_of(s.LAYOUTS, recipe.layout, "layout")
        desc.dkv_return = s.index_of(s.DKV_RETURNS, recipe.dkv_return, "dkv_return")
        desc.head_chunks, desc.prune = recipe.head_chunks, prune
        desc.save_exchanged_qkv, desc.gated, desc.gate_phases = recipe.keep_entry, recipe.gated, recipe.gate_phases
        desc.backend = s.index_of(s.BACKENDS, recipe.backend, "backend")
        if terms.causal:
            desc.diff_min, desc.diff_max = 0, s.UNBOUNDED if terms.window is None else terms.window - 1
        desc.sink, desc.return_lse = terms.sink, terms.return_lse
        desc.scale, desc.softcap, desc.dropout = terms.scale or 0.0, terms.softcap or 0.0, terms.dropout
        self.rules = {**terms._asdict(), **shape._asdict()}
        """What ranks compare before a call, by a digest first."""
        self.digest = zlib.crc32(repr(self.rules).encode())
        self.handle = ctypes.c_void_p()
        check(lib().usp_plan_create(ctypes.byref(desc), ctypes.byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None):
            lib().usp_plan_destroy(self.handle)


def checked_terms(causal, window, scale, softcap, dropout, sink: bool, return_lse) -> Terms:
    """Terms; UsageError for what the C API would read as "none", or cannot express."""
    causal, return_lse = _check.flag("causal", causal), _check.flag("return_lse", return_lse)
    if window is not None:
        window = _check.integer("window", window, 1, of="the tokens that a query sees, itself included; None: all")
        if not causal:
            raise UsageError("window is given and causal is False: a window sees the latest tokens, which only a causal "
                             "mask has; leave one of them out")
    if scale is not None and not (scale := _check.number("scale", scale)) > 0:
        raise UsageError(f"scale is {scale}; give a positive factor, or None for 1 / sqrt(head_dim)")
    if softcap is not None and not (softcap := _check.number("softcap", softcap)) > 0:
        raise UsageError(f"softcap is {softcap}; give a positive cap, or None")
    dropout = _check.number("dropout", dropout)
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout is {dropout}; it is a probability below 1")
    return Terms(causal, window, scale, softcap, dropout, sink, return_lse)
