# SPDX-License-Identifier: Apache-2.0
"""usp.attention on threads beside dense attention in fp64 with autograd: outputs and all gradients."""

import itertools

import pytest
import torch
import usp_attention as usp
from pairwise import pairwise
from reference import dense_attention, random_qkv, rms_ratio, visible

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}
MESHES = [(r, u) for r, u in itertools.product(range(1, 9), repeat=2) if r * u <= 8]
FACTORS = {
    "mesh": MESHES,
    "dtype": list(BOUNDS),
    "mask": [(False, None), (True, None), (True, 1), (True, 5)],
    "length": [1, 7, "P-1", 29],
    "documents": ["one", "packed", "ones"],
    "heads": [(8, 8), (8, 2), (8, 1), (9, 3)],
    "dims": [(16, 16), (16, 8)],
    "batch": [1, 2],
    "sinks": [False, True],
    "softcap": [None, 2.0],
    "strided": [False, True],
    "layout": ["contiguous", "zigzag", "striped", "balanced"],
    "method": ["ring", "ring_direct", "all_gather_kv"],
    "keep_entry": [True, False],
    "gated": [False, True],
}


def tokens_of(case):
    return max(case["mesh"][0] * case["mesh"][1] - 1, 1) if case["length"] == "P-1" else case["length"]


