# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of the families that the package names, and what unsharded attention they are compared with."""

import torch
import transformers
from reference import fill

SMALL = dict(vocab_size=53, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=256, attention_dropout=0.0, pad_token_id=0,
             bos_token_id=1, eos_token_id=2)
FULL_AND_SLIDING = ["full_attention", "sliding_attention"]


def _llama4(**kwargs):
    return transformers.Llama4TextConfig(**{
        **SMALL, "intermediate_size": 32, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1,
        "attention_chunk_size": 6, "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
        "moe_layers": [], **kwargs})


FAMILIES = {
    "llama": ("LlamaForCausalLM", lambda: transformers.LlamaConfig(**SMALL)),
    "qwen3": ("Qwen3ForCausalLM", lambda: transformers.Qwen3Config(
        **SMALL, use_sliding_window=True, sliding_window=5, layer_types=FULL_AND_SLIDING)),
    "gemma2": ("Gemma2ForCausalLM", lambda: transformers.Gemma2Config(
        **SMALL, sliding_window=5, query_pre_attn_scalar=5, attn_logit_softcapping=2.0, layer_types=FULL_AND_SLIDING)),
    "gemma3": ("Gemma3ForCausalLM", lambda: transformers.Gemma3TextConfig(
        **SMALL, sliding_window=5, query_pre_attn_scalar=5, layer_types=FULL_AND_SLIDING)),
    "mistral": ("MistralForCausalLM", lambda: transformers.MistralConfig(**SMALL, sliding_window=5)),
    "phi3": ("Phi3ForCausalLM", lambda: transformers.Phi3Config(
        **{k: v for k, v in SMALL.items() if k != "head_dim"}, sliding_window=5)),
    "gpt_oss": ("GptOssForCausalLM", lambda: transformers.GptOssConfig(
        **SMALL, sliding_window=5, num_local_experts=2, num_experts_per_tok=1, layer_types=FULL_AND_SLIDING,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    "deepseek_v3": ("DeepseekV3ForCausalLM", lambda: transformers.DeepseekV3Config(
        **{k: v for k, v in {**SMALL, "num_key_value_heads": 4}.items() if k != "head_dim"}, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
        v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        moe_intermediate_size=16)),
    "llama4": ("Llama4ForCausalLM", _llama4),
}
# Attention that the unsharded model runs with a ready-made mask.
REFERENCE = {"gemma2": "eager", "gpt_oss": "eager"}


def make(family: str, dtype=torch.float64, seed: int = 1, **changes):
    name, config = FAMILIES[family]
    config = config()
    for key, value in changes.items():
        setattr(config, key, value)
    config._attn_implementation = REFERENCE.get(family, "sdpa")
    config._experts_implementation = "eager"  # the others have no fp64
    with torch.device("cpu"):
        model = getattr(transformers, name)(config)
    fill(model, seed)
    return model.to(dtype).train()
