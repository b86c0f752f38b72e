#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planned attention over the GPUs of one host beside PyTorch's context parallel, forward and backward.

    tests/bench/bench_gpu_ranks_torch.py build/bin/bench_gpu_ranks [--gpus 2] [--seq 16384 65536 131072]

Needs a Python with torch on a machine with that many GPUs. First PyTorch's context parallel over all backends and
rotations (one process a GPU), then every mesh of this project (one thread a GPU); causal, bf16, random inputs. One row
each: median milliseconds and TFLOP/s per GPU of forward, and of forward and backward together (a backward counts 2.5
forwards), and how long the rank that waits most waits for data in both. With --documents PyTorch's rows are varlen_attn
over whole documents that are dealt to the GPUs, each to the one with the least work, longest first: no exchange at all.
--json FILE appends each row to a file too, one JSON object a line.
"""
import argparse
import inspect
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile

import torch


def context_parallel_api():
    try:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
    except ImportError:
        from torch.distributed.tensor.experimental._context_parallel._attention import (context_parallel,
                                                                                        set_rotate_method)
    return context_parallel, set_rotate_method


def torch_rank(rank, options, path):
    """One process of context parallel; rank 0 writes {"seq backend rotation": [[forward, both], ...]} in ms."""
    import torch.distributed as dist
    from torch.nn.attention import SDPBackend, sdpa_kernel
    context_parallel, set_rotate_method = context_parallel_api()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus)
    mesh = dist.device_mesh.init_device_mesh("cuda", (options.gpus,))
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    found = {}
    for seq in options.seq:
        for name, backend in backends.items():
            for rotation in ("allgather", "alltoall"):
                try:
                    set_rotate_method(rotation)
                    times = torch_times(mesh, context_parallel, sdpa_kernel, backend, seq, options)
                except Exception as error:  # a combination that PyTorch refuses is a row that says so
                    times = f"{type(error).__name__}: {error}"[:120]
                found[f"{seq} {name} {rotation}"] = times
                torch.cuda.empty_cache()
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def torch_times(mesh, context_parallel, sdpa_kernel, backend, seq, options):
    import torch.distributed as dist

    def tensor(heads):
        return torch.randn((1, heads, seq, options.head_dim), device="cuda", dtype=torch.bfloat16)

    q, k, v = tensor(options.heads), tensor(options.kv_heads), tensor(options.kv_heads)
    times = []
    with sdpa_kernel(backend), context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        for x in (q, k, v):
            x.requires_grad_(True)
        d_o = torch.randn_like(q)
        for _ in range(options.rounds + 2):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            events[0].record()
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=options.heads != options.kv_heads)
            events[1].record()
            out.backward(d_o)
            events[2].record()
            torch.cuda.synchronize()
            mine = torch.tensor([events[0].elapsed_time(events[1]), events[0].elapsed_time(events[2])],
                                device="cuda")
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            times.append(mine.tolist())
            for x in (q, k, v):
                x.grad = None
        for x in (q, k, v):
            x.requires_grad_(False)  # they are unsharded when the context ends
    return times[2:]


def document_lengths(tokens, mean, kind):
    """Lengths of the documents of a batch, the same for all who are measured."""
    draw, found = random.Random(1), []
    while sum(found) < tokens:
        length = draw.expovariate(1 / mean) if kind == "exponential" else draw.lognormvariate(0, 1.6) * mean / 3.6
        found.append(min(1 + int(length), tokens - sum(found)))
    return found


def varlen_rank(rank, options, path):
    """Whole documents on each GPU, nothing exchanged; as torch_rank otherwise."""
    import torch.distributed as dist
    from torch.nn.attention.varlen import varlen_attn
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.gpus)
    found = {}
    causal = {"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else {"window_size": (-1, 0)}
    for seq in options.seq:
        work = [0] * options.gpus
        mine = []
        for length in sorted(document_lengths(seq, options.documents, options.lengths), reverse=True):
            least = work.index(min(work))
            work[least] += length * length
            if least == rank:
                mine.append(length)
        cu = torch.tensor([0, *mine], device="cuda", dtype=torch.int32).cumsum(0, dtype=torch.int32)
        q, k, v = (torch.randn((sum(mine), heads, options.head_dim), device="cuda", dtype=torch.bfloat16,
                               requires_grad=True)
                   for heads in (options.heads, options.kv_heads, options.kv_heads))
        d_o = torch.randn_like(q)
        times = []
        for _ in range(options.rounds + 2):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            events[0].record()
            repeats = options.heads // options.kv_heads  # it takes as many KV heads as query heads
            keys, values = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (k, v))
            out = varlen_attn(q, keys, values, cu, cu, max(mine), max(mine), **causal)
            events[1].record()
            out.backward(d_o)
            events[2].record()
            torch.cuda.synchronize()
            both = torch.tensor([events[0].elapsed_time(events[1]), events[0].elapsed_time(events[2])], device="cuda")
            dist.all_reduce(both, op=dist.ReduceOp.MAX)
            times.append(both.tolist())
            q.grad = k.grad = v.grad = None
        found[f"{seq}"] = times[2:]
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def rate(options, pairs, milliseconds, passes):
    """TFLOP/s per GPU over the visible pairs of a head."""
    flops = 4 * pairs * options.head_dim * options.heads * passes
    return flops / (milliseconds * 1e-3) / options.gpus * 1e-12


def row(options, seq, name, times, waited_ms=None, pairs=None, host=(None, None, None), **fields):
    pairs = seq * (seq + 1) / 2 if pairs is None else pairs
    if isinstance(times, str):
        print(f"{seq:7} {name:44} {times}", flush=True)
        record(options, seq=seq, name=name, **fields, fault=times)
        return
    forward, both = (statistics.median(t[i] for t in times) for i in range(2))
    rates = rate(options, pairs, forward, 1), rate(options, pairs, both, 3.5)
    waited = f" {waited_ms:9.3f}" if waited_ms is not None else ""
    print(f"{seq:7} {name:44} {forward:9.3f} {rates[0]:6.0f} {both:9.3f} {rates[1]:6.0f}{waited}", flush=True)
    record(options, seq=seq, name=name, **fields, forward_ms=forward, forward_tflop_s=rates[0], both_ms=both,
           both_tflop_s=rates[1], waited_ms=waited_ms, host_us_per_tick=host[0],
           made_ms=host[1], first_round_ms=host[2])


def record(options, **found):
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            print(json.dumps({"gpus": options.gpus, "heads": options.heads, "kv_heads": options.kv_heads,
                              "head_dim": options.head_dim, "documents": options.documents,
                              **({"lengths": options.lengths} if options.documents else {}), **found}),
                  file=file)


def run_torch(options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "times.json"
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29533")
        if options.documents:
            torch.multiprocessing.spawn(varlen_rank, (options, str(path)), nprocs=options.gpus)
            for seq, times in json.loads(path.read_text()).items():
                lengths = document_lengths(int(seq), options.documents, options.lengths)
                row(options, int(seq), "torch varlen_attn, whole documents", times, by="torch",
                    pairs=sum(n * (n + 1) / 2 for n in lengths))
            return
        torch.multiprocessing.spawn(torch_rank, (options, str(path)), nprocs=options.gpus)
        for key, times in json.loads(path.read_text()).items():
            seq, name = key.split(" ", 1)
            row(options, int(seq), f"torch context parallel, {name}", times, by="torch")


def library_path():
    packages = pathlib.Path(torch.__file__).parent.parent / "nvidia"
    names = ("libcudnn.so.9", "libcudart.so.13", "libnccl.so.2")
    found = {str(p.parent) for name in names for p in packages.rglob(name)}
    return ":".join(sorted(found) + [os.environ.get("LD_LIBRARY_PATH", "")])


def own_jobs(options):
    for ulysses in [d for d in range(1, options.gpus + 1) if options.gpus % d == 0]:
        ring = options.gpus // ulysses
        for backend in options.backends:
            for transport in options.transports if options.gpus > 1 else ["copy_engine"]:
                for method in (["ring", "all_gather_kv", *(["gated"] if options.gated else [])] if ring > 1 else ["ring"]):
                    for chunks in (options.chunks if ulysses > 1 else [1]):
                        yield backend, method, transport, ring, ulysses, chunks


def run_own(options):
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}
    with subprocess.Popen([options.bench], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as bench:
        for seq in options.seq:
            lengths = (",".join(map(str, document_lengths(seq, options.documents, options.lengths)))
                       if options.documents else "0")
            for backend, method, transport, ring, ulysses, chunks in own_jobs(options):
                bench.stdin.write(f"{backend} {method} {transport} {ring} {ulysses} {chunks} {seq} {options.heads} "
                                  f"{options.kv_heads} {options.head_dim} 1 {options.rounds} {lengths}\n")
                bench.stdin.flush()
                answer = bench.stdout.readline().strip()
                name = f"{ring} x {ulysses}, {method}, {chunks} chunks, {backend}, {transport}"
                fields = {"by": "usp", "ring": ring, "ulysses": ulysses, "chunks": chunks, "method": method,
                          "backend": backend, "transport": transport}
                if answer.startswith("error") or not answer:
                    row(options, seq, name, answer[:150] or "ended", **fields)
                    continue
                *times, waited, pairs, per_tick, made, first = [float(x) for x in answer.split()]
                times = [1e3 * t for t in times]
                row(options, seq, name, [(f, f + b) for f, b in zip(times[::2], times[1::2])], 1e3 * waited, pairs,
                    (1e6 * per_tick, 1e3 * made, 1e3 * first), **fields)
        bench.stdin.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seq", type=int, nargs="+", default=[16384, 65536, 131072])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--documents", type=int, default=0, metavar="MEAN",
                        help="packed documents of that mean length (one document)")
    parser.add_argument("--lengths", choices=["exponential", "long_tailed"], default="exponential",
                        help="how they are distributed; long_tailed: log-normal, sigma 1.6")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backends", nargs="+", default=["cudnn", "mma"], help="of the library's (cudnn mma)")
    parser.add_argument("--transports", nargs="+", default=["copy_engine", "nccl"],
                        choices=["copy_engine", "nccl"])
    parser.add_argument("--gated", action="store_true",
                        help="rings also as all_gather_kv in one call, which awaits each block as it lands")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4], help="head chunks of Ulysses meshes (1 2 4)")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(f"{options.gpus} x {torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}, NCCL {torch.cuda.nccl.version()}, {platform.platform()}; "
          f"causal, {options.heads}/{options.kv_heads} heads of {options.head_dim}, bf16")
    print(f"{'seq':>7} {'':44} {'fwd ms':>9} {'TF/s':>6} {'both ms':>9} {'TF/s':>6} {'waits ms':>9}")
    if options.gpus > 1 and not options.no_torch:
        run_torch(options)
    run_own(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
