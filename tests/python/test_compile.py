# SPDX-License-Identifier: Apache-2.0
"""torch.compile: one graph for all batches and lengths, gradients as eager."""

import pytest
import torch
import usp_attention as usp
from reference import fill
from torch._dynamo.utils import counters


class Block(torch.nn.Module):
    """Attention layers between projections."""

    def __init__(self, layers: int = 2):
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(32, 64, dtype=torch.float64) for _ in range(layers))
        fill(self, seed=3)

    def forward(self, x, batch):
        for layer, project in enumerate(self.qkv):
            q, k, v = project(x).view(*x.shape[:2], 8, 8).split((4, 2, 2), 2)
            x = x + usp.attention(q, k, v, batch, window=3 + layer, layer=layer).flatten(2)
        return x


@pytest.mark.parametrize("backend,layers", [("aot_eager", 2), ("inductor", 1)])  # inductor compiles for long
def test_one_graph(backend, layers):
    torch._dynamo.reset()
    counters.clear()
    with usp.Mesh.create() as mesh:
        eager, compiled = Block(layers), Block(layers)
        run = torch.compile(compiled, fullgraph=True, dynamic=True, backend=backend)
        for step, tokens in enumerate((7, 11, 9, 7, 11)):
            batch = mesh.batch(cu_seqlens=(0, 2 + step % 3, tokens))
            x = torch.randn(1, tokens, 32, dtype=torch.float64)
            for model, call in ((eager, eager), (compiled, run)):
                model.zero_grad()
                call(x, batch).square().sum().backward()
            for a, b in zip(eager.parameters(), compiled.parameters()):
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


def test_ranks_compile_for_themselves():
    """A model on each of four ranks of one process, and a second mesh beside the first."""
    torch._dynamo.reset()
    models = {}

    def body(mesh):
        model = models.setdefault(mesh.rank, Block())
        run = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for cu in ((0, 4, 19), (0, 23)):
            batch = mesh.batch(cu_seqlens=cu)
            x = torch.linspace(-1, 1, 32 * cu[-1], dtype=torch.float64).sin().view(1, -1, 32)[:, batch.local_tokens]
            gradients = []
            for call in (model, run):
                model.zero_grad()
                call(x, batch).square().sum().backward()
                gradients.append([p.grad.clone() for p in model.parameters()])
            for a, b in zip(*gradients):
                torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10)

    for degrees in (dict(ring=2, ulysses=2), dict(ring=2)):
        usp.run_threads(degrees["ring"] * degrees.get("ulysses", 1), body, **degrees)


def test_kept_attention_runs_forward_once():
    """Within compiled code the policy of selective checkpointing keeps it."""
    from torch.utils.checkpoint import checkpoint
    from usp_attention._library import lib

    torch._dynamo.reset()
    model = Block(1)

    def kept(x, batch):
        return checkpoint(model, x, batch, use_reentrant=False, context_fn=usp.keep_attention)

    with usp.Mesh.create() as mesh:
        batch, calls, inner = mesh.batch(cu_seqlens=(0, 5, 17)), [], mesh.call
        mesh.call = lambda function, *arguments: (calls.append(function is lib().usp_attend), inner(function, *arguments))[1]
        x = torch.linspace(-1, 1, 17 * 32, dtype=torch.float64).sin().view(1, 17, 32)
        gradients = []
        for call in (model, kept, torch.compile(kept, fullgraph=True, backend="aot_eager")):
            calls.clear()
            model.zero_grad()
            call(x, batch).square().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            assert sum(calls) == 1, call
        for other in gradients[1:]:
            for a, b in zip(gradients[0], other):
                torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10)
