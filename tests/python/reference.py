# SPDX-License-Identifier: Apache-2.0
"""Dense attention in fp64 by the formula, and helpers to compare with it."""

import torch


def rms_ratio(found, expected, floor: float = 0.1) -> float:
    """RMS of the difference over RMS of the expected, at least `floor` (inputs are of unit size, and what should be
    zero is only nearly so)."""
    if expected.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=floor))


def visible(cu_seqlens, causal=True, window=None, chunk=None):
    """[tokens, tokens]: whether query i sees key j."""
    tokens = cu_seqlens[-1]
    position = torch.arange(tokens)
    document = torch.bucketize(position, torch.tensor(cu_seqlens[1:]), right=True)
    mask = document[:, None] == document[None, :]
    distance = position[:, None] - position[None, :]
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= distance < window
    if chunk is not None:
        mask &= position[:, None] // chunk == position[None, :] // chunk
    return mask


def dense_attention(q, k, v, mask, scale=None, softcap=None, sinks=None):
    """[B, T, H, D] in fp64: (out, lse). A query without a visible key gives 0."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], -1)
    lse = torch.logsumexp(logits, -1)
    weights = torch.exp(logits - lse[..., None])[..., : k.shape[1]]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse.transpose(1, 2)


def random_qkv(batch, tokens, heads, kv_heads, dim, dim_v, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def tensor(count, width):
        return torch.randn(batch, tokens, count, width, generator=generator, dtype=torch.float64).to(dtype)

    return tensor(heads, dim), tensor(kv_heads, dim), tensor(kv_heads, dim_v), tensor(heads, dim_v)


def fill(module, seed: int):
    """Small random parameters, the same on every thread: torch's own generator is shared by all of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values / parameter.shape[-1] ** 0.5)
