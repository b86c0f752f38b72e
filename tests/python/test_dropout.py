# SPDX-License-Identifier: Apache-2.0
"""Dropout drops the same pairs on every mesh and in recomputation, and others in the next batch and layer."""

import torch
import usp_attention as usp
from reference import random_qkv
from torch.utils.checkpoint import checkpoint

TOKENS, DROPOUT = 12, 0.4
Q, K, _, _ = random_qkv(1, TOKENS, 4, 2, 8, 8)
V = torch.eye(TOKENS, dtype=torch.float64)[None, :, None].repeat(1, 1, 2, 1)  # out is the matrix of weights


def run(ranks, calls, **mesh):
    """The weights [TOKENS, 4, TOKENS] of each of `calls(batch)`, put together from all ranks."""
    found = {}

    def body(mesh):
        batches = [mesh.batch(tokens=TOKENS, seed=seed) for seed in (5, 5, 6)]
        rows = batches[0].local_tokens
        mine = [x[:, rows] for x in (Q, K, V)]
        for name, call in calls.items():
            found.setdefault(name, torch.zeros(TOKENS, 4, TOKENS, dtype=torch.float64))[rows] = call(mine, batches)[0]

    usp.run_threads(ranks, body, **mesh)
    return found


CALLS = {
    "first": lambda qkv, b: usp.attention(*qkv, b[0], dropout=DROPOUT),
    "same seed": lambda qkv, b: usp.attention(*qkv, b[1], dropout=DROPOUT),
    "next batch": lambda qkv, b: usp.attention(*qkv, b[2], dropout=DROPOUT),
    "next layer": lambda qkv, b: usp.attention(*qkv, b[0], dropout=DROPOUT, layer=1),
    "none": lambda qkv, b: usp.attention(*qkv, b[0]),
}


def test_same_pairs_on_every_mesh():
    alone = run(1, CALLS)
    kept = alone["first"] > 0
    visible = alone["none"] > 0
    assert 0.45 < kept[visible].double().mean() < 0.75
    torch.testing.assert_close(alone["first"][kept], alone["none"][kept] / (1 - DROPOUT))
    assert torch.equal(alone["first"], alone["same seed"])
    for other in ("next batch", "next layer"):
        assert not torch.equal(kept, alone[other] > 0)
    for mesh in (dict(ring=2), dict(ulysses=2), dict(ring=2, ulysses=2), dict(ring=3)):
        found = run(mesh.get("ring", 1) * mesh.get("ulysses", 1), CALLS, **mesh)
        for name in CALLS:
            assert torch.equal(found[name] > 0, alone[name] > 0), (name, mesh)


def test_recomputation_drops_the_same():
    def body(mesh):
        batch = mesh.batch(tokens=TOKENS)
        gradients = []
        for use_reentrant in (None, True, False):
            q = Q[:, batch.local_tokens].clone().requires_grad_()
            mine = (K[:, batch.local_tokens], V[:, batch.local_tokens])

            def layer(q):
                return usp.attention(q * 2, *mine, batch, dropout=DROPOUT, layer=3)

            out = layer(q) if use_reentrant is None else checkpoint(layer, q, use_reentrant=use_reentrant)
            (out * torch.arange(out.numel()).view_as(out).sin()).sum().backward()
            gradients.append(q.grad)
        assert gradients[0].abs().sum() > 0
        for other in gradients[1:]:
            assert torch.equal(gradients[0], other)

    usp.run_threads(2, body)


def test_another_seed_for_each_batch():
    def body(mesh):
        qkv = [x[:, mesh.batch(tokens=TOKENS).local_tokens] for x in (Q, K, V)]
        kept = [usp.attention(*qkv, mesh.batch(tokens=TOKENS), dropout=DROPOUT) > 0 for _ in range(2)]
        assert not torch.equal(*kept)

    usp.run_threads(2, body, ulysses=2)
