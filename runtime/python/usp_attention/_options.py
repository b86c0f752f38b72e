# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a mesh must have alike, from words, defaults and plans."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib

from . import _structs as s
from ._library import import_torch
from ._plans import Recipe
from .errors import UsageError

torch = import_torch()


@dataclasses.dataclass(frozen=True)
class MeshOptions:
    """Everything that the ranks of a mesh must have alike; see Mesh.create."""

    recipe: Recipe
    ring_transport: str = "auto"
    ulysses_transport: str = "auto"
    capacity_tokens: int | None = None
    watchdog_s: float = 60.0
    check: bool = True
    deterministic: bool = False


def transport_number(word: str, name: str) -> int:
    return s.index_of(s.TRANSPORTS, "copy_engine" if word == "auto" else word, name)


def recipe_of(plan, given: dict) -> Recipe:
    """The plan's recipe, or that of the words given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if plan is None:
        return Recipe(**chosen)
    recipe = plan.recipe() if hasattr(plan, "recipe") else Recipe.of_plan_file(_plan_text(plan))
    for name, value in chosen.items():
        if getattr(recipe, name) != value:
            raise UsageError(f"{name} is {value}, and the plan has {getattr(recipe, name)}; leave it out, or make a "
                             f"plan with {name} fixed")
    return recipe


def _plan_text(plan) -> str:
    if isinstance(plan, str) and plan.lstrip().startswith("{"):
        return plan
    try:
        return pathlib.Path(plan).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"plan {plan!s} cannot be read: {error.strerror}; give a plan file's path or text, or a "
                         "Candidate") from error


def options_of(recipe: Recipe, device, *, backend: str = "auto", check: bool | None = None, **rest) -> MeshOptions:
    if device.type == "cpu":
        if backend not in ("auto", "cpu"):
            raise UsageError(f"backend is {backend!r} and the mesh is one of CPUs; give 'cpu' or 'auto'")
        backend = "cpu"
    elif backend == "auto":
        backend = _gpu_backend()
    recipe = dataclasses.replace(recipe, backend=backend)
    watchdog_s = rest.get("watchdog_s", 60.0)
    if not 0.001 <= watchdog_s <= 1e6:
        raise UsageError(f"watchdog_s is {watchdog_s}; it is a number of seconds from 0.001 to 1e6")
    return MeshOptions(recipe, check=device.type == "cpu" if check is None else check,
                       deterministic=torch.are_deterministic_algorithms_enabled(), **rest)


def _gpu_backend() -> str:
    """cudnn where it loads; by the soname that torch's own libraries need."""
    try:
        ctypes.CDLL("libcudnn.so.9")
    except OSError:
        return "mma"
    return "cudnn"
