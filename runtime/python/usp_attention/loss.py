# SPDX-License-Identifier: Apache-2.0
"""The mean over all valid tokens of a step, whichever ranks hold them."""

from __future__ import annotations

from . import _check
from ._library import import_torch
from .errors import UsageError

torch = import_torch()

_GROUP = torch.distributed.ProcessGroup if torch.distributed.is_available() else ()


def token_mean(local_sum, local_count, *, average_over=None):
    """(loss to backpropagate, loss to report) from this rank's sum of token losses and count of valid tokens.

    Gradients that are then averaged over W ranks (DDP, FSDP2) become those of the mean over all valid tokens of those
    ranks; a rank without a valid token gives 0 with a graph, and where no rank has one all losses are 0. average_over:
    the ProcessGroup that gradients are averaged over (collective over it), None for the default group; or W itself,
    where local_count already counts the tokens of all ranks (local; the reported loss is then this rank's share).
    """
    _check.instance("local_sum", local_sum, torch.Tensor, "a tensor of torch: this rank's sum of token losses")
    if not local_sum.is_floating_point() or local_sum.numel() != 1:
        raise UsageError(f"local_sum is {local_sum.dtype} of the shape {tuple(local_sum.shape)}; it is one floating-point "
                         "number: sum the losses of this rank's tokens")
    if isinstance(local_count, torch.Tensor):
        if local_count.numel() != 1:
            raise UsageError(f"local_count has the shape {tuple(local_count.shape)}; it is one number: count this rank's "
                             "valid tokens")
        local_count = local_count.reshape(())
    elif not _check.number("local_count", local_count, of="this rank's count of valid tokens") >= 0:
        raise UsageError(f"local_count is {local_count}; it counts this rank's valid tokens: 0 or more")
    ranks = averaged_ranks(average_over)
    count = torch.as_tensor(local_count, dtype=torch.float64, device=local_sum.device)
    reported = local_sum.detach().double().reshape(())
    if not isinstance(average_over, int):
        totals = sum_over(torch.stack([reported, count]), average_over)
        reported, count = totals[0], totals[1]
    count = count.clamp(min=1)
    return local_sum * (ranks / count).to(local_sum.dtype), (reported / count).to(local_sum.dtype)


def averaged_ranks(average_over) -> int:
    """W of a ProcessGroup, of the default one, or as given; 1 without torch.distributed."""
    if average_over is not None and not isinstance(average_over, _GROUP):
        return _check.integer("average_over", average_over, 1, of="the ranks that gradients are averaged over; or a "
                              "ProcessGroup, or None for the default one")
    return torch.distributed.get_world_size(average_over) if _distributed() else 1


def sum_over(values, average_over):
    """Collective: the sum of `values` over a group's ranks."""
    if not _distributed():
        return values
    device = torch.device("cuda", torch.cuda.current_device()) if _on_gpus(average_over) else torch.device("cpu")
    total = values.to(device)
    torch.distributed.all_reduce(total, group=average_over)
    return total.to(values.device)


def valid_of_all(valid: int, mesh_size: int, average_over) -> float:
    """Collective over a ProcessGroup: valid tokens of all meshes whose ranks are in it, each of which counted `valid`."""
    if isinstance(average_over, int) or not _distributed():
        return valid
    return sum_over(torch.tensor([float(valid)], dtype=torch.float64), average_over).item() / mesh_size


def _on_gpus(group) -> bool:
    return torch.distributed.get_backend(group) == "nccl"


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
