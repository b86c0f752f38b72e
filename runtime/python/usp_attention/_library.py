# SPDX-License-Identifier: Apache-2.0
"""libusp.so by ctypes: loading, signatures, and statuses as exceptions."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import re
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass

from . import _structs as s
from .errors import (
    CommunicationError, DisagreementError, EnvironmentFault, Infeasible, InternalError, InvalidInput, UsageError,
)

# Functions that return a usp_status, with the types of their arguments.
_STATUS_FUNCTIONS = {
    "usp_last_fault": [POINTER(s.Fault)],
    "usp_attention_desc_init": [POINTER(s.AttentionDesc), c_size_t],
    "usp_plan_create": [POINTER(s.AttentionDesc), POINTER(c_void_p)],
    "usp_plan_parse": [c_char_p, c_int32, POINTER(c_void_p)],
    "usp_plan_get_desc": [c_void_p, POINTER(s.AttentionDesc)],
    "usp_run_threads_with": [c_int32, POINTER(s.CommOptions), s.RankFunction, c_void_p],
    "usp_comm_create_serial": [POINTER(c_void_p)],
    "usp_comm_options_init": [POINTER(s.CommOptions), c_size_t],
    "usp_socket_job_init": [POINTER(s.SocketJob), c_size_t],
    "usp_comm_create_sockets": [POINTER(s.SocketJob), POINTER(s.CommOptions), POINTER(c_void_p)],
    "usp_comm_create_launched": [POINTER(s.CommOptions), POINTER(c_void_p)],
    "usp_comm_abort": [c_void_p, c_char_p],
    "usp_comm_barrier": [c_void_p],
    "usp_comm_all_gather": [c_void_p, c_void_p, c_void_p, c_int64],
    "usp_comm_broadcast": [c_void_p, c_void_p, c_int64, c_int32],
    "usp_engine_desc_init": [POINTER(s.EngineDesc), c_size_t],
    "usp_engine_create": [POINTER(s.EngineDesc), c_void_p, POINTER(c_void_p)],
    "usp_engine_notes": [c_void_p, POINTER(c_char_p)],
    "usp_engine_check": [c_void_p],
    "usp_engine_agree": [c_void_p, c_char_p, c_uint64],
    "usp_batch_create": [c_void_p, POINTER(c_int64), c_int64, c_uint64, POINTER(c_void_p)],
    "usp_batch_derive": [c_void_p, POINTER(c_int64), c_int64, POINTER(c_void_p)],
    "usp_batch_get_sizes": [c_void_p, c_void_p, POINTER(s.BatchSizes)],
    "usp_batch_record": [c_void_p, c_void_p, c_void_p, c_int32, POINTER(s.PassRecord)],
    "usp_layout_desc_init": [POINTER(s.LayoutDesc), c_size_t],
    "usp_layout_tokens": [POINTER(s.LayoutDesc), c_int32, c_void_p, c_int64, POINTER(c_int64)],
    "usp_attention_inputs_init": [POINTER(s.AttentionInputs), c_size_t],
    "usp_attention_gradients_init": [POINTER(s.AttentionGradients), c_size_t],
    "usp_call_init": [POINTER(s.Call), c_size_t],
    "usp_attend": [c_void_p, c_void_p, c_void_p, POINTER(s.AttentionInputs), POINTER(s.Tensor), c_void_p,
                   POINTER(s.Call)],
    "usp_attend_grad": [c_void_p, c_void_p, c_void_p, POINTER(s.AttentionInputs), POINTER(s.Tensor),
                        POINTER(s.Tensor), POINTER(s.AttentionGradients), POINTER(s.Call)],
    "usp_plan_step_json": [c_char_p, POINTER(c_void_p)],
    "usp_plan_step_file": [c_char_p, POINTER(c_void_p)],
    "usp_plan_attention_json": [c_char_p, POINTER(c_void_p)],
}
_OTHER_FUNCTIONS = {
    "usp_version": (c_char_p, []),
    "usp_last_error": (c_char_p, []),
    "usp_backend_built": (c_int32, [c_int32]),
    "usp_plan_destroy": (None, [c_void_p]),
    "usp_comm_destroy": (None, [c_void_p]),
    "usp_engine_destroy": (None, [c_void_p]),
    "usp_batch_destroy": (None, [c_void_p]),
    "usp_comm_rank": (c_int32, [c_void_p]),
    "usp_comm_size": (c_int32, [c_void_p]),
    "usp_engine_workspace_bytes": (c_int64, [c_void_p]),
    "usp_text_free": (None, [c_void_p]),
}


@dataclass(frozen=True)
class LibraryInfo:
    """What is loaded. cudnn, nccl: paths of the copies in this process, None where there is none."""

    path: str
    version: str
    cudnn: str | None
    nccl: str | None


def library_path() -> pathlib.Path:
    return pathlib.Path(__file__).parent / "libusp.so"


@functools.cache
def lib() -> ctypes.CDLL:
    """The library with its signatures. After `import torch` wherever a part with torch is used, so that both
    take the same cuDNN and NCCL."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise EnvironmentFault(
            f"libusp.so does not load from {path}: {error}; install usp-attention again, or build the target "
            "usp_python of the repository and put its folder on PYTHONPATH") from error
    for name, arguments in _STATUS_FUNCTIONS.items():
        function = getattr(loaded, name, None)
        if function is None:
            raise EnvironmentFault(f"{path} has no {name}; it is of another version: install usp-attention again")
        function.restype, function.argtypes = ctypes.c_int, arguments
    for name, (result, arguments) in _OTHER_FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    version = loaded.usp_version().decode()
    if tuple(int(part) for part in version.split(".")[:2]) != s.HEADER_VERSION:
        raise EnvironmentFault(f"{path} is version {version}, this package describes "
                               f"{'.'.join(map(str, s.HEADER_VERSION))}; install usp-attention again")
    return loaded


