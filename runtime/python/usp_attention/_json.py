# SPDX-License-Identifier: Apache-2.0
"""Dataclasses from JSON, strictly: an unknown, missing or mistyped key is an error that names it."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

from .errors import InvalidInput

T = TypeVar("T")


def decode(kind: type[T], value: Any, at: str = "") -> T:
    """`value`, as json.loads gives it, as `kind`: a dataclass, tuple[X, ...], X | None, dict or a scalar."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return decode(next(part for part in arguments if part is not type(None)), value, at)
    if origin is tuple:
        if not isinstance(value, list):
            raise InvalidInput(f"{at or '/'} is {_name(value)}; it must be a list")
        return tuple(decode(arguments[0], item, f"{at}/{i}") for i, item in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, at)
    wanted = (int, float) if kind is float else (origin or kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(f"{at or '/'} is {_name(value)}; it must be {(origin or kind).__name__}")
    return value


def _object(kind, value, at: str):
    if not isinstance(value, dict):
        raise InvalidInput(f"{at or '/'} is {_name(value)}; it must be an object")
    fields = _fields(kind)
    unknown = [key for key in value if key not in fields]
    missing = [key for key, (_, needed) in fields.items() if needed and key not in value]
    if unknown or missing:
        what = f"has no place for the key {unknown[0]}" if unknown else f"lacks the key {missing[0]}"
        raise InvalidInput(f"{at or '/'} {what}; it is of another version of usp, or of another document")
    return kind(**{key: decode(fields[key][0], item, f"{at}/{key}") for key, item in value.items()})


@functools.cache
def _fields(kind) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(kind)
    return {field.name: (hints[field.name], field.default is field.default_factory is dataclasses.MISSING)
            for field in dataclasses.fields(kind) if field.metadata.get("json", True)}


def _name(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"[:80]
