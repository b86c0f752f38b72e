# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a step a rank holds."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence

from . import _structs as s
from ._library import check, lib


def layout_tokens(kind: str, tokens: int, ring: int, ulysses: int, rank: int,
                  cu_seqlens: Sequence[int] | None = None) -> "array.array[int]":
    """Global tokens of a rank's rows, in the order of the rows.

    kind: contiguous, zigzag, striped or balanced; rank = ring row * ulysses + ulysses column; cu_seqlens: 0 to
    `tokens` (None: one document). Local and pure: safe in the workers of a DataLoader. Raises UsageError for a
    rank outside the mesh, InvalidInput for documents that do not fit `tokens`.
    """
    desc = s.LayoutDesc(kind=s.index_of(s.LAYOUTS, kind, "kind"), ring=ring, ulysses=ulysses, tokens=tokens)
    if cu_seqlens is not None:
        borders, count = s.int64_array(cu_seqlens)
        desc.cu_seqlens, desc.documents = borders, count - 1
    rows = ctypes.c_int64()
    check(lib().usp_layout_tokens(ctypes.byref(desc), rank, None, 0, ctypes.byref(rows)))
    found = array.array("q", bytes(8 * rows.value))
    address, _ = found.buffer_info()
    check(lib().usp_layout_tokens(ctypes.byref(desc), rank, address, rows.value, ctypes.byref(rows)))
    return found
