# SPDX-License-Identifier: Apache-2.0
"""Arguments of the public functions: each check returns the value, or raises UsageError by the argument's name."""

from __future__ import annotations

import array
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import InvalidInput, UsageError

INT64 = (-(2**63), 2**63 - 1)


def integer(name: str, value: Any, least: int = INT64[0], most: int = INT64[1], *, of: str = "") -> int:
    """A whole number; numpy's and torch's too, no bool. of: what it counts, for the message."""
    if type(value) is not int:
        try:
            found = None if isinstance(value, bool) else operator.index(value)
        except (TypeError, ValueError, RuntimeError):  # of no integer, and of a tensor of several
            found = None
        if found is None:
            raise UsageError(f"{name} is {shown(value)}; it must be an integer{_counts(of)}")
        value = found
    if not least <= value <= most:
        bound = f"{least} or more" if most == INT64[1] else f"from {least} to {most}"
        raise UsageError(f"{name} is {value}; it must be {bound}{_counts(of)}")
    return value


def number(name: str, value: Any, *, of: str = "") -> float:
    """A finite real number; no bool and no text."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UsageError(f"{name} is {shown(value)}; it must be a number{_counts(of)}")
        value = float(value)
    if not -math.inf < value < math.inf:  # not isfinite, which compiled code cannot trace
        raise UsageError(f"{name} is {value}; it must be a finite number{_counts(of)}")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False; numpy's too."""
    if value is not True and value is not False:
        if (type(value).__module__, type(value).__name__.rstrip("_")) != ("numpy", "bool"):
            raise UsageError(f"{name} is {shown(value)}; it must be True or False")
        value = bool(value)
    return value


def word(name: str, value: Any, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise UsageError(f"{name} is {shown(value)}; it must be one of {', '.join(words)}")
    return value


def instance(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """what: how to get one, for the message."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {shown(value)}; it must be {what}")
    return value


def function(name: str, value: Any, what: str) -> Callable:
    if not callable(value):
        raise UsageError(f"{name} is {shown(value)}; it must be {what}")
    return value


def iterable(name: str, value: Any, what: str) -> Iterable:
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", 1) == 0 or not (
            hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        raise UsageError(f"{name} is {shown(value)}; it must be {what}")
    return value


def mapping(name: str, value: Any, what: str) -> Mapping:
    return instance(name, value, Mapping, what)


def words(name: str, value: Any) -> tuple[str, ...]:
    """Several names; one alone is a mistake, since its letters would be taken."""
    found = tuple(iterable(name, value, "a list of names, such as ['token_type_ids']"))
    for item in found:
        instance(name, item, str, "a list of names, such as ['token_type_ids']")
    return found


def path(name: str, value: Any) -> str:
    return os.fspath(instance(name, value, (str, os.PathLike), "a path or a name"))


def integers(name: str, values: Any) -> tuple[int, ...]:
    """A sequence of whole numbers, a tensor's or an array's too."""
    if hasattr(values, "tolist"):
        values = values.tolist()  # numpy's, torch's, array's
    found = tuple(iterable(name, values, "a list, tensor or array of integers"))
    if type(_sum(found)) is int:  # by far the fastest look at every element; bools pass
        return found
    try:
        return tuple(array.array("q", found))
    except (TypeError, OverflowError):
        odd = next(item for item in found if not _is_int64(item))
        raise UsageError(f"{name} holds {shown(odd)}; it must hold integers, token counts below 2**63") from None


def borders(name: str, values: Any) -> tuple[int, ...]:
    """cu_seqlens: from 0, rising. Raises InvalidInput for other integers."""
    found = integers(name, values)
    if len(found) < 2 or found[0] != 0 or found[-1] > INT64[1]:
        raise InvalidInput(f"{name} is {shown(found)}; it begins at 0 and ends at the tokens of the step: a border more "
                           "than there are documents")
    return found


def known(kind: str, given: Mapping, names: Iterable[str]) -> None:
    """Keyword arguments that are passed on: one that nothing takes is named, with those that are taken."""
    names = tuple(names)
    for name in given:
        if name not in names:
            raise UsageError(f"{kind} takes no {name!r}; it takes {', '.join(names)}")


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    try:
        text = repr(value) if isinstance(value, (str, bytes, list, tuple, dict)) else ""
    except Exception:  # a value's own repr
        text = ""
    kind = type(value).__name__
    if not text:
        return f"of type {kind}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})" if not isinstance(value, str) else text[:60]


def _sum(values: tuple) -> Any:
    try:
        return sum(values)
    except TypeError:
        return None


def _is_int64(value: Any) -> bool:
    try:
        array.array("q", [value])
    except (TypeError, OverflowError):
        return False
    return True


def _counts(of: str) -> str:
    return f", {of}" if of else ""
