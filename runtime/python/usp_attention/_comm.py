# SPDX-License-Identifier: Apache-2.0
"""A communicator of usp.h: one lifetime, one process, signals while it waits."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from . import _structs as s
from ._library import check, error_of, lib
from .errors import CommunicationError, UsageError


class Comm:
    """The ranks of a mesh. Calls go through `call`, which knows forked children, failed jobs and Ctrl-C."""

    def __init__(self, watchdog_s: float = 60.0):
        self._handle = ctypes.c_void_p()
        self._owned = True
        self._process = os.getpid()
        self._failure: CommunicationError | None = None
        self._interrupt: BaseException | None = None
        watch = self._watch()
        next(watch)
        self._options = s.CommOptions(watchdog_s=watchdog_s, interrupted=s.Interrupted(watch.send))

    @classmethod
    def serial(cls) -> "Comm":
        """One rank, no peers."""
        comm = cls()
        check(lib().usp_comm_create_serial(ctypes.byref(comm._handle)))
        return comm

    @classmethod
    def lent(cls, handle: int) -> "Comm":
        """One that usp_run_threads_with owns."""
        comm = cls()
        comm._handle, comm._owned = ctypes.c_void_p(handle), False
        return comm

    @classmethod
    def launched(cls, watchdog_s: float) -> "Comm":
        """Collective: this process as a rank of torchrun's job."""
        comm = cls(watchdog_s)
        comm._made(lib().usp_comm_create_launched(ctypes.byref(comm._options), ctypes.byref(comm._handle)))
        return comm

    @classmethod
    def sockets(cls, job: s.SocketJob, watchdog_s: float) -> "Comm":
        """Collective: the ranks of `job` meet at its rank 0."""
        comm = cls(watchdog_s)
        comm._made(lib().usp_comm_create_sockets(ctypes.byref(job), ctypes.byref(comm._options),
                                                 ctypes.byref(comm._handle)))
        return comm

    @property
    def handle(self) -> ctypes.c_void_p:
        return self._handle

    @property
    def rank(self) -> int:
        return lib().usp_comm_rank(self._handle)

    @property
    def size(self) -> int:
        return lib().usp_comm_size(self._handle)

    @property
    def open(self) -> bool:
        return bool(self._handle) and os.getpid() == self._process

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def require_open(self) -> None:
        """Raises where no call can be made: closed, in a forked child, after a failure between ranks."""
        if os.getpid() != self._process:
            raise UsageError(
                "this mesh belongs to the process that made it, and this is a child of it (fork): cut samples "
                "in workers with Sharder, which needs no mesh, or start the workers with spawn")
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args, *_parts(self._failure)) from self._failure
        if not self._handle:
            raise UsageError("the mesh is closed; make another one with Mesh.create")

    def call(self, function: Callable[..., int], *arguments) -> None:
        """Runs a function of the library that may wait for other ranks."""
        self.require_open()
        self._made(function(*arguments))

    def _made(self, status: int) -> None:
        if status == s.OK:
            return
        interrupt, self._interrupt = self._interrupt, None
        error = error_of(status)
        if isinstance(error, CommunicationError):
            self._failure = error
        if interrupt is not None:
            raise interrupt
        raise error

    def abort(self, reason: str) -> None:
        """Local: ends the job; the others' calls fail with the reason."""
        if self.open:
            lib().usp_comm_abort(self._handle, reason.encode())

    def close(self) -> None:
        """Collective where it is owned. Nothing in a forked child, and nothing twice."""
        if self.open and self._owned:
            lib().usp_comm_destroy(self._handle)
        self._handle = ctypes.c_void_p()
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _watch(self):
        """Resumed about every tenth of a second while a call waits: lets Python handle signals, and gives 1 where a
        handler raised (Ctrl-C). A generator, since Python may run handlers at its first instruction, which in a
        function is before any `try`."""
        code = 0
        while True:
            try:
                yield code
                code = 0
                ctypes.pythonapi.PyErr_CheckSignals()
            except GeneratorExit:
                return
            except BaseException as interrupt:
                self._interrupt, code = interrupt, 1


def _parts(error: CommunicationError):
    return error.missing, error.tick, error.operation, error.rank
