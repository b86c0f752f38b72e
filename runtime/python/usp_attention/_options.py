# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a mesh must have alike, from words, defaults and plans."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib

from . import _check
from . import _structs as s
from ._library import import_torch, lib, library_path
from ._plans import MAX_TOKENS, Recipe
from .errors import EnvironmentFault, UsageError
from .planner import Candidate

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
    forward_only: bool = False


_WORDS = {"layout": s.LAYOUTS, "method": s.METHODS, "dkv_return": s.DKV_RETURNS}
RECIPE_OPTIONS = ("layout", "method", "dkv_return", "keep_entry", "gated", "gate_phases")
OTHER_OPTIONS = ("backend", "ring_transport", "ulysses_transport", "capacity_tokens", "watchdog_s", "check",
                 "forward_only")
CREATE_OPTIONS = ("plan", "ring", "ulysses", *RECIPE_OPTIONS, *OTHER_OPTIONS)


def transport_number(word: str, name: str) -> int:
    word = _check.word(name, word, ("auto", *s.TRANSPORTS))
    return s.TRANSPORTS.index("copy_engine" if word == "auto" else word)


def split_ranks(ranks: int, ring: int | None, ulysses: int | None, of: str) -> tuple[int, int]:
    """(ring, ulysses) of so many ranks; one of the two may be None. of: whose ranks, for the message."""
    given = {name: degree for name, degree in (("ring", ring), ("ulysses", ulysses)) if degree is not None}
    for name, degree in given.items():
        _check.integer(name, degree, 1, s.INT32_MAX, of="a number of ranks")
    ring = ranks // ulysses if ring is None else ring
    ulysses = ranks // ring if ulysses is None and ring else ulysses
    if ring * (ulysses or 0) != ranks:
        asked = " x ".join(f"{name} {degree}" for name, degree in given.items())
        raise UsageError(f"{asked} does not fit the {ranks} ranks of {of}; give degrees whose product is {ranks}")
    return ring, ulysses


def recipe_of(plan, given: dict) -> Recipe:
    """The plan's recipe, or that of the words given (ring, ulysses and RECIPE_OPTIONS, None: not given)."""
    chosen = {name: _checked(name, value) for name, value in given.items() if value is not None}
    if plan is None:
        return Recipe(**chosen)
    recipe = plan.recipe() if isinstance(plan, Candidate) else Recipe.of_plan_file(_plan_text(plan))
    for name, value in chosen.items():
        if getattr(recipe, name) != value:
            raise UsageError(f"{name} is {value}, and the plan has {getattr(recipe, name)}; leave it out, or make a "
                             f"plan with {name} fixed")
    return recipe


def _checked(name: str, value):
    if name in _WORDS:
        return _check.word(name, value, _WORDS[name])
    if name in ("keep_entry", "gated"):
        return _check.flag(name, value)
    if name == "gate_phases":
        return _check.integer(name, value, 1, 4, of="calls of a gated forward pass")
    return _check.integer(name, value, 1, s.INT32_MAX, of="a number of ranks")


def _plan_text(plan) -> str:
    if isinstance(plan, str) and plan.lstrip().startswith("{"):
        return plan
    _check.instance("plan", plan, (str, os.PathLike), "a plan file's path or text, or a Candidate of usp.plan")
    try:
        return pathlib.Path(plan).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"plan {plan!s} cannot be read: {reason}; give a plan file's path or text, or a "
                         "Candidate") from error


def options_of(recipe: Recipe, device, *, backend: str = "auto", check: bool | None = None,
               ring_transport: str = "auto", ulysses_transport: str = "auto", capacity_tokens: int | None = None,
               watchdog_s: float = 60.0, forward_only: bool = False) -> MeshOptions:
    _check.word("backend", backend, ("auto", *s.BACKENDS))
    if device.type == "cpu":
        if backend not in ("auto", "cpu"):
            raise UsageError(f"backend is {backend!r} and the mesh is one of CPUs; give 'cpu' or 'auto'")
        backend = "cpu"
    elif backend == "auto":
        planned = recipe.backend != "cpu" and _loads(recipe.backend, device)
        backend = recipe.backend if planned else _gpu_backend(device)
    if not _built(backend):
        raise EnvironmentFault(f"backend is {backend!r}, without which this libusp.so was built ({library_path()}); install "
                               "usp-attention where nvcc is (and cuDNN's headers, for cudnn), or choose another backend")
    for name, value in (("ring_transport", ring_transport), ("ulysses_transport", ulysses_transport)):
        transport_number(value, name)
    if capacity_tokens is not None:
        capacity_tokens = _check.integer("capacity_tokens", capacity_tokens, 1, MAX_TOKENS, of="the most tokens of a step")
    watchdog_s = _check.number("watchdog_s", watchdog_s, of="of seconds from 0.001 to 1e6")
    if not 0.001 <= watchdog_s <= 1e6:
        raise UsageError(f"watchdog_s is {watchdog_s}; it is a number of seconds from 0.001 to 1e6")
    return MeshOptions(dataclasses.replace(recipe, backend=backend), ring_transport, ulysses_transport, capacity_tokens,
                       watchdog_s, device.type == "cpu" if check is None else _check.flag("check", check),
                       torch.are_deterministic_algorithms_enabled(), _check.flag("forward_only", forward_only))


def _gpu_backend(device) -> str:
    """The fastest that the card runs and that loads."""
    return next((backend for backend in ("hopper_cudnn", "cudnn") if _loads(backend, device)), "mma")


def _loads(backend: str, device) -> bool:
    """Whether libusp.so was built with it, what it needs is there, and the card runs it."""
    if not _built(backend):
        return False
    if backend.startswith("hopper") and _compute_major(device) != 9:
        return False
    if not backend.endswith("cudnn"):
        return True
    try:
        ctypes.CDLL("libcudnn.so.9")  # by the soname that torch's own libraries need
    except OSError:
        return False
    return True


def _compute_major(device) -> int:
    return torch.cuda.get_device_capability(device)[0]


def _built(backend: str) -> bool:
    return lib().usp_backend_built(s.BACKENDS.index(backend)) == 1
