# SPDX-License-Identifier: Apache-2.0
"""Every argument of every public function, given what it does not take: an error of the package, or none. Python's own
TypeError, IndexError or AttributeError says nothing about what to do."""

import contextlib
import math
import pathlib
import signal
import sys
import threading

import numpy
import pytest
import torch
import usp_attention as usp
from reference import random_qkv

HOSTILE = [None, True, 0, -1, 3, 1.5, math.nan, math.inf, 10**30, -(2**63), "x", "", b"x", "\0", object(), [], ["x"], [None],
           [1.5], [3], (0, -3), (0, 2**70, 7), {}, {"x": object()}, {1: 2}, numpy.zeros(3), numpy.array(["x"]), torch.zeros(2),
           torch.tensor(3), torch.zeros(1, 7, 4, 8), torch.zeros(1, 7, dtype=torch.int64), torch.zeros(0), lambda *_: None,
           int, pathlib.Path("/nowhere"), sys, range(3), iter([1])]


def outcome(call, **arguments):
    """The error of the package that a call raises, or None; anything else it raises is the test's failure."""
    try:
        call(**arguments)
    except usp.UspError as error:
        text = str(error)
        assert len(text) > 20, text
        return error
    return None


def attack(call, arguments, *, own=()):
    """Each argument in turn becomes each hostile value, but one that is its `own`. Returns {argument: how many raised}."""
    call(**arguments)
    refused = dict.fromkeys(arguments, 0)
    for name in arguments:
        for value in HOSTILE:
            if name in own and own[name] is value:
                continue
            try:
                refused[name] += outcome(call, **{**arguments, name: value}) is not None
            except Exception as error:
                error.add_note(f"{getattr(call, '__qualname__', call)}({name}={value!r})")
                raise
    return refused


@pytest.fixture(scope="module")
def plan():
    return usp.plan("llama-3.1-8b", "dgx-h100", seq=65536, max_candidates=2)


@pytest.fixture
def mesh():
    with usp.Mesh.create() as made:
        yield made


def sample():
    return {"input_ids": torch.arange(14).view(2, 7), "labels": torch.arange(14).view(2, 7),
            "attention_mask": torch.ones(2, 7, dtype=torch.int64)}


def test_planner():
    arguments = dict(model="llama-3.1-8b", cluster="dgx-h100", seq=65536, batch=1, documents=(), devices=8, nodes=1,
                     dtype="bf16", causal=True, training=True, recompute="none", zero_stage=3, ring=2, ulysses=4, data=1,
                     tensor=1, method="ring", layout="zigzag", gated=False, gate_phases=None, expert=None, pipeline=1, global_batch=None, objective=None,
                     device_bytes=None, calibration=None, max_candidates=1)
    refused = attack(usp.plan, arguments)
    assert all(refused.values()), refused
    arguments = dict(query_heads=8, kv_heads=8, head_dim=64, seq=4096, batch=1, cluster=None, ranks=2, nodes=None,
                     head_dim_v=None, causal=True, window=None, sink=False, softcap=None, dropout=0.0, documents=(),
                     dtype="bf16", backend="cpu", training=True, calibration=None, max_candidates=1, ring=2,
                     gated=False)
    refused = attack(usp.plan_attention, arguments)
    assert all(refused.values()), refused
    with pytest.raises(usp.UsageError, match="takes no 'rings'"):
        usp.plan_attention(query_heads=8, kv_heads=8, head_dim=64, seq=4096, ranks=2, rings=2)


def test_results(plan):
    refused = attack(plan.plan_file, dict(index=0))
    assert refused["index"] and outcome(plan.plan_file, index=99) and outcome(plan.plan_file, index=-1)
    assert attack(usp.PlanResult.from_json, dict(text=plan.to_json()))["text"] == len(HOSTILE)


def test_layout():
    assert all(attack(usp.layout_tokens, dict(kind="zigzag", tokens=7, ring=2, ulysses=1, rank=1,
                                              cu_seqlens=(0, 3, 7))).values())