def library() -> LibraryInfo:
    """Path and version of libusp.so, and the cuDNN and NCCL that this process has loaded so far."""
    version = lib().usp_version().decode()
    maps = pathlib.Path("/proc/self/maps")
    mapped = maps.read_text(encoding="utf-8") if maps.exists() else ""

    def loaded(name: str) -> str | None:
        found = re.search(rf"(/\S*/{name}\.so\S*)", mapped)
        return found.group(1) if found else None

    return LibraryInfo(str(library_path()), version, loaded("libcudnn"), loaded("libnccl"))


def fault() -> s.Fault | None:
    """The last error of this thread by its parts, where it was one between ranks."""
    found = s.Fault()
    return found if lib().usp_last_fault(ctypes.byref(found)) == s.OK else None


def error_of(status: int) -> Exception:
    """The exception of a status other than OK, from this thread's last error."""
    text = lib().usp_last_error().decode(errors="replace")
    if status == s.ENVIRONMENT:
        parts = fault()
        if parts is None:
            return EnvironmentFault(text)
        ranks = tuple(parts.ranks[i] for i in range(parts.rank_count))
        if parts.kind == s.FAULT_DISAGREEMENT:
            return DisagreementError(text, parts.field.decode(), ranks)
        return CommunicationError(text, ranks, parts.tick, parts.operation.decode(), parts.rank)
    kinds = {s.USAGE: UsageError, s.INVALID_INPUT: InvalidInput, s.INFEASIBLE: Infeasible}
    return kinds.get(status, InternalError)(text)


def check(status: int) -> None:
    if status != s.OK:
        raise error_of(status)


def take_text(pointer: c_void_p) -> str:
    """A text that the library allocated, freed."""
    try:
        return ctypes.string_at(pointer.value).decode()
    finally:
        lib().usp_text_free(pointer)


def import_torch():
    """torch, before libusp.so is loaded."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentFault("this part of usp needs PyTorch: pip install 'usp-attention[torch]'") from error
    return torch


def interpreter_exits_by_error() -> bool:
    """Whether an unhandled exception ends the program."""
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
