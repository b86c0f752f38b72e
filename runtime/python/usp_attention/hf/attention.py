# SPDX-License-Identifier: Apache-2.0
"""Attention and mask of transformers under one name.

The mask function runs once per forward and mask kind, outside checkpointed layers, and returns which batch and which
rule the layers attend by; the attention function takes its batch from that. So recomputation and microbatches in
flight see their own batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading

from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from .. import _check
from .._library import import_torch
from ..batch import Batch, state_of
from ..errors import UsageError
from ..mesh import Mesh
from ..op import attend

torch = import_torch()

OFF = "for generation and other calls without a sequence-parallel batch use: with sp.off(): ..."

# Keyword arguments that models pass on and that say nothing about which pairs attend.
_HARMLESS = {"position_ids", "use_cache", "shift_labels", "labels", "num_items_in_batch", "output_router_logits",
             "output_hidden_states", "return_dict", "cache_position", "logits_to_keep", "position_embeddings"}


@dataclasses.dataclass(frozen=True, eq=False)
class UspMask:
    """Which pairs the layers of one kind attend: what transformers calls the attention mask of a layer."""

    batch_id: "torch.Tensor"
    causal: bool
    window: int | None
    chunk: int | None


class Registration:
    """A mesh as an attention implementation of transformers: `model.set_attn_implementation(registration.name)`.

    batch: of the forward passes that follow; `prepare` sets it from what its loader yields.
    """

    def __init__(self, mesh: Mesh, name: str, layer_ids: bool = True):
        self.mesh, self.name, self.layer_ids = mesh, name, layer_ids
        self.batch: Batch | None = None

    def __repr__(self) -> str:
        return f"Registration({self.name!r}, {self.mesh!r})"

    # ---- once per forward and kind of mask --------------------------------------------------------------------

    def mask(self, batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
             mask_function=causal_mask_function, attention_mask=None, local_size: int | None = None, config=None,
             use_vmap: bool = False, **_unused) -> UspMask:
        """transformers' mask interface."""
        batch = self.batch
        if batch is None:
            raise UsageError("the model was called without a batch of usp: pass what sp.loader yields, model(**part); "
                             + OFF)
        if q_length != kv_length or _nonzero(q_offset) or _nonzero(kv_offset):
            raise UsageError(f"the model attends {kv_length} keys with {q_length} queries: a KV cache holds one rank's "
                             f"tokens only; set use_cache=False; {OFF}")
        if use_vmap:
            raise UsageError("the model overlays a mask function of its own, which usp would not see; it is not "
                             "supported")
        _refuse_padding(attention_mask)
        causal = self._is_causal(mask_function, q_length, config)
        window, chunk = _local_rule(config, local_size)
        if not causal and (window is not None or chunk is not None):
            raise UsageError("the model attends a window or chunk in both directions, which usp does not support")
        return UspMask(batch.batch_id, causal, window, chunk)

    @staticmethod
    def _is_causal(mask_function, length: int, config) -> bool:
        """By the pairs (i, i + 1): none is visible under a causal mask, every one without it, some under an overlay.
        Compiled code cannot look: it goes by the function and the config, and overlays are not seen."""
        if torch.compiler.is_compiling() or length < 2:
            return mask_function is not bidirectional_mask_function and getattr(config, "is_causal", True)
        ahead = torch.arange(length - 1)
        zero = torch.zeros((), dtype=torch.int64)
        seen = mask_function(zero, zero, ahead, ahead + 1)
        seen = torch.as_tensor(seen).expand(length - 1)
        if not bool(seen.any()):
            return True
        if bool(seen.all()):
            return False
        raise UsageError("some tokens see the next one and others do not: blocks of tokens (images) that attend in both "
                         "directions are not supported")

    # ---- once per layer -----------------------------------------------------------------------------------------

    def attention(self, module, query, key, value, attention_mask, scaling: float | None = None, dropout: float = 0.0,
                  softcap: float | None = None, s_aux=None, is_causal: bool | None = None, **kwargs):
        """transformers' attention interface: query [B, Hq, n, D], key and value [B, Hkv, n, D] unrepeated."""
        mask = attention_mask
        if not isinstance(mask, UspMask):
            what = "no mask" if mask is None else f"a mask of type {type(mask).__name__}"
            raise UsageError(
                f"{type(module).__name__} was given {what} instead of usp's: ready-made masks (4D tensors) cannot be "
                "cut, and a part that computes masks of its own (a vision tower) keeps its own attention")
        if is_causal is not None and is_causal != mask.causal:
            raise UsageError(f"{type(module).__name__} asks for is_causal={is_causal} and has a mask that is "
                             f"{'' if mask.causal else 'not '}causal; it is not supported")
        if torch.compiler.is_compiling() and mask.causal and getattr(module, "is_causal", True) is False:
            raise UsageError(f"{type(module).__name__} attends in both directions, which compiled code cannot tell from "
                             "its mask; run it without torch.compile")
        self._check_kwargs(module, mask, kwargs)
        layer = (getattr(module, "layer_idx", None) or 0) if self.layer_ids else 0
        if dropout and not self.layer_ids:
            raise UsageError("dropout needs the numbers of layers, which layer_ids=False leaves out; set "
                             "attention_dropout to 0, or keep layer_ids")
        out = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask.batch_id,
                     causal=mask.causal, window=mask.window, scale=scaling, softcap=softcap, sinks=s_aux,
                     dropout=dropout, layer=layer, chunk=mask.chunk)
        return out, None

    @staticmethod
    def _check_kwargs(module, mask: UspMask, kwargs: dict) -> None:
        """Refuses by name what would change which pairs attend."""
        for name, value in kwargs.items():
            if name in _HARMLESS or value is None or value is False:
                continue
            if name == "sliding_window":
                if value != mask.window:
                    raise UsageError(f"{type(module).__name__} asks for a window of {value} and its mask has "
                                     f"{mask.window}; the layer and its mask must agree")
            elif name in ("cu_seq_lens_q", "cu_seq_lens_k"):
                _same_documents(name, value, mask.batch_id)
            elif name in ("max_length_q", "max_length_k"):
                pass  # follows from the documents
            elif isinstance(value, torch.Tensor) or value is True:
                raise UsageError(f"{type(module).__name__} passes {name} to its attention, which usp does not know; it "
                                 "is not supported")
        if mask.window is not None and "sliding_window" in kwargs and kwargs["sliding_window"] is None:
            raise UsageError(f"the mask of {type(module).__name__} has a window of {mask.window} and the layer none; "
                             "the layer and its mask must agree")


