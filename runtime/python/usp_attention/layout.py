# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a step a rank holds."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence

from . import _check
from . import _structs as s
from ._library import check, lib


def layout_tokens(kind: str, tokens: int, ring: int, ulysses: int, rank: int,
                  cu_seqlens: Sequence[int] | None = None) -> "array.array[int]":
    """Global tokens of a rank's rows, in the order of the rows.

    kind: contiguous, zigzag, striped or balanced; rank = ring row * ulysses + ulysses column; cu_seqlens: 0 to
    `tokens` (None: one document). Local and pure: safe in the workers of a DataLoader. Raises UsageError for a
    rank outside the mesh, InvalidInput for documents that do not fit `tokens`.
    """
    borders, documents = None, 0
    if cu_seqlens is not None:
        borders, documents = s.int64_array(_check.borders("cu_seqlens", cu_seqlens), "cu_seqlens")
    layout = Layout(s.index_of(s.LAYOUTS, kind, "kind"), _check.integer("tokens", tokens),
                    _check.integer("ring", ring, 1, s.INT32_MAX), _check.integer("ulysses", ulysses, 1, s.INT32_MAX),
                    borders, documents - 1)
    return layout.tokens(_check.integer("rank", rank, 0, s.INT32_MAX))


class Layout:
    """A usp_layout_desc of checked values, and the borders that it points to (None: one document)."""

    def __init__(self, kind: int, tokens: int, ring: int, ulysses: int, borders=None, documents: int = 0):
        self._desc = s.LayoutDesc(kind=kind, ring=ring, ulysses=ulysses, tokens=tokens)
        self._borders = borders
        if borders is not None:
            self._desc.cu_seqlens, self._desc.documents = borders, documents

    def rows(self, rank: int) -> int:
        """How many tokens a rank holds."""
        rows = ctypes.c_int64()
        check(lib().usp_layout_tokens(ctypes.byref(self._desc), rank, None, 0, ctypes.byref(rows)))
        return rows.value

    def tokens(self, rank: int) -> "array.array[int]":
        found = array.array("q", bytes(8 * self.rows(rank)))
        address, count = found.buffer_info()
        check(lib().usp_layout_tokens(ctypes.byref(self._desc), rank, address, count, ctypes.byref(ctypes.c_int64())))
        return found
