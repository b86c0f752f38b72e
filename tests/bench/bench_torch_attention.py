#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of 32 query and 8 KV heads of 128 through Python processes, bf16, causal, forward and backward, in the same run
beside `usp bench --gpu` of the same plan (with --usp) and PyTorch's context parallel (with a GPU per rank). JSON lines.

    torchrun --nproc-per-node 2 tests/bench/bench_torch_attention.py [--tokens 16384,65536,131072] [--usp build/bin/usp]

Times are the GPU's for a call of several that the host enqueued one after the other, as a training loop does.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import torch
import torch.distributed as dist
import usp_attention as usp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method  # PyTorch offers it nowhere else
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, WIDTH = 32, 8, 128


CALLS = 4  # enqueued together


def seconds(call, repeats: int = 6) -> float:
    """Median of a call on the slowest rank."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / CALLS)
    slowest = [0.0] * dist.get_world_size()
    dist.all_gather_object(slowest, statistics.median(times))
    return max(slowest)


def random(rows: int, heads: int):
    return torch.randn(1, rows, heads, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def backend() -> str:
    """What `backend="auto"` of a mesh takes on this GPU."""
    return "hopper_cudnn" if torch.cuda.get_device_capability()[0] == 9 else "cudnn"


def plan_file(folder: pathlib.Path, program: str, tokens: int, ring: int, ulysses: int) -> pathlib.Path:
    """The plan of the call, which every rank plans alike."""
    file = folder / f"{tokens}-{ring}x{ulysses}.json"
    subprocess.run([program, "plan", "attention", "--heads", str(HEADS), "--kv-heads", str(KV_HEADS), "--head-dim", str(WIDTH),
                    "--seq", str(tokens), "--cluster", "h200", "--gpus", str(ring * ulysses), "--ring", str(ring),
                    "--ulysses", str(ulysses), "--backend", backend(), "-q", "-o", str(file)],
                   check=True, stdout=subprocess.DEVNULL)
    return file


def program_seconds(program: str, file: pathlib.Path) -> float:
    """Both passes by `usp bench --gpu`, on threads of one process, while the other ranks wait."""
    found = [0.0]
    if dist.get_rank() == 0:
        devices = [str(rank % torch.cuda.device_count()) for rank in range(dist.get_world_size())]
        # With torchrun's variables it would be one of its ranks.
        alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        done = subprocess.run([program, "bench", str(file), "--gpu", "--repeat", "10", "--json", "-q", "--devices", *devices],
                              check=True, stdout=subprocess.PIPE, text=True, env=alone)
        found = [sum(one["time_s"] for one in json.loads(done.stdout)["passes"])]
    dist.broadcast_object_list(found, 0)
    return found[0]


def usp_call(tokens: int, ring: int, ulysses: int, plan: pathlib.Path | None):
    device_mesh = init_device_mesh("cuda", (ring, ulysses), mesh_dim_names=("ring", "ulysses"))
    mesh = usp.Mesh.create(device_mesh, plan=plan)
    batch = mesh.batch(tokens=tokens)
    leaves = [random(len(batch.local_tokens), heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    d_out = random(len(batch.local_tokens), HEADS).detach()
    found = seconds(lambda: torch.autograd.grad(usp.attention(*leaves, batch), leaves, d_out))
    mesh.close()
    return found


def torch_call(tokens: int, rotate: str, kernel: SDPBackend):
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    set_rotate_method(rotate)
    whole = [random(tokens, heads).detach().transpose(1, 2).contiguous() for heads in (HEADS, KV_HEADS, KV_HEADS)]
    with sdpa_kernel(kernel), context_parallel(mesh, buffers=whole, buffer_seq_dims=[2, 2, 2]):
        leaves = [x.requires_grad_() for x in whole]  # a rank's part of them
        d_out = torch.randn_like(leaves[0])

        def call():
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
            torch.autograd.grad(out, leaves, d_out)

        try:
            return seconds(call)
        finally:
            for x in leaves:
                x.requires_grad_(False)


def torch_times(tokens: int) -> dict:
    """Of each rotation and kernel; None where PyTorch refuses it."""
    times = {}
    for rotate in ("allgather", "alltoall"):
        for name, kernel in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            try:
                times[f"torch {rotate} {name}"] = torch_call(tokens, rotate, kernel)
            except RuntimeError as error:  # a backend that refuses GQA, say
                times[f"torch {rotate} {name}"] = None
                print(f"torch {rotate} {name}: {error}".splitlines()[0])
    return times


def report(tokens: int, program: str | None, folder: pathlib.Path) -> dict:
    world = dist.get_world_size()
    line = {"bench": "torch_attention", "tokens": tokens, "ranks": world, "gpus": torch.cuda.device_count(), "seconds": {}}
    times, ratios = line["seconds"], {}
    for ring in dict.fromkeys((world, 1)):
        mesh = f"{ring}x{world // ring}"
        plan = plan_file(folder, program, tokens, ring, world // ring) if program else None
        times[f"usp {mesh}"] = usp_call(tokens, ring, world // ring, plan)
        if plan:
            times[f"usp bench {mesh}"] = program_seconds(program, plan)
            ratios[mesh] = times[f"usp bench {mesh}"] / times[f"usp {mesh}"]
    if ratios:
        line["ratio_to_usp_bench"] = ratios
    if 1 < world <= torch.cuda.device_count():
        of_torch = torch_times(tokens)
        best = min(time for time in of_torch.values() if time)
        times.update(of_torch)
        line["ratio_to_best_torch"] = best / min(times[f"usp {ring}x{world // ring}"] for ring in (world, 1))
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="16384,65536,131072")
    parser.add_argument("--usp", metavar="PROGRAM", help="the command line, to time the same plan without Python")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    # NCCL refuses two ranks on one GPU.
    dist.init_process_group("nccl" if int(os.environ["WORLD_SIZE"]) <= gpus else "gloo")
    with tempfile.TemporaryDirectory() as folder:
        for tokens in map(int, options.tokens.split(",")):
            line = report(tokens, options.usp, pathlib.Path(folder))
            if dist.get_rank() == 0:
                print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
