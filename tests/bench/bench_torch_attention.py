#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of 32 query and 8 KV heads of 128 through Python processes, bf16, causal, forward and backward, beside PyTorch's
context parallel in the same run. JSON lines.

    torchrun --nproc-per-node 2 tests/bench/bench_torch_attention.py [--tokens 16384,65536,131072]
"""

import argparse
import json
import statistics

import torch
import torch.distributed as dist
import usp_attention as usp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method  # PyTorch offers it nowhere else
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, WIDTH = 32, 8, 128


def seconds(call, repeats: int = 10) -> float:
    """Median of a call on the slowest rank."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    slowest = torch.tensor(statistics.median(times), device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def random(rows: int, heads: int):
    return torch.randn(1, rows, heads, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def usp_call(tokens: int, ring: int, ulysses: int):
    mesh = usp.Mesh.create(init_device_mesh("cuda", (ring, ulysses), mesh_dim_names=("ring", "ulysses")))
    batch = mesh.batch(tokens=tokens)
    leaves = [random(len(batch.local_tokens), heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    d_out = random(len(batch.local_tokens), HEADS).detach()
    found = seconds(lambda: torch.autograd.grad(usp.attention(*leaves, batch), leaves, d_out))
    mesh.close()
    return found


def torch_call(tokens: int, rotate: str, backend: SDPBackend):
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,))
    set_rotate_method(rotate)
    leaves = [random(tokens // world, heads).detach().transpose(1, 2).contiguous().requires_grad_()
              for heads in (HEADS, KV_HEADS, KV_HEADS)]
    d_out = torch.randn_like(leaves[0])

    def call():
        with context_parallel(mesh, buffers=[]), sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
            torch.autograd.grad(out, leaves, d_out)

    return seconds(call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="16384,65536,131072")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    world = dist.get_world_size()
    for tokens in map(int, options.tokens.split(",")):
        times = {f"usp {r}x{world // r}": usp_call(tokens, r, world // r) for r in (world, 1)}
        for rotate in ("allgather", "alltoall"):
            for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
                try:
                    times[f"torch {rotate} {name}"] = torch_call(tokens, rotate, backend)
                except RuntimeError as error:  # a backend that refuses GQA, say
                    times[f"torch {rotate} {name}"] = None
                    print(f"torch {rotate} {name}: {error}".splitlines()[0])
        best = min(time for name, time in times.items() if name.startswith("torch") and time)
        if dist.get_rank() == 0:
            print(json.dumps({"bench": "torch_attention", "tokens": tokens, "ranks": world, "seconds": times,
                              "ratio_to_best_torch": best / min(time for name, time in times.items()
                                                                if name.startswith("usp"))}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
