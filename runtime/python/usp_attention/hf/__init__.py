# SPDX-License-Identifier: Apache-2.0
"""transformers models on a mesh: `prepare` a model, iterate over its `loader`, or use its `Trainer`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOMES = {"register": "attention", "Registration": "attention", "prepare": "prepared", "Prepared": "prepared",
          "Trainer": "trainer", "on_mesh": "trainer"}

__all__ = [*_HOMES]


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value  # over the submodule of the same name
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    from .attention import Registration, register
    from .prepared import Prepared, prepare
    from .trainer import Trainer, on_mesh
