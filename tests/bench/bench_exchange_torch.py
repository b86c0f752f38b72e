#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Ulysses exchange as PyTorch programs write it: permute, all_to_all_single (NCCL), permute.

    tests/bench/bench_exchange_torch.py [--gpus 2] [--json FILE]

One process a GPU. [tokens / ranks][heads][head_dim] to [tokens][heads / ranks][head_dim] in bf16, in the sizes of
bench_cuda_exchange: payload to each peer, and the run of a row's heads that one rank gets. Median GB/s per rank over
what goes to other ranks, of the slowest rank. Needs torch and as many GPUs.
"""
import argparse
import json
import os
import statistics
import sys


def exchange(home, ranks, tokens, heads, width):
    """This rank's heads of all tokens."""
    import torch
    import torch.distributed as dist
    parts = home.view(tokens, ranks, heads // ranks, width).permute(1, 0, 2, 3).contiguous()
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts)
    return arrived.view(ranks * tokens, heads // ranks, width)


def measure(rank, options, run_bytes, mib):
    import torch
    import torch.distributed as dist
    width = 128
    heads = max(1, run_bytes // (width * 2)) * options.gpus
    tokens = (mib << 20) // run_bytes
    home = torch.randn((tokens, heads, width), device="cuda").to(torch.bfloat16)
    flush = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(options.rounds + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        flush.fill_(1)
        begin.record()
        exchange(home, options.gpus, tokens, heads, width)
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end)], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times.append(slowest.item())
    rate = (mib << 20) * (options.gpus - 1) / (statistics.median(times[3:]) * 1e-3) * 1e-9
    if rank != 0:
        return
    found = {"ranks": options.gpus, "run_bytes": run_bytes, "mib_per_peer": mib, "torch_gb_s": rate}
    print(f"{mib:5} MiB to each peer in runs of {run_bytes:5}: {rate:7.1f} GB/s", flush=True)
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            print(json.dumps(found), file=file)


def work(rank, options):
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus)
    for mib in options.mib:
        for run_bytes in options.runs:
            measure(rank, options, run_bytes, mib)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--runs", type=int, nargs="+", default=[256, 512, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    import torch
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29537")
    torch.multiprocessing.spawn(work, (options,), nprocs=options.gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
