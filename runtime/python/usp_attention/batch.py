# SPDX-License-Identifier: Apache-2.0
"""The documents of one step on one rank of a mesh."""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING

from . import _check
from . import _structs as s
from ._library import check, import_torch, lib
from .errors import UsageError
from .layout import Layout

if TYPE_CHECKING:
    from ._plans import Plan, Shape, Terms
    from .mesh import Mesh

torch = import_torch()


class Documents:
    """The documents of a step on one rank: their borders as C reads them, and this rank's rows. All batches of equal
    documents share one."""

    def __init__(self, mesh: "Mesh", cu_seqlens: tuple[int, ...]):
        self.cu_seqlens = cu_seqlens
        self.borders, count = s.int64_array(cu_seqlens, "cu_seqlens")
        self.count = count - 1
        self._rank = mesh.rank
        self._layout = Layout(s.LAYOUTS.index(mesh.recipe.layout), cu_seqlens[-1], mesh.ring, mesh.ulysses, self.borders,
                              self.count)
        self.rows = self._layout.rows(mesh.rank)

    @functools.cached_property
    def tokens(self) -> "array.array[int]":
        """Global tokens of this rank's rows."""
        return self._layout.tokens(self._rank)


class BatchState:
    """A usp_batch, its parts for chunked layers, and what plans need of it. Alive while a Batch, or a tensor of
    its number in a graph or checkpoint, refers to it."""

    def __init__(self, mesh: "Mesh", handle: ctypes.c_void_p, documents: Documents, row_starts: tuple[int, ...],
                 ordinal: int):
        self.ordinal = ordinal  # of the mesh's batches: the same on every rank
        self.mesh, self.handle, self.documents, self.row_starts = mesh, handle, documents, row_starts
        self.process = os.getpid()
        self.rows = documents.rows
        self._parts: dict[int, BatchState] = {}
        self._sizes: dict[int, s.BatchSizes] = {}

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        return self.documents.cu_seqlens

    def plan(self, terms: "Terms", shape: "Shape") -> "Plan":
        """The plan of a call with this batch: where documents or a window hide keys, hidden ones are not sent."""
        return self.mesh.plan(terms, shape, prune=terms.window is not None or self.documents.count > 1)

    def sizes(self, plan: "Plan") -> s.BatchSizes:
        """Local; cached by plan."""
        key = plan.handle.value
        found = self._sizes.get(key)
        if found is None:
            found = s.BatchSizes()
            check(lib().usp_batch_get_sizes(self.handle, plan.handle, ctypes.byref(found)))
            self._sizes[key] = found
        return found

    def parts(self, chunk: int) -> "BatchState":
        """Local: the documents cut again at multiples of `chunk` tokens from each sample row's start."""
        found = self._parts.get(chunk)
        if found is None:
            cuts = {row + at for row, end in zip(self.row_starts, (*self.row_starts[1:], self.cu_seqlens[-1]))
                    for at in range(0, end - row, chunk)}
            found = self._parts[chunk] = self._derive(tuple(sorted(cuts | set(self.cu_seqlens))))
        return found

    def _derive(self, cu_seqlens: tuple[int, ...]) -> "BatchState":
        documents = Documents(self.mesh, cu_seqlens)
        if documents.tokens != self.documents.tokens:
            raise UsageError(
                f"layout {self.mesh.recipe.layout} deals tokens by their documents, and a chunked layer has other "
                "documents than the rest of the step; give Mesh.create layout='zigzag'")
        handle = ctypes.c_void_p()
        check(lib().usp_batch_derive(self.handle, documents.borders, documents.count, ctypes.byref(handle)))
        return BatchState(self.mesh, handle, documents, self.row_starts, self.ordinal)

    def __del__(self):
        if getattr(self, "handle", None) and os.getpid() == self.process:
            lib().usp_batch_destroy(self.handle)


_numbers = itertools.count(1)
_states: "weakref.WeakValueDictionary[int, BatchState]" = weakref.WeakValueDictionary()
_entered = threading.local()


def state_of(number: int) -> BatchState:
    """The batch of a number that travelled through a graph."""
    found = _states.get(number)
    if found is None:
        raise UsageError(f"batch {number} is gone: keep the Batch, or the tensors computed with it, until backward "
                         "has run in this process")
    return found


class Batch:
    """The documents of one step, agreed among the ranks of a mesh; made by Mesh.batch and immutable.

    tokens, documents: of the whole step; cu_seqlens: 0 to `tokens`; local_tokens: int64 on the CPU, the global
    token of each local row. Any number of layers, forwards, recomputations and backwards use it, in any order;
    graphs and checkpoints keep alive what they need of it.
    """

    def __init__(self, state: BatchState):
        self._state = _check.instance("state", state, BatchState, "made by Mesh.batch, as a Batch is")
        self._number = next(_numbers)
        _states[self._number] = state
        self.batch_id = torch.tensor([self._number], dtype=torch.int64)
        """The batch in a graph: CPU, one element."""
        self.batch_id._usp_batch = state  # a graph that saves the tensor keeps the batch
        self.num_items = None
        """What a Loader's part divides the sum of losses by (fp32)."""

    @property
    def mesh(self) -> "Mesh":
        return self._state.mesh

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        return self._state.cu_seqlens

    @property
    def tokens(self) -> int:
        return self._state.cu_seqlens[-1]

    @property
    def documents(self) -> int:
        return self._state.documents.count

    @functools.cached_property
    def local_tokens(self):
        return tokens_tensor(self._state.documents.tokens)

    def __enter__(self) -> "Batch":
        stack = _entered.__dict__.setdefault("batches", [])
        stack.append(self)
        return self

    def __exit__(self, *exc) -> None:
        _entered.batches.pop()

    def __repr__(self) -> str:
        return (f"Batch(tokens={self.tokens}, documents={self.documents}, rows={self._state.rows}, "
                f"mesh={self.mesh!r})")


def tokens_tensor(tokens: array.array):
    """A copy of token numbers as a tensor: CPU, int64."""
    return torch.frombuffer(tokens, dtype=torch.int64).clone() if tokens else torch.empty(0, dtype=torch.int64)


def entered_batch() -> Batch:
    """The batch of the innermost `with` block of this thread."""
    stack = _entered.__dict__.get("batches")
    if not stack:
        raise UsageError("attention has no batch: pass the one of Mesh.batch, or enter it (with batch: ...)")
    return stack[-1]