def test_mesh():
    refused = attack(lambda **options: usp.Mesh.create(**options).close(), dict(
        device_mesh=None, plan=None, ring=1, ulysses=1, layout="zigzag", method="ring", dkv_return="circulate",
        backend="auto", ring_transport="auto", ulysses_transport="auto", keep_entry=True, gated=False, gate_phases=1,
        capacity_tokens=64, watchdog_s=60.0, check=True))
    assert all(refused.values()), refused
    refused = attack(lambda **options: usp.Mesh.from_env(**options).close(), dict(
        ring=1, ulysses=1, device="cpu", layout="zigzag", plan=None, check=None))
    assert all(refused.values()), refused
    with pytest.raises(usp.UsageError, match="takes no 'watchdog'"):
        usp.Mesh.from_env(1, 1, watchdog=3)


def test_threads():
    ran = []
    arguments = dict(ranks=2, body=ran.append, ring=2, ulysses=1, layout="zigzag", method="ring", dkv_return="circulate",
                     keep_entry=True, gated=False, gate_phases=1, plan=None, seed=0, backend="cpu", watchdog_s=5.0,
                     capacity_tokens=None, check=True)
    refused = attack(usp.run_threads, arguments, own={"body": int})
    assert all(refused.values()) and ran, refused
    for ranks in (0, -1, 1.0):
        with pytest.raises(usp.UsageError, match="ranks is"):
            usp.run_threads(ranks, ran.append)
    with pytest.raises(usp.UsageError, match="does not fit the 4 ranks"):
        usp.run_threads(4, ran.append, ring=3)
    with pytest.raises(usp.UsageError, match="takes no 'watchdog'"):
        usp.run_threads(1, ran.append, watchdog=3)


def rank_1_stays_away(before=lambda: None):
    """Rank 0 waits for rank 1, which comes once rank 0 has given up."""
    ended = threading.Event()

    def body(mesh):
        if mesh.rank == 1:
            ended.wait()
            return
        before()
        try:
            mesh.batch(tokens=8)
        finally:
            ended.set()

    return body


def test_a_watchdog_of_threads_bites():
    with pytest.raises(usp.CommunicationError, match="0.05 s") as error:
        usp.run_threads(2, rank_1_stays_away(), watchdog_s=0.05)
    assert error.value.missing == (1,)


def test_ctrl_c_ends_threads_that_wait():
    with pytest.raises(KeyboardInterrupt):
        usp.run_threads(2, rank_1_stays_away(lambda: signal.raise_signal(signal.SIGINT)), watchdog_s=1e5)


def test_batch(mesh):
    for how in (dict(tokens=7), dict(cu_seqlens=[0, 3, 7]), dict(position_ids=torch.arange(7)),
                dict(cut=usp.Sharder(1, 1, 0)(sample())[1])):
        assert attack(mesh.batch, {**how, "seed": 1})["seed"]
        (name,) = how
        assert attack(mesh.batch, how)[name] > 20
    mesh.batch(cu_seqlens=[0, 3, 7])
    for values in ([0.0, 3, 7], [0, 3.0, 7], torch.tensor([0.0, 3, 7]), numpy.array([0, 3, 7.5]), [0, "3", 7]):
        with pytest.raises(usp.UsageError, match="cu_seqlens holds"):
            mesh.batch(cu_seqlens=values)
    for values in ((0, 3, 7), torch.tensor([0, 3, 7]), numpy.array([0, 3, 7]), range(0, 8, 7), [numpy.int64(0), 7]):
        assert mesh.batch(cu_seqlens=values).tokens == 7
    with pytest.raises(usp.UsageError, match="tokens is 1.5"):
        mesh.batch(tokens=1.5)
    with pytest.raises(usp.InvalidInput):
        mesh.batch(cu_seqlens=[0, 7, 3])


def test_mesh_methods(mesh):
    batch = mesh.batch(tokens=7)
    assert attack(mesh.memory, dict(batch=batch))["batch"]
    assert outcome(usp.Batch, state=None)
    cut = dict(cu_seqlens=(0, 3, 7), row_starts=(0, 3), valid_labels=3, digest=5)
    refused = attack(lambda **fields: mesh.batch(cut=usp.Cut(**fields)), cut)
    assert refused["cu_seqlens"] and refused["row_starts"] and refused["digest"]
    assert all(attack(mesh.broadcast_bytes, dict(mine=b"abc", root=0), own={}).values())
    usp.attention(*random_qkv(1, 7, 4, 2, 8, 8)[:3], batch)
    (terms, shape, _), = mesh._plans
    assert all(attack(mesh.exchanged, dict(batch=batch, terms=terms, shape=shape, backward=False)).values())
    assert attack(lambda reason: usp.Mesh.create().abort(reason), dict(reason="x"))["reason"]


