# SPDX-License-Identifier: Apache-2.0
"""Documents of a whole sample, from its positions."""

from __future__ import annotations

from . import _check
from ._library import import_torch
from .errors import InvalidInput, UsageError

torch = import_torch()


def cu_seqlens_of_positions(position_ids) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(cu_seqlens, row_starts) of positions [S] or [B, S] whose rows lie end to end.

    A document begins at each row and wherever a step is not +1; a tail of equal positions is one document (of
    padding). Raises InvalidInput for positions of several axes, which do not say where documents begin.
    """
    check_ids("position_ids", position_ids)
    if position_ids.numel() == 0:
        raise InvalidInput("position_ids is empty; a step has at least one token")
    if position_ids.ndim > 2:
        raise InvalidInput(f"position_ids has the shape {tuple(position_ids.shape)}: positions of several axes do not "
                           "say where documents begin; give cu_seqlens")
    if position_ids.device.type != "cpu":
        raise UsageError(f"position_ids lies on {position_ids.device}; the documents of a step are needed on the host: "
                         "give the CPU tensor of the loader")
    rows = position_ids if position_ids.ndim == 2 else position_ids[None]
    length = rows.shape[1]
    borders = [row * length + begin for row, positions in enumerate(rows) for begin in _begins(positions)]
    return (*borders, rows.numel()), tuple(row * length for row in range(rows.shape[0]))


def check_ids(name: str, tensor):
    """Whole numbers in a tensor with a sequence's axis."""
    _check.instance(name, tensor, torch.Tensor, "a tensor of torch with an axis for tokens")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.ndim == 0:
        raise UsageError(f"{name} is {tensor.dtype} of the shape {tuple(tensor.shape)}; it must hold integers, along an "
                         "axis for tokens")
    return tensor


def _begins(positions) -> list[int]:
    step = positions[1:] - positions[:-1]
    begins = [0, *(torch.nonzero(step != 1).flatten() + 1).tolist()]
    moving = torch.nonzero(step != 0).flatten()
    tail = int(moving[-1]) + 1 if len(moving) else 0  # positions from here on are equal
    if len(positions) - tail < 2:
        return begins
    return [begin for begin in begins if begin <= tail] + ([] if tail in begins else [tail + 1])
