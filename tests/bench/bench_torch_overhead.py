#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Host time of usp.attention beside the same C calls: 64 tokens, one rank, on a CPU or on the current GPU; and of
Mesh.batch for 1M tokens of 4,000 documents on one rank and on 8 (threads), new and known. JSON lines.

    PYTHONPATH=build/runtime/python build/python-env/bin/python3 tests/bench/bench_torch_overhead.py [--device cuda]
"""

import argparse
import json
import statistics
import time

import torch
import usp_attention as usp
from usp_attention import _call, _structs
from usp_attention._library import lib
from usp_attention._plans import Terms


def median_us(call, repeats: int = 2000) -> float:
    for _ in range(100):
        call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def c_calls(q, k, v, d_out, batch):
    """(forward, forward and backward) as a C program calls them: structs made once."""
    call = _call.Call(q, k, v, None, batch.batch_id, Terms(True, None, None, None, 0.0, False, False), None, 0)
    saved = q.new_empty(batch._state.sizes(call.plan).saved_bytes, dtype=torch.uint8)
    out, dq, dk, dv = torch.empty_like(d_out), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    inputs, struct, views = _call.Inputs(q, k, v, None), call.struct(saved), (_call.view(out), _call.view(d_out))
    gradients = _structs.AttentionGradients(dq=_call.view(dq), dk=_call.view(dk), dv=_call.view(dv), d_sink_dtype=2)
    keep = (saved, out, dq, dk, dv)

    def run_forward():
        call.run(lib().usp_attend, inputs, struct, views[0], None)

    def run_both():
        run_forward()
        call.run(lib().usp_attend_grad, inputs, struct, *views, gradients)
        return keep

    return run_forward, run_both


def overhead(device: str) -> None:
    mesh = usp.Mesh.create() if device == "cpu" else usp.Mesh.create(
        torch.distributed.device_mesh.init_device_mesh("cuda", (1, 1), mesh_dim_names=("ring", "ulysses")))
    batch = mesh.batch(tokens=64)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, d_out = (torch.randn(1, 64, heads, 16 if device == "cpu" else 64, device=device, dtype=dtype)
                      for heads in (4, 2, 2, 4))
    leaf = [x.requires_grad_() for x in (q, k, v)]
    c_forward, c_both = c_calls(*(x.detach() for x in leaf), d_out, batch)

    def torch_forward():
        with torch.no_grad():
            usp.attention(*leaf, batch)

    def torch_both():
        torch.autograd.grad(usp.attention(*leaf, batch), leaf, d_out)

    found = {name: median_us(call) for name, call in (
        ("c_forward_us", c_forward), ("torch_forward_us", torch_forward), ("c_both_us", c_both),
        ("torch_both_us", torch_both))}
    print(json.dumps({"bench": "torch_overhead", "device": device, **{k: round(x, 1) for k, x in found.items()},
                      "overhead_both_us": round(found["torch_both_us"] - found["c_both_us"], 1), "target_us": 120}), flush=True)
    mesh.close()


def batches(ranks: int) -> None:
    """Also what a bare agreement of these ranks takes, and the processor time of one rank: threads of one process share
    its cores and Python's lock, which ranks that are processes do not."""
    generator = torch.Generator().manual_seed(0)
    times = {"agreement": [], "new": [], "known": []}
    own = {kind: [] for kind in times}

    def documents(step: int) -> list[int]:
        cuts = torch.randperm((1 << 20) - 1, generator=generator.manual_seed(step))[:3999] + 1
        return [0, *cuts.sort().values.tolist(), 1 << 20]

    lists = [documents(step) for step in range(5)]

    def body(mesh):
        calls = {"agreement": lambda cu: mesh._comm.call(lib().usp_engine_agree, mesh.engine, b"bench", 0),
                 "new": lambda cu: mesh.batch(cu_seqlens=cu), "known": lambda cu: mesh.batch(cu_seqlens=cu)}
        for kind, call in calls.items():
            for cu in lists * (1 if kind == "new" else 20):
                began, used = time.perf_counter(), time.thread_time()
                call(cu)
                if mesh.rank == 0:
                    own[kind].append(time.thread_time() - used)
                    times[kind].append(time.perf_counter() - began)

    usp.run_threads(ranks, body, ring=max(ranks // 2, 1), ulysses=min(ranks, 2))
    print(json.dumps({"bench": "torch_batch", "threads": ranks, "tokens": 1 << 20, "documents": 4000,
                      **{f"{kind}_ms": round(1e3 * statistics.median(values), 3) for kind, values in times.items()},
                      **{f"{kind}_cpu_ms": round(1e3 * statistics.median(values), 3) for kind, values in own.items()},
                      "target_new_ms": 3, "target_known_ms": 0.05}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    overhead(options.device)
    for ranks in (1, 8):
        batches(ranks)


if __name__ == "__main__":
    main()
