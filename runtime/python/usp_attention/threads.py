# SPDX-License-Identifier: Apache-2.0
"""A mesh of threads of one process, for tests on a CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from . import _check
from . import _structs as s
from ._comm import Comm
from ._library import check, import_torch, lib
from ._options import OTHER_OPTIONS, options_of, recipe_of, split_ranks
from .mesh import Mesh

torch = import_torch()


def run_threads(ranks: int, body: Callable[[Mesh], None], *, ring: int | None = None, ulysses: int | None = None,
                layout: str | None = None, method: str | None = None, dkv_return: str | None = None,
                keep_entry: bool | None = None, gated: bool | None = None, gate_phases: int | None = None, plan=None,
                seed: int = 0, **options) -> None:
    """Runs `body(mesh)` on so many threads, each a rank of a mesh of its own that lives for the call.

    ring, ulysses: degrees (default: ring = ranks); the rest as Mesh.create; seed: of dropout. Returns when all
    have; raises the exception of the rank that failed first, which ends the others. Ctrl-C ends ranks that wait for
    one another. UsageError for degrees that do not make `ranks`.
    """
    ranks = _check.integer("ranks", ranks, 1, 1 << 16, of="the threads to run on")
    _check.function("body", body, "a function of a Mesh")
    _check.known("run_threads", options, OTHER_OPTIONS)
    if plan is None:
        ring, ulysses = split_ranks(ranks, ranks if ring is ulysses is None else ring, ulysses, "run_threads")
    recipe = recipe_of(plan, dict(ring=ring, ulysses=ulysses, layout=layout, method=method, dkv_return=dkv_return,
                                   keep_entry=keep_entry, gated=gated, gate_phases=gate_phases))
    made = options_of(recipe, torch.device("cpu"), **options)
    seed = _check.integer("seed", seed, 0, 2**64 - 1)
    interrupted = threading.Event()
    waiting = s.CommOptions(watchdog_s=made.watchdog_s, interrupted=s.Interrupted(lambda _: interrupted.is_set()))
    failures: list[BaseException] = []

    def rank(handle, _user) -> int:
        try:
            mesh = Mesh(Comm.lent(handle), made, torch.device("cpu"), seed)
            try:
                body(mesh)
            except BaseException as error:
                failures.append(error)
                mesh.abort(f"rank {mesh.rank}: {type(error).__name__}: {error}")
                raise
            finally:
                mesh.close()
        except BaseException as error:  # no exception may pass through C
            if error not in failures:
                failures.append(error)
            return s.INTERNAL
        return s.OK

    def run() -> None:
        try:
            check(lib().usp_run_threads_with(ranks, ctypes.byref(waiting), s.RankFunction(rank), None))
        except BaseException as error:
            failures.append(error)  # last: what a rank raised comes before

    runner = threading.Thread(target=run, name="usp.run_threads")  # so that this thread sees Ctrl-C
    try:
        runner.start()
        while runner.is_alive():
            runner.join(0.1)  # a signal that another thread received wakes no lock
    except BaseException:
        interrupted.set()
        if runner.ident is not None:
            runner.join()
        raise
    if failures:
        raise failures[0]
