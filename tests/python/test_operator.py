# SPDX-License-Identifier: Apache-2.0
"""The operators as torch sees them: opcheck, autocast, mixed types, and what they refuse by name."""

import contextlib

import pytest
import torch
import usp_attention as usp
from reference import random_qkv
from usp_attention._plans import Plan, Recipe, Shape, Terms, most_tokens
from torch.utils._python_dispatch import TorchDispatchMode
from usp_attention.op import rules_of

CAUSAL = Terms(True, None, None, None, 0.0, False, False)


def alone(body):
    """One rank, in this thread."""
    with usp.Mesh.create() as mesh:
        body(mesh)


@pytest.fixture
def filled_memory():
    """What torch.empty gives is defined: opcheck compares all of `saved`, padding too."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_opcheck(filled_memory, with_sinks):
    def body(mesh):
        batch = mesh.batch(cu_seqlens=(0, 3, 7))
        q, k, v, d_out = random_qkv(1, 7, 4, 2, 8, 8)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True) if with_sinks else None
        without, saved_with_lse, saving = (rules_of(Terms(True, 3, 0.3, 2.0, 0.0, with_sinks, lse), layer=1, save=save)
                                           for lse, save in ((False, False), (True, True), (False, True)))
        torch.library.opcheck(torch.ops.usp.attend.default, (*leaves, sinks, batch.batch_id, saved_with_lse))
        q, k, v = (x.detach() for x in leaves)
        sinks = None if sinks is None else sinks.detach()
        torch.library.opcheck(torch.ops.usp.attend.default, (q, k, v, sinks, batch.batch_id, without))
        out, _, saved = torch.ops.usp.attend(q, k, v, sinks, batch.batch_id, saving)
        torch.library.opcheck(torch.ops.usp.attend_grad.default, (d_out, q, k, v, out, sinks, saved, batch.batch_id,
                                                                 saving))

    alone(body)


def test_autocast():
    def body(mesh):
        batch = mesh.batch(tokens=7)
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8, torch.float32)
        q.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = usp.attention(q, k, v, batch)
            assert out.dtype == torch.bfloat16
            usp.attention(q.bfloat16(), k, v, batch)  # what a linear layer gives, beside a norm's fp32
        out.sum().backward()
        assert q.grad.dtype == torch.float32

    alone(body)


def test_no_state_without_backward():
    def body(mesh):
        batch = mesh.batch(tokens=7)
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
        rules = (batch.batch_id, rules_of(CAUSAL))
        assert torch.ops.usp.attend(q, k, v, None, *rules)[2].numel() == 0
        q.requires_grad_()
        with torch.no_grad():
            assert not usp.attention(q, k, v, batch).requires_grad
        with pytest.raises(usp.UsageError, match="without state for backward"):
            torch.ops.usp.attend(q, k, v, None, *rules)[0].sum().backward()

    alone(body)


class Watched(TorchDispatchMode):
    """Runs what it sees, and notes the names of usp's operators."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "usp":
            self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("with_sinks", [False, True])
def test_plain_calls_and_operators_are_the_same(with_sinks):
    """Plain eager code skips the operators, which whoever watches them sees."""
    def body(mesh):
        batch = mesh.batch(cu_seqlens=(0, 3, 7))
        *qkv, d_out = random_qkv(1, 7, 4, 2, 8, 8)
        leaves = [x.requires_grad_() for x in (*qkv, *([torch.zeros(4, dtype=torch.float64)] * with_sinks))]
        watched, found = Watched(), []
        for how in (contextlib.nullcontext(), watched):
            with how:
                out, lse = usp.attention(*leaves[:3], batch, sinks=leaves[3] if with_sinks else None, window=2,
                                         return_lse=True)
                found.append((out.detach(), lse, *torch.autograd.grad(out, leaves, d_out)))
            assert "UspAttention" in type(out.grad_fn).__name__ or how is watched
        assert watched.seen == ["attend", "attend_grad"]
        assert all(torch.equal(plain, operator) for plain, operator in zip(*found)) and not found[0][1].requires_grad

    alone(body)


