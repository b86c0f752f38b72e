# SPDX-License-Identifier: Apache-2.0
"""One process of run.sh: torchrun --nproc-per-node N worker_gpu.py CHECK...; each check asserts on every rank."""

import itertools
import os
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it where sums keep their order

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import usp_attention as usp  # noqa: E402
from reference import dense_attention, random_qkv, rms_ratio, visible  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 1e-2}


def device_mesh(ring: int, ulysses: int):
    return init_device_mesh("cuda", (ring, ulysses), mesh_dim_names=("ring", "ulysses"))


def meshes(**options):
    ranks = dist.get_world_size()
    for ring in (r for r in range(1, ranks + 1) if ranks % r == 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield usp.Mesh.create(device_mesh(ring, ranks // ring), **options)


def attention() -> None:
    """G1: dense attention in fp64 beside both backends and transports, on torch's current and on a side stream."""
    rules = [dict(), dict(causal=False), dict(window=37), dict(softcap=3.0), dict(sinks=True)]
    transports = ["copy_engine", "nccl"] if dist.get_world_size() > 1 else ["auto"]
    for backend, transport in itertools.product(("mma", "cudnn"), transports):
        for mesh in meshes(backend=backend, ring_transport=transport, ulysses_transport=transport):
            for rule, dtype, cu in itertools.product(rules, BOUNDS, [(0, 300), (0, 40, 41, 300)]):
                one_call(mesh, rule, dtype, cu, torch.cuda.current_stream())
            one_call(mesh, {}, torch.bfloat16, (0, 300), torch.cuda.Stream())
            mesh.close()


def one_call(mesh, rule: dict, dtype, cu, stream) -> None:
    rule = dict(rule)
    q, k, v, d_out = (x.cuda() for x in random_qkv(1, cu[-1], 8, 2, 64, 64, dtype))
    sinks = torch.linspace(-1, 1, 8, device="cuda").requires_grad_() if rule.pop("sinks", False) else None
    leaves = [x.double().clone().requires_grad_() for x in (q, k, v)]
    mask = visible(cu, rule.get("causal", True), rule.get("window")).cuda()
    out, _ = dense_attention(*leaves, mask, softcap=rule.get("softcap"), sinks=None if sinks is None else sinks.detach())
    out.backward(d_out.double())
    batch = mesh.batch(cu_seqlens=cu)
    rows = batch.local_tokens.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        mine = [x[:, rows].clone().requires_grad_() for x in (q, k, v)]
        found = usp.attention(*mine, batch, sinks=sinks, **rule)
        found.backward(d_out[:, rows])
    torch.cuda.synchronize()
    for name, own, whole in (("out", found, out), *((f"d{n}", x.grad, y.grad) for n, x, y in zip("qkv", mine, leaves))):
        error = rms_ratio(own, whole[:, rows])
        assert error <= BOUNDS[dtype], (mesh, name, rule, dtype, cu, error)


def forward_only() -> None:
    """An engine of forward alone gives the same bits, holds less, and refuses backward."""
    found: dict = {}
    for alone in (False, True):
        for mesh in meshes(forward_only=alone):
            batch = mesh.batch(tokens=2048)
            q, k, v, d_out = (x[:, batch.local_tokens].cuda() for x in random_qkv(1, 2048, 8, 2, 64, 64, torch.bfloat16))
            out = usp.attention(q.requires_grad_(), k, v, batch)
            out_bits, workspace = found.setdefault(mesh.ring, (out.detach(), mesh.memory(batch)["workspace_bytes"]))
            assert torch.equal(out.detach(), out_bits), mesh
            if alone:
                assert mesh.memory(batch)["workspace_bytes"] <= workspace, mesh
                try:
                    out.backward(d_out)
                    raise AssertionError("backward of an engine of forward alone ran")
                except usp.UsageError as error:
                    assert "forward alone" in str(error), error
            mesh.close()


def memory() -> None:
    """Between calls a rank holds what peers reach, and nothing of torch's memory but tensors: kernels' scratch and the
    rest of the workspace went back."""
    for mesh in meshes():
        batch = mesh.batch(tokens=16384)
        shape = (1, len(batch.local_tokens))
        q, k, v = (torch.randn(*shape, heads, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for heads in (32, 8, 8))
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            out = usp.attention(q, k, v, batch)
            kept = torch.cuda.memory_allocated() - before
            planned = mesh.memory(batch)["saved_bytes_per_forward"] + out.numel() * out.element_size()
            assert kept <= planned + (4 << 20), (mesh, kept, planned)  # tables of tiles are some kilobytes
            out.backward(torch.ones_like(out))
            out = q.grad = k.grad = v.grad = None
            torch.cuda.synchronize()
            left = torch.cuda.memory_allocated() - before
            assert left <= 4 << 20, (mesh, left)
        mesh.close()


def graphs() -> None:
    """G1: a capture is right, or refused by name."""
    for transport in ("nccl", "copy_engine"):
        mesh = next(iter(meshes(ring_transport=transport, ulysses_transport=transport)))
        batch = mesh.batch(tokens=256)
        q = torch.randn(1, len(batch.local_tokens), 8, 64, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            expected = usp.attention(q, q, q, batch)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    found = usp.attention(q, q, q, batch)
            except usp.UsageError as error:
                assert "graph" in str(error), error
                continue
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(found, expected)


def allocator() -> None:
    """G2, G3: expandable segments, emptied caches, freed memory filled with NaN at once; bit-equal and flat."""
    losses, held = {}, []
    torch.use_deterministic_algorithms(True)
    for churn in (False, True):
        mesh = next(iter(meshes()))
        losses[churn] = []
        for step in range(200):
            tokens = 2048 + 64 * (step % 5)
            batch = mesh.batch(cu_seqlens=(0, tokens // 3, tokens))
            generator = torch.Generator("cuda").manual_seed(step)
            x = [torch.randn(1, len(batch.local_tokens), h, 64, device="cuda", dtype=torch.bfloat16, generator=generator,
                             requires_grad=True) for h in (8, 2, 2)]
            out = usp.attention(*x, batch)
            if churn:
                del batch
                junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
                del junk
                if step % 7 == 0:
                    torch.cuda.empty_cache()
            out.float().square().mean().backward()
            losses[churn].append([float(out.float().mean()), *(float(t.grad.float().sum()) for t in x)])
            if churn and step in (60, 199):
                torch.cuda.empty_cache()
                held.append(torch.cuda.mem_get_info()[0])
        mesh.close()
    assert losses[False] == losses[True]
    assert all(value == value for step in losses[True] for value in step), "NaN"
    assert abs(held[1] - held[0]) <= 0.01 * torch.cuda.mem_get_info()[1], held


def fsdp() -> None:
    """G4: FSDP2 with prefetch beside the ring, on copy engines and on NCCL; every loss equal, since sums in any order
    would drift apart over 500 steps."""
    import transformers
    from torch.distributed.fsdp import fully_shard

    losses = {}
    torch.use_deterministic_algorithms(True)  # meshes are deterministic where torch is
    for transport in ("copy_engine", "nccl"):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=2)).cuda().bfloat16()
        everyone = init_device_mesh("cuda", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=everyone)
        fully_shard(model, mesh=everyone)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        sp = usp.hf.prepare(model, device_mesh(dist.get_world_size(), 1), ring_transport=transport)
        ids = torch.randint(1024, (1, 8192), generator=torch.Generator().manual_seed(1))
        losses[transport] = []
        for part in sp.loader([dict(input_ids=ids, labels=ids)] * 500):
            loss = model(**part).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[transport].append(float(loss.detach()))
        sp.remove()
        sp.mesh.close()
    first, second = losses.values()
    apart = [step for step, (a, b) in enumerate(zip(first, second)) if a != b]
    assert not apart, (apart[:5], first[:5], second[:5], first[-1], second[-1])


def libraries() -> None:
    """B2: one cuDNN and one NCCL in the process."""
    mesh = next(iter(meshes(backend="cudnn")))
    q = torch.randn(1, len(mesh.batch(tokens=256).local_tokens), 8, 64, device="cuda", dtype=torch.bfloat16)
    usp.attention(q, q, q, mesh.batch(tokens=256))
    mapped = pathlib.Path("/proc/self/maps").read_text()
    for name in ("libcudnn.so", "libnccl.so"):
        paths = {line.split()[-1] for line in mapped.splitlines() if f"/{name}" in line}
        assert len(paths) <= 1, paths


def main() -> None:
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl" if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else "gloo")
    for name in sys.argv[1:]:
        globals()[name]()
        if dist.get_rank() == 0:
            print(f"{name}: passed on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
