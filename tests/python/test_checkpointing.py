# SPDX-License-Identifier: Apache-2.0
"""Recomputation, batches in flight and accumulation; and calls in another order on one rank."""

import contextlib
import functools

import pytest
import torch
import usp_attention as usp
from reference import fill, random_qkv
from torch.utils.checkpoint import checkpoint

LAYERS = 3
CU = {"A": (0, 5, 17), "B": (0, 13)}


class Model(torch.nn.Module):
    def __init__(self, how=None):
        super().__init__()
        self.how = how
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(32, 64, dtype=torch.float64) for _ in range(LAYERS))
        fill(self, seed=5)

    def layer(self, number, x, batch):
        q, k, v = self.qkv[number](x).view(*x.shape[:2], 8, 8).split((4, 2, 2), 2)
        return x + usp.attention(q, k, v, batch, layer=number).flatten(2)

    def forward(self, x, batch):
        for number in range(LAYERS):
            call = functools.partial(self.layer, number)
            x = call(x, batch) if self.how is None else self.how(call, x, batch)
        return x


WAYS = {
    "none": None,
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "not reentrant": functools.partial(checkpoint, use_reentrant=False),
    "attention kept": functools.partial(checkpoint, use_reentrant=False, context_fn=usp.keep_attention),
}
FORWARDS = {"none": 1, "reentrant": 2, "not reentrant": 2, "attention kept": 1}


def sample(batch, name):
    x, _, _, _ = random_qkv(1, CU[name][-1], 1, 1, 32, 32, seed=ord(name))
    return x[:, batch.local_tokens, 0].requires_grad_()


def count_forwards(mesh, calls):
    """Counts usp_attend of a mesh in `calls`."""
    from usp_attention._library import lib

    inner = mesh.call

    def call(function, *arguments):
        calls.append(function is lib().usp_attend)
        inner(function, *arguments)

    mesh.call = call


@pytest.mark.parametrize("ring,ulysses", [(2, 2), (1, 1)])
def test_gradients_equal_those_without(ring, ulysses):
    def body(mesh):
        expected = None
        calls = []
        count_forwards(mesh, calls)
        for way, how in WAYS.items():
            calls.clear()
            model = Model(how)
            batches = {name: mesh.batch(cu_seqlens=cu) for name, cu in CU.items()}
            outs = [model(sample(batches[name], name), batches[name]) for name in "AB"]  # both in flight
            for out in outs:
                out.square().sum().backward()
            assert sum(calls) == 2 * LAYERS * FORWARDS[way], way
            gradients = [p.grad for p in model.parameters()]
            expected = expected or gradients
            for found, without in zip(gradients, expected):
                assert torch.equal(found, without), way

    usp.run_threads(ring * ulysses, body, ring=ring, ulysses=ulysses)


def test_accumulation():
    def body(mesh):
        summed, parts = Model(), []
        for name in "ABA":
            batch = mesh.batch(cu_seqlens=CU[name])
            summed(sample(batch, name), batch).square().sum().backward()
            alone = Model()
            alone(sample(batch, name), batch).square().sum().backward()
            parts.append([p.grad for p in alone.parameters()])
        for found, expected in zip(summed.parameters(), zip(*parts)):
            torch.testing.assert_close(found.grad, sum(expected), rtol=1e-12, atol=1e-12)

    usp.run_threads(2, body, ulysses=2)


def test_exchanges_are_as_planned():
    from usp_attention._plans import Shape, Terms

    def body(mesh):
        batch = mesh.batch(tokens=64)
        q, k, v, d_out = (x[:, batch.local_tokens] for x in random_qkv(1, 64, 4, 2, 8, 8))
        usp.attention(q.requires_grad_(), k, v, batch).backward(d_out)
        for backward in (False, True):
            record = mesh.exchanged(batch, Terms(True, None, None, None, 0.0, False, False),
                                    Shape(1, 4, 2, 8, 8, "fp64"), backward)
            assert record["equal"] == 1 and record["executed_sent"] == record["planned_sent"] > 0
        memory = mesh.memory(batch)
        assert memory["workspace_bytes"] >= memory["planned_workspace_bytes"] > 0 < memory["saved_bytes_per_forward"]

    usp.run_threads(4, body, ring=2, ulysses=2)