def test_other_derivatives_are_refused():
    from torch.autograd import forward_ad

    def body(mesh):
        batch = mesh.batch(tokens=7)
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
        with pytest.raises(usp.UsageError, match="torch.func"):
            torch.func.grad(lambda q: usp.attention(q, k, v, batch).sum())(q)
        with forward_ad.dual_level():
            usp.attention(q, k, v, batch)
            with pytest.raises(usp.UsageError, match="forward-mode"):
                usp.attention(q, forward_ad.make_dual(k, k), v, batch)

    alone(body)


@pytest.mark.parametrize("watch", [contextlib.nullcontext, Watched])
def test_second_order_raises(watch):
    def body(mesh):
        batch = mesh.batch(tokens=7)
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
        q.requires_grad_()
        with watch():
            (dq,) = torch.autograd.grad(usp.attention(q, k, v, batch).square().sum(), q, create_graph=True)
        with pytest.raises(usp.UsageError, match="second-order"):
            dq.sum().backward()

    alone(body)


def test_refusals():
    def body(mesh):
        batch = mesh.batch(tokens=7)
        q, k, v, _ = random_qkv(2, 7, 4, 2, 8, 8)

        def refused(match, *tensors, **rules):
            with pytest.raises(usp.UsageError, match=match):
                usp.attention(*(tensors or (q, k, v)), **{"batch": batch, **rules})

        refused(r"looks like \[batch, heads, rows, head_dim\]", q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        refused("has 6 rows, this rank's part of the batch 7", q[:, 1:], k[:, 1:], v[:, 1:])
        refused(r"\[batch, rows, heads, head_dim\]", q[0], k[0], v[0])
        refused("q is torch.float32", q.float(), k, v)
        refused("takes bfloat16", q.int(), k.int(), v.int())
        refused("do not go together", q[:1], k, v)
        refused("KV heads do not divide", q[:, :, :3], k, v)
        refused("a logit for each of all 4", sinks=torch.zeros(2, dtype=torch.float64))
        refused("window is given and causal is False", causal=False, window=3)
        refused("window is 0", window=0)
        refused("scale is 0", scale=0.0)
        refused("softcap is -1", softcap=-1.0)
        refused("dropout is 1", dropout=1.0)
        refused("attention has no batch", batch=None)
        with pytest.raises(usp.UsageError, match="vmap"):
            torch.vmap(lambda q: usp.attention(q, k, v, batch))(torch.stack([q, q]))
        with batch:
            assert torch.equal(usp.attention(q, k, v), usp.attention(q, k, v, batch))
        number = mesh.batch(tokens=7).batch_id.clone()  # a copy does not keep the batch
        with pytest.raises(usp.UsageError, match=f"batch {int(number)} is gone"):
            torch.ops.usp.attend(q, k, v, None, number, rules_of(CAUSAL))

    alone(body)


def test_dtensor_raises():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
        wrapped = DTensor.from_local(k, init_device_mesh("cpu", (1,)))
        with usp.Mesh.create() as mesh, pytest.raises(usp.UsageError, match=r"pass k.to_local\(\)"):
            usp.attention(q, wrapped, v, mesh.batch(tokens=7))
    finally:
        dist.destroy_process_group()


def test_graph_keeps_its_batch():
    """Neither backward nor recomputation needs the caller to hold the Batch."""
    import gc

    def body(mesh):
        q, k, v, d_out = random_qkv(1, 7, 4, 2, 8, 8)
        q.requires_grad_()
        out = usp.attention(q, k, v, mesh.batch(tokens=7))
        gc.collect()
        for _ in range(12):  # others that push it out of what the library keeps
            mesh.batch(tokens=7 + _)
        out.backward(d_out, retain_graph=True)
        first, q.grad = q.grad, None
        out.backward(d_out)
        assert torch.equal(first, q.grad)

    alone(body)


def test_closed_mesh():
    mesh = usp.Mesh.create()
    batch = mesh.batch(tokens=7)
    q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
    usp.attention(q, k, v, batch)
    assert mesh.memory()["workspace_bytes"] > 0
    mesh.close()
    mesh.close()
    with pytest.raises(usp.UsageError, match="closed"):
        usp.attention(q, k, v, batch)
    with pytest.raises(usp.UsageError, match="need 4 ranks"):
        usp.Mesh.create(ring=4)


def test_saved_state_that_moved():
    """Offloading gives backward other memory of the same content."""
    def body(mesh):
        batch = mesh.batch(tokens=29)
        q, k, v, d_out = random_qkv(1, 29, 4, 2, 8, 8)
        gradients = []
        for hooks in (lambda x: x, lambda x: torch.cat([x.new_zeros(x.numel()), x.flatten()])[x.numel():].view(x.shape)
                      if x.dtype == torch.uint8 else x):
            leaf = q.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(hooks, lambda x: x.clone() if x.dtype == torch.uint8 else x):
                out = usp.attention(leaf, k, v, batch)
            out.backward(d_out)
            gradients.append(leaf.grad)
        assert torch.equal(*gradients)

    alone(body)


def test_capacity():
    with usp.Mesh.create(capacity_tokens=8) as mesh:
        q, k, v, _ = random_qkv(1, 9, 4, 2, 8, 8)
        with pytest.raises(usp.InvalidInput, match="8"):
            usp.attention(q, k, v, mesh.batch(tokens=9))
        usp.attention(q[:, 1:], k[:, 1:], v[:, 1:], mesh.batch(tokens=8))


def test_known_documents_are_kept():
    """By content, whatever they are given as; each batch is one of its own."""
    with usp.Mesh.create() as mesh:
        batches = [mesh.batch(cu_seqlens=cu) for cu in ([0, 3, 7], torch.tensor([0, 3, 7]), (0, 3, 7), [0, 4, 7])]
        first, *known, other = (batch._state.documents for batch in batches)
        assert all(documents is first for documents in known) and other is not first
        assert len({int(batch.batch_id) for batch in batches}) == 4
        q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
        outs = [usp.attention(q, k, v, batch) for batch in batches]
        assert torch.equal(outs[0], outs[2]) and not torch.equal(outs[0], outs[3])


def test_plan_files_run(tmp_path):
    """A plan file by text and by path fixes the mesh; what contradicts it is refused."""
    plan = usp.plan("llama-3.1-8b", "dgx-h100", seq=65536, ring=4, ulysses=2, method="ring_direct")
    path = tmp_path / "plan.json"
    path.write_text(plan.plan_file())
    q, k, v, _ = random_qkv(1, 24, 4, 2, 8, 8)
    outs = []

    def body(mesh):
        assert (mesh.ring, mesh.ulysses, mesh.recipe.method) == (4, 2, "ring_direct")
        batch = mesh.batch(tokens=24)
        outs.append(usp.unshard(usp.attention(*(x[:, batch.local_tokens] for x in (q, k, v)), batch), batch))

    for form in (path, plan.plan_file(), plan.best):
        usp.run_threads(8, body, plan=form)
    with usp.Mesh.create() as mesh:
        expected = usp.attention(q, k, v, mesh.batch(tokens=24))
    for out in outs:
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(usp.UsageError, match="need 8 ranks"):
        usp.Mesh.create(plan=path)
    with pytest.raises(usp.UsageError, match="cannot be read"):
        usp.Mesh.create(plan="nowhere.json")


def test_hidden_keys_are_not_sent():
    from usp_attention._plans import Shape, Terms

    sent = {}

    def body(mesh):
        for name, cu, window in (("all", (0, 64), None), ("window", (0, 64), 4), ("documents", tuple(range(0, 65, 8)), None)):
            batch = mesh.batch(cu_seqlens=cu)
            q, k, v, _ = (x[:, batch.local_tokens] for x in random_qkv(1, 64, 4, 2, 8, 8))
            usp.attention(q, k, v, batch, window=window)
            record = mesh.exchanged(batch, Terms(True, window, None, None, 0.0, False, False), Shape(1, 4, 2, 8, 8, "fp64"))
            sent[name] = sent.get(name, 0) + record["executed_sent"]

    usp.run_threads(4, body, ring=4, layout="contiguous")
    assert 0 < sent["window"] < sent["all"] / 2 and sent["documents"] < sent["all"] / 2


@pytest.mark.parametrize("backend", ["mma", "cudnn"])
def test_a_mesh_of_gpus_needs_no_capacity(backend):
    """Planning is local and needs no GPU; one token more than the capacity taken is refused."""
    shape = Shape(batch=3, query_heads=9, kv_heads=3, head_dim_qk=64, head_dim_v=64, dtype="bf16")
    for ring, ulysses in ((1, 1), (2, 1), (1, 2), (3, 2)):
        recipe = Recipe(ring=ring, ulysses=ulysses, backend=backend)
        Plan(recipe, CAUSAL, shape, False, None)
        with pytest.raises(usp.UsageError, match="31 bits"):
            Plan(recipe, CAUSAL, shape, False, most_tokens(recipe, shape) + 1)


def test_a_mesh_takes_one_call_at_a_time():
    """The second thread is refused by name while the first one's call runs."""
    def body(mesh):
        q, k, v, _ = random_qkv(1, 8, 2, 2, 4, 4, torch.float32)
        batch = mesh.batch(tokens=8)
        with mesh._one_call, pytest.raises(usp.UsageError, match="one call at a time"):
            usp.attention(q, k, v, batch)

    alone(body)


@pytest.mark.parametrize("name", ["k", "v", "sinks"])
def test_tensors_of_other_devices_are_refused(name):
    def body(mesh):
        q, k, v, _ = random_qkv(1, 8, 2, 2, 4, 4, torch.float32)
        tensors = dict(q=q, k=k, v=v, sinks=torch.zeros(2))
        tensors[name] = tensors[name].to("meta")
        with pytest.raises(usp.UsageError, match=f"{name} lies on meta"):
            usp.attention(batch=mesh.batch(tokens=8), **tensors)

    alone(body)


def test_backends_that_the_library_lacks(monkeypatch):
    """auto takes what was built and the card runs, first what the plan names; a backend by name that was not built is
    refused before ranks meet."""
    from usp_attention import _options

    gpu, lacking = torch.device("cuda", 0), {"cpu", "mma"}
    monkeypatch.setattr(_options, "_built", lacking.__contains__)
    monkeypatch.setattr(_options, "_compute_major", lambda device: 8)
    assert _options.options_of(Recipe(), gpu).recipe.backend == "mma"
    lacking.add("hopper")
    assert _options.options_of(Recipe(backend="hopper"), gpu).recipe.backend == "mma"  # of other cards
    monkeypatch.setattr(_options, "_compute_major", lambda device: 9)
    assert _options.options_of(Recipe(backend="hopper"), gpu).recipe.backend == "hopper"  # as the plan says
    assert _options.options_of(Recipe(backend="cudnn"), gpu).recipe.backend == "mma"
    lacking.update(("cudnn", "hopper_cudnn"))
    monkeypatch.setattr(_options.ctypes, "CDLL", lambda name: None)
    assert _options.options_of(Recipe(), gpu).recipe.backend == "hopper_cudnn"
    monkeypatch.setattr(_options, "_compute_major", lambda device: 10)
    assert _options.options_of(Recipe(), gpu).recipe.backend == "cudnn"
    lacking.difference_update(("cudnn", "hopper_cudnn"))
    with pytest.raises(usp.EnvironmentFault, match="backend is 'cudnn', without which"):
        _options.options_of(Recipe(), gpu, backend="cudnn")
    lacking.discard("mma")
    with pytest.raises(usp.EnvironmentFault, match="backend is 'mma', without which"):
        _options.options_of(Recipe(), gpu)
