# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism for long-context attention: a planner, and exact attention on a ring x ulysses mesh.

    import usp_attention as usp

The planner and the layouts need no torch; torch is imported at the first use of a part that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# Public name -> module that defines it.
_HOMES = {
    **dict.fromkeys(("plan", "plan_attention", "PlanResult", "AttentionResult", "Candidate", "Verdict", "Rejection"),
                    "planner"),
    "layout_tokens": "layout",
    **dict.fromkeys(("UspError", "UsageError", "InvalidInput", "Infeasible", "EnvironmentFault", "CommunicationError",
                     "DisagreementError", "InternalError"), "errors"),
    **dict.fromkeys(("library", "LibraryInfo"), "_library"),
    "Mesh": "mesh",
    "Batch": "batch",
    "attention": "op",
    **dict.fromkeys(("Sharder", "Cut", "shard", "unshard"), "data"),
    "Loader": "loader",
    "token_mean": "loss",
    "keep_attention": "checkpointing",
    "run_threads": "threads",
}
_MODULES = ("hf",)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        from ._library import lib

        return lib().usp_version().decode()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]


if TYPE_CHECKING:
    from . import hf
    from ._library import LibraryInfo, library
    from .batch import Batch
    from .checkpointing import keep_attention
    from .errors import (
        CommunicationError, DisagreementError, EnvironmentFault, Infeasible, InternalError, InvalidInput, UsageError,
        UspError,
    )
    from .data import Cut, Sharder, shard, unshard
    from .layout import layout_tokens
    from .loader import Loader
    from .loss import token_mean
    from .mesh import Mesh
    from .op import attention
    from .planner import AttentionResult, Candidate, PlanResult, Rejection, Verdict, plan, plan_attention
    from .threads import run_threads