def test_a_mesh_for_forward_alone_holds_less():
    held, outs = {}, {}

    def body(mesh):
        batch = mesh.batch(tokens=64)
        q, k, v, d_out = (x[:, batch.local_tokens] for x in random_qkv(1, 64, 4, 2, 8, 8))
        out = usp.attention(q.requires_grad_(), k, v, batch)
        alone = mesh.options.forward_only
        held[alone, mesh.rank], outs[alone, mesh.rank] = mesh.memory(batch), out.detach()
        if alone:
            with pytest.raises(usp.UsageError, match="forward alone"):
                out.backward(d_out)

    for alone in (False, True):
        usp.run_threads(4, body, ring=2, ulysses=2, forward_only=alone)
    for rank in range(4):
        assert torch.equal(outs[True, rank], outs[False, rank])
        for bytes_ in ("workspace_bytes", "planned_workspace_bytes"):
            assert held[True, rank][bytes_] < held[False, rank][bytes_]


def test_other_order_on_one_rank_is_an_error():
    def body(mesh):
        batch = mesh.batch(tokens=16)
        q, k, v, _ = (x[:, batch.local_tokens] for x in random_qkv(1, 16, 4, 2, 8, 8))
        for layer in (0, 1) if mesh.rank != 1 else (1, 0):
            usp.attention(q, k, v, batch, layer=layer)

    with pytest.raises(usp.DisagreementError, match="layer") as error:
        usp.run_threads(4, body, ring=2, ulysses=2)
    assert error.value.ranks == (1,)


def test_other_rules_on_one_rank_are_an_error():
    def body(mesh):
        batch = mesh.batch(tokens=16)
        q, k, v, _ = (x[:, batch.local_tokens] for x in random_qkv(1, 16, 4, 2, 8, 8))
        usp.attention(q, k, v, batch, window=3 + mesh.rank // 3, softcap=2.5 if mesh.rank == 1 else None)

    text = r"different window: most with 3, rank\(s\) 3 with 4; softcap: most with None, rank\(s\) 1 with 2.5; every"
    with pytest.raises(usp.DisagreementError, match=text) as error:
        usp.run_threads(4, body, ring=2, ulysses=2)
    assert (error.value.field, error.value.ranks) == ("window", (3,))


def test_other_documents_on_one_rank_are_an_error():
    def body(mesh):
        mesh.batch(cu_seqlens=(0, 4 + (mesh.rank == 2), 16))

    with pytest.raises(usp.DisagreementError) as error:
        usp.run_threads(4, body, ring=2, ulysses=2)
    assert (error.value.field, error.value.ranks) == ("batch", (2,))


@contextlib.contextmanager
def kept_region(body):
    """Leaves and the result of `body(batch, q, k, v)` of one rank within a region that keeps attention."""
    with usp.Mesh.create() as mesh:
        q, k, v, _ = random_qkv(1, 17, 4, 2, 8, 8)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        yield leaves, checkpoint(functools.partial(body, mesh.batch(cu_seqlens=(0, 5, 17))), *leaves, use_reentrant=False,
                                 context_fn=usp.keep_attention)


def test_kept_attention_survives_a_second_backward():
    def body(batch, q, k, v):
        return usp.attention(q.sin(), k, v, batch).square()

    with kept_region(body) as (leaves, out):
        first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        for a, b in zip(first, torch.autograd.grad(out.sum(), leaves)):
            assert torch.equal(a, b)


def test_kept_attention_is_that_of_the_same_call():
    windows = iter((4, 3))

    def other_rules(batch, q, k, v):
        return usp.attention(q.sin(), k, v, batch, window=next(windows)).square()

    def in_place(batch, q, k, v):
        return usp.attention(q.sin(), k, v, batch).mul_(2).square()

    for body, why in ((other_rules, "not that of the forward pass"), (in_place, "changed in place")):
        with kept_region(body) as (_, out), pytest.raises(usp.UsageError, match=why):
            out.sum().backward()
