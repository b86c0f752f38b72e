# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing that keeps attention: recomputation of a layer does not run its collective a second time."""

from __future__ import annotations

from ._kept import KeptCalls
from ._library import import_torch

torch = import_torch()
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts  # noqa: E402: after import_torch

from .op import operators_are_watched  # noqa: E402: after import_torch


def keep_attention():
    """Local. The context_fn of torch.utils.checkpoint, use_reentrant False, that keeps what attention returned and saved
    and recomputes the rest.

        model.gradient_checkpointing_enable(dict(use_reentrant=False, context_fn=usp.keep_attention))

    Attention is then run forward once per step instead of twice, also in compiled code. Beside its input a layer keeps
    what attention keeps without checkpointing, except that q, k and v of a ring are recomputed.
    """
    if operators_are_watched():
        return create_selective_checkpoint_contexts(_policy)
    calls = KeptCalls()
    return calls.recording(), calls.replaying()


def _policy(_context, operator, *_args, **_kwargs):
    kept = operator == torch.ops.usp.attend.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
