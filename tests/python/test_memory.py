# SPDX-License-Identifier: Apache-2.0
"""What a graph keeps of an attention call from forward to backward, byte for byte, by the formula of the README."""

import pytest
import torch
import usp_attention as usp
from reference import random_qkv

BATCH, TOKENS, HEADS, KV_HEADS, DIM, DIM_V = 2, 64, 8, 4, 16, 8


def kept_bytes(run, *parameters):
    """(what `run` returned, bytes of the memory that its graph keeps beside parameters), memory of several tensors
    counted once."""
    seen = {x.untyped_storage().data_ptr() for x in parameters}
    total = 0

    def pack(x):
        nonlocal total
        if x.untyped_storage().data_ptr() not in seen:
            seen.add(x.untyped_storage().data_ptr())
            total += x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return run(), total


def formula(rows, ulysses, dtype, kv_heads=KV_HEADS):
    """Of rows of a rank: q, k, v, the log-sum-exp, and the output, which the projection behind it keeps; where heads are
    exchanged, the output a second time, as backward reads it (on the CPU in fp32)."""
    exchanged = 4 * HEADS * DIM_V if ulysses > 1 else 0
    return rows * (dtype.itemsize * (HEADS * DIM + kv_heads * (DIM + DIM_V) + HEADS * DIM_V) + 4 * HEADS + exchanged)


def layer(attend, weight):
    """Attention and the output projection."""
    return lambda: torch.nn.functional.linear(attend().flatten(2), weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keep_entry", [True, False])
@pytest.mark.parametrize("ring,ulysses", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_kept_bytes(ring, ulysses, keep_entry, dtype):
    kept = {}

    def body(mesh):
        batch = mesh.batch(tokens=TOKENS)
        q, k, v, _ = (x[:, batch.local_tokens].to(dtype).requires_grad_()
                      for x in random_qkv(BATCH, TOKENS, HEADS, KV_HEADS, DIM, DIM_V))
        weight = torch.randn(3, HEADS * DIM_V, dtype=dtype, requires_grad=True)
        out, kept[mesh.rank] = kept_bytes(layer(lambda: usp.attention(q, k, v, batch), weight), weight, batch.batch_id)
        out.sum().backward()
        assert all(x.grad is not None for x in (q, k, v, weight))

    usp.run_threads(ring * ulysses, body, ring=ring, ulysses=ulysses, keep_entry=keep_entry)
    assert set(kept.values()) == {formula(BATCH * TOKENS // (ring * ulysses), ulysses, dtype)}


def test_a_ring_keeps_what_attention_of_torch_keeps():
    """Of the same rows: what PyTorch's context parallel holds."""
    q, k, v, _ = (x.bfloat16().requires_grad_() for x in random_qkv(BATCH, TOKENS // 2, HEADS, HEADS, DIM, DIM))
    weight = torch.randn(3, HEADS * DIM, dtype=torch.bfloat16, requires_grad=True)

    def attend():
        out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
        return out.transpose(1, 2)

    _, of_torch = kept_bytes(layer(attend, weight), weight)
    kept = {}

    def body(mesh):
        batch = mesh.batch(tokens=TOKENS)
        parts = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        _, kept[mesh.rank] = kept_bytes(layer(lambda: usp.attention(*parts, batch), weight), weight, batch.batch_id)

    usp.run_threads(2, body, ring=2)
    assert set(kept.values()) == {of_torch}
