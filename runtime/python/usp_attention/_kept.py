# SPDX-License-Identifier: Apache-2.0
"""What attention returned and saved within a checkpointed region, for its recomputation.

Selective checkpointing of torch does the same by a dispatch mode, in which every operator of the region costs its Python;
here attention alone does.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from .errors import UsageError

_regions = threading.local()


class Kept(NamedTuple):
    call: object  # Call
    results: tuple  # out, lse, saved, cut off from the graph
    versions: tuple


class KeptCalls:
    """The calls of one checkpointed region, in order; freed with its checkpoint."""

    def __init__(self):
        self._calls: list[Kept] = []
        self._next: int | None = None  # of the recomputation; None: calls are recorded

    def recording(self) -> "Region":
        return Region(self, None)

    def replaying(self) -> "Region":
        return Region(self, 0)

    def begin(self, first: int | None) -> None:
        self._next = first

    def results(self, call, q, k, v, sinks) -> tuple:
        """(out, lse, saved) of a call: computed and kept, or those kept."""
        if self._next is None:
            results = call.forward(q, k, v, sinks, True)
            cut = tuple(None if x is None else x.detach() for x in results)
            self._calls.append(Kept(call, cut, _versions(cut)))
            return results
        if self._next >= len(self._calls) or not self._calls[self._next].call.same_as(call):
            raise UsageError(f"attention call {self._next} of a recomputation is not that of the forward pass (layer, rules, "
                             "shapes or batch differ), so what keep_attention kept is not its result; checkpoint this region "
                             "without context_fn")
        kept = self._calls[self._next]
        self._next += 1
        if _versions(kept.results) != kept.versions:
            raise UsageError("the output of attention was changed in place within a checkpointed region, so what "
                             "keep_attention kept is not its result; use the operation that is not in place")
        return tuple(None if x is None else x.detach() for x in kept.results)


class Region:
    """A context, entered anew by each recomputation, within which attention records its calls or replays them."""

    def __init__(self, calls: KeptCalls, first: int | None):
        self._calls, self._first = calls, first

    def __enter__(self) -> None:
        self._calls.begin(self._first)
        _regions.__dict__.setdefault("stack", []).append(self._calls)

    def __exit__(self, *_error) -> None:
        _regions.stack.pop()


def _versions(tensors) -> tuple:
    return tuple(None if x is None else x._version for x in tensors)


def kept_calls() -> KeptCalls | None:
    """Of the region that this thread is in; None: of none."""
    stack = _regions.__dict__.get("stack")
    return stack[-1] if stack else None
