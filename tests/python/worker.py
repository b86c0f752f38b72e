# SPDX-License-Identifier: Apache-2.0
"""One process of test_processes.py and test_trainer.py: worker.py CHECK [ARGUMENT...]."""

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
import usp_attention as usp
from reference import rms_ratio
from samples import sample
from torch.distributed.device_mesh import init_device_mesh

torch.set_num_threads(1)
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def meshes() -> None:
    """Bootstrap from DeviceMeshes of every kind, and what is refused."""
    whole = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("data", "ring", "ulysses"))
    first = usp.Mesh.create(whole["ring", "ulysses"])
    assert (first.ring, first.ulysses, first.rank) == (2, 2, RANK) and first.coordinate == (RANK // 2, RANK % 2)
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    second = usp.Mesh.create(flat, ring=4)
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "ulysses"))
    third = usp.Mesh.create(pairs["ulysses"])
    assert (second.ring, third.ulysses, third.size, third.rank) == (4, 2, 2, RANK % 2)
    q = torch.arange(4 * 8 * 24, dtype=torch.float64).sin().view(1, 24, 4, 8)
    found = []
    for mesh in (first, second, third, usp.Mesh.create()):
        batch = mesh.batch(tokens=24)
        out = usp.attention(*(q[:, batch.local_tokens] for _ in range(3)), batch)
        found.append(usp.unshard(out, batch))
        torch.testing.assert_close(found[-1], found[0], rtol=1e-12, atol=1e-13)
    for match, error, options in (
            ("differ in layout", usp.DisagreementError, dict(layout="striped" if RANK == 2 else "zigzag")),
            ("ring is 4, and the DeviceMesh has 2", usp.UsageError, dict(ring=4))):
        expect(match, error, lambda: usp.Mesh.create(whole["ring", "ulysses"], **options))
    expect("in this order", usp.UsageError, lambda: usp.Mesh.create(init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("ulysses", "ring"))))
    expect("say how to split", usp.UsageError, lambda: usp.Mesh.create(flat))
    expect("3 dimensions", usp.UsageError, lambda: usp.Mesh.create(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = usp.plan("llama-3.1-8b", "dgx-h100", seq=65536, ring=2, ulysses=2, data=2, method="ring_direct")
        planned = usp.Mesh.create(whole["ring", "ulysses"], plan=plan.candidates[0])
    assert planned.recipe.method == "ring_direct"
    expect("method is ring, and the plan has ring_direct", usp.UsageError, lambda: usp.Mesh.create(
        whole["ring", "ulysses"], plan=plan.best, method="ring"))


def expect(match: str, kind, call) -> None:
    import re

    try:
        call()
    except kind as error:
        assert re.search(match, str(error)), error
    else:
        raise AssertionError(f"no error about {match!r}")


def samples() -> list[dict]:
    """Unequal counts of targets; the last one has none on some ranks, one micro-batch none at all."""
    made = [sample(lengths, seed=seed) for seed, lengths in enumerate(([7, 5], [17], [3, 1, 9], [11], [6, 6], [13]))]
    for one in made:
        one["input_ids"] %= 50
        one["labels"] = one["input_ids"].clone()
    made[3]["labels"][:, :9] = -100
    made[4]["labels"][:] = -100
    return made


def losses() -> None:
    """Data 2 x ring 2, accumulation 3, DDP and FSDP2, with and without recomputation, beside one process."""
    from families import make
    from torch.distributed.fsdp import fully_shard

    reference, count = make("llama"), 0
    total = 0
    for one in samples():
        shift = torch.nn.functional.pad(one["labels"][:, 1:], (0, 1), value=-100)
        shift[0, (one["position_ids"][0] == 0).nonzero().flatten()[1:] - 1] = -100
        # A cache, or a mask of ones, would make transformers overlook the documents.
        logits = reference(input_ids=one["input_ids"], position_ids=one["position_ids"], use_cache=False).logits
        total = total + torch.nn.functional.cross_entropy(logits[0].float(), shift[0], reduction="sum")
        count += int((shift != -100).sum())
    (total / count).backward()
    expected = float(total.detach() / count)
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    world = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("data", "ring", "ulysses"))
    mine = samples()[3 * (RANK // 2):][:3]
    everyone = init_device_mesh("cpu", (RANKS,))
    for wrap in ("ddp", "fsdp"):
        model = make("llama")
        sp = usp.hf.prepare(model, world["ring", "ulysses"])
        if wrap == "ddp":
            called = torch.nn.parallel.DistributedDataParallel(model)
        else:
            model.gradient_checkpointing_enable(dict(use_reentrant=False))
            for layer in model.model.layers:
                fully_shard(layer, mesh=everyone)
            called = fully_shard(model, mesh=everyone)
        reported = 0.0
        for step, part in enumerate(sp.loader(mine, accumulate=3)):
            if wrap == "ddp":
                called.require_backward_grad_sync = step == 2
            loss = called(**part).loss
            assert torch.isfinite(loss)
            loss.backward()
            reported += float(loss.detach())
        report = torch.tensor(reported / RANKS)
        dist.all_reduce(report)
        assert abs(float(report) - expected) < 1e-6 * expected
        for name, p in model.named_parameters():
            found = p.grad.full_tensor() if wrap == "fsdp" else p.grad
            assert rms_ratio(found, gradients[name], floor=1e-6) < 1e-5, (wrap, name)
        sp.remove()
    sharded = fully_shard(make("llama"), mesh=init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    sp = usp.hf.prepare(sharded, world["ring", "ulysses"])
    expect("read|on one axis", usp.UsageError, lambda: sp.loader(mine))


def no_labels() -> None:
    """No valid label on one rank, and on all: finite, zero gradient."""
    from families import make

    mesh = usp.Mesh.create(init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("ring", "ulysses")), layout="contiguous")
    model = torch.nn.parallel.DistributedDataParallel(make("llama"))
    usp.hf.prepare(model.module, mesh)
    for kept in (3, 0):
        one = sample([16])
        one["input_ids"] %= 50
        one["labels"] = one["input_ids"].clone()
        one["labels"][:, kept:] = -100
        for part in usp.Loader([one], mesh):
            model.zero_grad()
            part.pop("num_items_in_batch")
            targets = part["labels"][0]
            assert kept == 3 and RANK == 0 or bool((targets == -100).all())
            logits = model(**{k: v for k, v in part.items() if k not in ("labels", "shift_labels")}).logits[0]
            local = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            loss, reported = usp.token_mean(local, (targets != -100).sum())
            loss.backward()
            norm = sum(float(p.grad.square().sum()) for p in model.parameters())
            assert torch.isfinite(reported) and (reported > 0) == (kept > 0) and (norm > 0) == (kept > 0)


class Rows(torch.utils.data.Dataset):
    """Whole samples of a rank, made in the loader's forked workers."""

    def __len__(self):
        return 5 + RANK % 2  # odd ends

    def __getitem__(self, i):
        return sample([4 + i, 3 + RANK], seed=10 * RANK + i)


def workers() -> None:
    """Each rank's samples, loaded by forked workers beside an open mesh: every token of an epoch once."""
    mesh = usp.Mesh.create(init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("ring", "ulysses")))
    loader = usp.Loader(torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2), mesh, source="each")
    seen: list = [None] * RANKS
    mine = [token for part in loader for token in part["input_ids"][0].tolist()]
    dist.all_gather_object(seen, mine)
    expected = [token for rank in range(RANKS) for i in range(5 + rank % 2)
                for token in sample([4 + i, 3 + rank], seed=10 * rank + i)["input_ids"][0].tolist()]
    assert sorted(token for tokens in seen for token in tokens) == sorted(expected)


def from_env() -> None:
    """torchrun's variables alone, without a process group."""
    print("ready", flush=True)
    mesh = usp.Mesh.from_env(RANKS, 1, layout="contiguous")
    batch = mesh.batch(tokens=16)
    q = torch.arange(16 * 32, dtype=torch.float64).sin().view(1, 16, 4, 8)
    out = usp.unshard(usp.attention(*(q[:, batch.local_tokens] for _ in range(3)), batch), batch)
    with usp.Mesh.create() as alone:
        torch.testing.assert_close(out, usp.attention(q, q, q, alone.batch(tokens=16)), rtol=1e-12, atol=1e-13)
    mesh.close()


def fault(kind: str) -> None:
    """Waits, in attention, for a rank that never comes."""
    import signal
    import threading

    mesh = usp.Mesh.create(init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("ring", "ulysses")))
    batch = mesh.batch(tokens=64)
    q = torch.randn(1, len(batch.local_tokens), 4, 8, requires_grad=True)
    usp.attention(q, q, q, batch).sum().backward()
    out = usp.attention(q, q, q, batch)
    dist.barrier()  # all have what comes before the fault
    print("ready", flush=True)
    if kind == "fork":
        child = os.fork()
        if child == 0:
            try:
                usp.attention(q, q, q, batch)
            except usp.UsageError as error:
                os._exit(0 if "fork" in str(error) else 3)
            os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        usp.attention(q, q, q, batch)
        return  # without close: the exit does
    if RANK == 1:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "error":
            out.register_hook(lambda gradient: 1 / 0)
            out.sum().backward()
        time.sleep(40)
    if kind == "interrupt" and RANK == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        for _ in range(1000):
            usp.attention(q, q, q, batch).sum().backward()
    except BaseException as error:
        print(f"{type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        if kind == "interrupt" and RANK == 0:
            assert isinstance(error, KeyboardInterrupt)
            try:
                usp.attention(q, q, q, batch)
            except usp.CommunicationError:
                print("the mesh stays unusable", flush=True)
        os._exit(9)


def main(name: str, *arguments: str) -> None:
    if name != "from_env":
        dist.init_process_group("gloo")
    if name == "trainer":
        import trainer_check

        trainer_check.main(*arguments)
    else:
        for one in name.split(","):
            began = time.monotonic()
            globals()[one](*arguments)
            print(f"{one}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
