# SPDX-License-Identifier: Apache-2.0
"""Where ranks differ, by field and in words."""

from __future__ import annotations

from typing import Any, NamedTuple


class Difference(NamedTuple):
    """A field of which some ranks hold another value than most."""

    field: str
    common: Any
    others: dict[int, Any]  # by rank

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.others)


def differences(everyone: list[dict]) -> list[Difference]:
    """Of what each rank gave, by rank: one for each field that differs, in the order of the fields."""
    found = []
    for field in everyone[0]:
        values = [entry[field] for entry in everyone]
        common = max(values, key=values.count)
        others = {rank: value for rank, value in enumerate(values) if value != common}
        if others:
            found.append(Difference(field, common, others))
    return found


def shown(found: list[Difference], verb: str) -> str:
    """"window: most with 3, rank(s) 3 with 4; scale: ...", of the verb "with"."""
    return "; ".join(f"{one.field}: most {verb} {one.common}, rank(s) "
                     f"{', '.join(f'{rank} {verb} {value}' for rank, value in one.others.items())}" for one in found)