def borders(case):
    tokens = tokens_of(case)
    cuts = {"one": [], "packed": [tokens // 3, tokens // 3, tokens // 2], "ones": [1, tokens - 1]}[case["documents"]]
    return tuple(sorted({0, tokens, *(c for c in cuts if 0 < c < tokens)}))


CASES = pairwise(FACTORS)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_beside_dense_attention(case):
    causal, window = case["mask"]
    cu, dtype = borders(case), case["dtype"]
    q, k, v, d_out = random_qkv(case["batch"], cu[-1], *case["heads"], *case["dims"], dtype, seed=len(repr(case)))
    sinks = torch.linspace(-1, 2, case["heads"][0], dtype=torch.float64).to(dtype) if case["sinks"] else None
    leaves = [x.double().clone().requires_grad_() for x in (q, k, v) + ((sinks,) if case["sinks"] else ())]
    dense_sinks = leaves[3] if case["sinks"] else None
    out, lse = dense_attention(*leaves[:3], visible(cu, causal, window), softcap=case["softcap"], sinks=dense_sinks)
    out.backward(d_out.double())
    expected = {"out": out, "lse": lse, **{f"d{name}": leaf.grad for name, leaf in zip(("q", "k", "v"), leaves)}}
    found = {name: torch.full_like(x, float("nan")) for name, x in expected.items()}
    d_sinks = []

    def body(mesh):
        batch = mesh.batch(cu_seqlens=cu)
        rows = batch.local_tokens
        mine = [local(x[:, rows], case["strided"]).requires_grad_() for x in (q, k, v)]
        own_sinks = None if sinks is None else sinks.clone().requires_grad_()
        own_out, own_lse = usp.attention(*mine, batch, causal=causal, window=window, softcap=case["softcap"],
                                         sinks=own_sinks, return_lse=True)
        own_out.backward(local(d_out[:, rows], case["strided"]))
        assert own_out.is_contiguous() and own_out.dtype == dtype and not own_lse.requires_grad
        for name, own in zip(found, (own_out, own_lse, *(x.grad for x in mine))):
            found[name][:, rows] = own.detach().double()
        if own_sinks is not None:
            d_sinks.append(own_sinks.grad.double())

    gated = case["gated"] and case["method"] == "all_gather_kv" and case["mesh"][0] > 1
    usp.run_threads(case["mesh"][0] * case["mesh"][1], body, ring=case["mesh"][0], ulysses=case["mesh"][1],
                    layout=case["layout"], method=case["method"], keep_entry=case["keep_entry"], gated=gated,
                    gate_phases=min(case["mesh"][0], case["batch"] + 1) if gated else None)
    for name in expected:
        assert rms_ratio(found[name], expected[name]) <= BOUNDS[dtype], name
    if case["sinks"]:
        assert rms_ratio(sum(d_sinks), leaves[3].grad) <= BOUNDS[dtype]


def local(x, strided: bool):
    """The rows, contiguous or with gaps between rows and heads (as slices of a fused projection have)."""
    if not strided:
        return x.contiguous()
    wide = torch.full((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 3), float("nan"), dtype=x.dtype)
    wide[:, :, : x.shape[2], : x.shape[3]] = x
    return wide[:, :, : x.shape[2], : x.shape[3]].detach()


@pytest.mark.parametrize("ring,ulysses", [(4, 1), (1, 4), (2, 2)])
def test_only_remote_keys_count(ring, ulysses):
    """K and V of the own rows are zero for one rank at a time: a pass that reads its own in place of a peer's fails."""
    q, k, v, d_out = random_qkv(1, 16, 4, 4, 8, 8)
    for silent in range(4):
        rows = usp.layout_tokens("zigzag", 16, ring, ulysses, silent)
        kk, vv = k.clone(), v.clone()
        kk[:, list(rows)] = 0
        vv[:, list(rows)] = 0
        leaves = [x.requires_grad_() for x in (q.clone(), kk.clone(), vv.clone())]
        out, _ = dense_attention(*leaves, visible((0, 16)))
        out.backward(d_out)

        def body(mesh):
            batch = mesh.batch(tokens=16)
            own = batch.local_tokens
            mine = [x[:, own].clone().requires_grad_() for x in (q, kk, vv)]
            usp.attention(*mine, batch).backward(d_out[:, own])
            for x, whole in zip(mine, leaves):
                torch.testing.assert_close(x.grad, whole.grad[:, own], rtol=1e-10, atol=1e-12)

        usp.run_threads(4, body, ring=ring, ulysses=ulysses)


def test_gradcheck():
    def body(mesh):
        batch = mesh.batch(cu_seqlens=(0, 3, 7))
        q, k, v, _ = random_qkv(1, 7, 4, 2, 4, 3)
        sinks = torch.tensor([0.1, -0.5, 1.0, 0.3], dtype=torch.float64)
        leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
        assert torch.autograd.gradcheck(
            lambda q, k, v, sinks: usp.attention(q, k, v, batch, sinks=sinks, window=3, softcap=3.0), leaves)

    usp.run_threads(1, body)


def test_finite_differences_in_lock_step():
    """dLoss / d(one global coordinate): all ranks run forward with it moved, the owner's gradient says the same."""
    tokens, step = 11, 1e-5
    q, k, v, d_out = random_qkv(1, tokens, 4, 2, 4, 4)
    gradients = {name: torch.zeros_like(x) for name, x in zip("qkv", (q, k, v))}
    losses = {}

    def body(mesh):
        batch = mesh.batch(tokens=tokens)
        rows = batch.local_tokens

        def forward(tensors):
            return (usp.attention(*tensors, batch) * d_out[:, rows]).sum()

        mine = [x[:, rows].clone().requires_grad_() for x in (q, k, v)]
        forward(mine).backward()
        for name, x in zip("qkv", mine):
            gradients[name][:, rows] = x.grad
        with torch.no_grad():
            for which, token, head, sign in itertools.product(range(3), (0, 4, 10), (0, 1), (1, -1)):
                moved = [x.clone() for x in (q, k, v)]
                moved[which][0, token, head, 2] += sign * step
                losses[which, token, head, sign, mesh.rank] = float(forward([x[:, rows] for x in moved]))

    usp.run_threads(4, body, ring=2, ulysses=2)
    for which, token, head in itertools.product(range(3), (0, 4, 10), (0, 1)):
        slope = sum(sign * losses[which, token, head, sign, rank] for sign in (1, -1) for rank in range(4)) / (2 * step)
        assert abs(slope - float(gradients["qkv"[which]][0, token, head, 2])) < 1e-6


def test_chunks_are_documents_cut_again():
    """What chunked layers attend: multiples of the chunk from each sample row's start, documents kept."""
    from usp_attention.data import Cut
    from usp_attention.op import attend

    cu, rows, chunk = (0, 5, 9, 20), (0, 9), 4
    q, k, v, d_out = random_qkv(1, 20, 4, 2, 8, 8)
    row = torch.tensor([0] * 9 + [1] * 11)
    within = torch.cat([torch.arange(9), torch.arange(11)]) // chunk
    mask = visible(cu) & (row[:, None] == row[None]) & (within[:, None] == within[None])
    out, _ = dense_attention(q, k, v, mask)

    def body(mesh):
        batch = mesh.batch(cut=Cut(cu, rows, 20, 1))
        own = batch.local_tokens
        found = attend(*(x[:, own] for x in (q, k, v)), batch.batch_id, causal=True, window=None, scale=None,
                       softcap=None, sinks=None, dropout=0.0, layer=0, chunk=chunk)
        torch.testing.assert_close(found, out[:, own], rtol=1e-10, atol=1e-12)

    usp.run_threads(4, body, ring=2, ulysses=2)
