# SPDX-License-Identifier: Apache-2.0
"""Models that would compute something else on a shard, refused by name."""

from __future__ import annotations

import warnings

from .. import _check
from ..errors import UsageError

_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
# Position embeddings that choose frequencies by the greatest position in the call, which is the shard's.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


def check_model(model) -> None:
    """Raises UsageError for what usp.hf does not support; warns of what means something else."""
    name = type(model).__name__
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise UsageError(f"model is {_check.shown(model)}; it must be a model of transformers, before it is wrapped (DDP): "
                         "call usp.attention in the layers of another one")
    config = model.config.get_text_config(decoder=True)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UsageError(f"{name} is an encoder-decoder, whose cross attention usp.hf does not support")
    if getattr(model, "_is_stateful", False):
        raise UsageError(f"{name} has recurrent layers, which would start anew on each shard; they are not supported")
    _check_layers(name, config)
    _check_rope(name, config)
    _check_adapters(name, model)
    if not getattr(model, "_supports_attention_backend", False) or not model._can_set_attn_implementation():
        raise UsageError(f"{name} does not take its attention from transformers' AttentionInterface; use a model that "
                         "does, or call usp.attention in its layers")
    if getattr(config, "output_router_logits", False):
        warnings.warn("usp: the router's auxiliary loss is a mean over this rank's tokens, not over the sequence's",
                      stacklevel=3)


def _check_layers(name: str, config) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if other := sorted(kinds - _LAYER_TYPES):
        raise UsageError(f"{name} has layers of type {', '.join(other)}, which would attend or start anew on each shard "
                         f"alone; usp supports {', '.join(sorted(_LAYER_TYPES))}")


def _check_rope(name: str, config) -> None:
    for rope in _ropes(config):
        if rope in _LENGTH_DEPENDENT_ROPE:
            raise UsageError(f"{name} has RoPE of type {rope}, which chooses its frequencies by the greatest position "
                             "of the call: ranks would choose differently; use yarn, llama3, linear or default")


def _ropes(config) -> list[str]:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if not isinstance(parameters, dict):
        return []
    entries = [parameters, *(entry for entry in parameters.values() if isinstance(entry, dict))]
    return [entry.get("rope_type") or entry.get("type") or "default" for entry in entries]


def _check_adapters(name: str, model) -> None:
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        if getattr(adapter, "is_prompt_learning", False):
            raise UsageError(f"{name} has a PEFT adapter of prompt or prefix tuning, whose virtual tokens no rank "
                             "owns; use LoRA or another adapter of weights")


def check_replicas(model, average_over: int) -> None:
    """Gradients of a DTensor parameter (FSDP2) are averaged over its mesh: it must be all ranks that data and sequence
    share, on one axis. Two axes are read as replicas of shards (HSDP)."""
    from torch.distributed.tensor import DTensor

    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            if mesh.ndim != 1 or mesh.size() != average_over:
                raise UsageError(
                    f"{name} is sharded over a mesh of shape {tuple(mesh.shape)}, and gradients are to be averaged over "
                    f"{average_over} ranks; fully_shard the model on one axis over data x ring x ulysses: "
                    "mesh['data', 'ring', 'ulysses']._flatten(), or init_device_mesh(kind, (ranks,))")
            return