def test_attention(mesh):
    batch = mesh.batch(tokens=7)
    q, k, v, _ = random_qkv(1, 7, 4, 2, 8, 8)
    sinks = torch.zeros(4, dtype=torch.float64)
    arguments = dict(q=q, k=k, v=v, batch=batch, causal=True, window=3, scale=0.5, softcap=2.0, sinks=sinks, dropout=0.1,
                     layer=1, return_lse=True)
    refused = attack(usp.attention, arguments)
    assert all(refused.values()), refused
    usp.attention(q, k, v, batch, causal=numpy.bool_(True), window=numpy.int32(3), scale=numpy.float32(0.5))
    for name, value in dict(window=1.5, layer=0.5, causal=1, scale="0.5", softcap=True, dropout="0").items():
        with pytest.raises(usp.UsageError, match=f"{name} is"):
            usp.attention(**{**arguments, name: value})


def test_data(mesh):
    refused = attack(usp.Sharder, dict(ring=1, ulysses=1, rank=0, layout="zigzag", labels="labels", sequence_keys=("a",),
                                       pass_keys=("b",)))
    assert all(refused.values()), refused
    sharder = usp.Sharder(1, 1, 0)
    assert attack(sharder, dict(sample=sample()))["sample"]
    keys = ("input_ids", "labels", "attention_mask", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx",
            "shift_labels", "inputs_embeds")
    attack(lambda **given: sharder(given), {**dict.fromkeys(keys), **sample()})
    attack(lambda **given: usp.shard(**given), dict(sample=sample(), mesh=mesh, labels="labels"))
    batch = mesh.batch(tokens=7)
    assert all(attack(usp.unshard, dict(x=torch.zeros(1, 7), batch=batch, dim=1, dst=0)).values())


def test_loader(mesh):
    def run(**arguments):
        loader = usp.Loader(**arguments)
        with contextlib.suppress(StopIteration):
            next(iter(loader))
        loader.skip(0)

    refused = attack(run, dict(loader=[sample()], mesh=mesh, source="same", accumulate=1, average_over=1, num_items=True,
                               labels="labels", sequence_keys=(), pass_keys=()))
    assert all(refused.values()), refused
    assert attack(usp.Loader([sample()], mesh).skip, dict(parts=0))["parts"]


def test_loss():
    total = torch.tensor(3.0)
    assert all(attack(usp.token_mean, dict(local_sum=total, local_count=2, average_over=1)).values())
    with pytest.raises(usp.UsageError, match="average_over is True"):
        usp.token_mean(total, 2, average_over=True)


def test_transformers(mesh):
    import families
    import transformers

    model = families.make("llama")
    refused = attack(lambda **given: usp.hf.prepare(**given).remove(), dict(model=model, device_mesh=mesh, layer_ids=True))
    assert all(refused.values()), refused
    assert all(attack(usp.hf.register, dict(mesh=mesh, name="usp_hostile", layer_ids=True)).values())
    assert all(attack(usp.hf.on_mesh, dict(trainer=transformers.Trainer, loader_keys=None)).values())
    with pytest.raises(usp.UsageError, match="takes no 'rings'"):
        usp.hf.on_mesh(transformers.Trainer, rings=2)
    with pytest.raises(usp.UsageError, match="on a mesh already"):
        usp.hf.on_mesh(usp.hf.Trainer)
    sp = usp.hf.prepare(model, mesh)
    assert attack(sp.loader, dict(loader=[sample()]))["loader"]
    part = next(iter(sp.loader([sample()])))
    assert attack(lambda usp_batch: model(**{**part, "usp_batch": usp_batch}), dict(usp_batch=part["usp_batch"]))["usp_batch"]
    with pytest.raises(usp.UsageError, match="takes no 'rings'"):
        usp.hf.prepare(families.make("llama"), None, rings=2)
    with pytest.raises(usp.UsageError, match="prepared already"):
        usp.hf.prepare(model, mesh)