_registering = threading.Lock()


def register(mesh: Mesh, *, name: str | None = None, layer_ids: bool = True) -> Registration:
    """Local: a mesh as attention and mask of transformers under one name ("usp", "usp2", ...).

    layer_ids False: layers are not numbered, for compiling layer by layer; attention dropout is refused then. Raises
    UsageError for a name in use.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    _check.instance("mesh", mesh, Mesh, "a Mesh")
    _check.flag("layer_ids", layer_ids)
    if name is not None:
        _check.instance("name", name, str, "a word, or None")
    with _registering:
        used = set(ALL_ATTENTION_FUNCTIONS.valid_keys())
        if name is None:
            names = itertools.chain(["usp"], (f"usp{i}" for i in itertools.count(2)))
            name = next(word for word in names if word not in used)
        elif name in used:
            raise UsageError(f"transformers has an attention named {name!r} already; give another name, or none")
        made = Registration(mesh, name, layer_ids)

        def attention(module, query, key, value, attention_mask, **kwargs):
            return made.attention(module, query, key, value, attention_mask, **kwargs)

        def mask(*args, **kwargs):
            return made.mask(*args, **kwargs)

        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, mask)
    return made


def _nonzero(offset) -> bool:
    return not (isinstance(offset, int) and offset == 0)


def _refuse_padding(attention_mask) -> None:
    if attention_mask is None:
        return
    if torch.compiler.is_compiling() or not bool(attention_mask.all()):
        raise UsageError("the model was given an attention_mask: usp drops padding before it cuts a sample and masks "
                         "none; pass what sp.loader yields, which has no attention_mask")


def _local_rule(config, local_size: int | None) -> tuple[int | None, int | None]:
    """(window, chunk) of a local_size, by what the config calls it."""
    if local_size is None:
        return None, None
    chunk, window = getattr(config, "attention_chunk_size", None), getattr(config, "sliding_window", None)
    if local_size == chunk == window:
        raise UsageError(f"attention_chunk_size and sliding_window are both {chunk}: usp cannot tell which of them a "
                         "layer means; they must differ")
    return (None, local_size) if local_size == chunk else (local_size, None)


def _same_documents(name: str, value, batch_id) -> None:
    known = list(state_of(int(batch_id)).cu_seqlens)
    if [int(border) for border in value] != known:
        raise UsageError(f"the model was given {name} of other documents than the batch's; leave it out: the batch "
                         "knows them")
