#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPU backend on one device beside PyTorch's scaled_dot_product_attention, in turns, forward and backward.

    tests/bench/bench_cuda_attention_torch.py build/bin/bench_cuda_attention [--backend cudnn] [--peer cudnn]

Needs a Python with torch on a machine with a GPU; libcudnn.so.9 and libcudart.so.13 are looked for beside torch. One
row per shape: median milliseconds of both, and the ratio PyTorch / ours (above 1: ours is faster). bf16, random inputs,
the L2 cache flushed before each call. --json FILE appends each row to a file too, one JSON object a line.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
HEADS = [(16, 16), (32, 8)]


def library_path():
    """Folders of the shared libraries that torch brings."""
    packages = pathlib.Path(torch.__file__).parent.parent / "nvidia"
    found = {str(p.parent) for name in ("libcudnn.so.9", "libcudart.so.13") for p in packages.rglob(name)}
    return ":".join(sorted(found) + [os.environ.get("LD_LIBRARY_PATH", "")])


class Torch:
    """PyTorch's times of one shape."""

    def __init__(self, peer, shape, head_first):
        rows, (heads, kv_heads), width, self.causal = shape
        self.peer, self.grouped = peer, heads != kv_heads
        self.flush = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

        def tensor(n, gradient=True):
            order = (1, n, rows, width) if head_first else (1, rows, n, width)
            made = torch.randn(order, device="cuda", dtype=torch.bfloat16)
            return (made if head_first else made.transpose(1, 2)).requires_grad_(gradient)

        self.q, self.k, self.v = tensor(heads), tensor(kv_heads), tensor(kv_heads)
        self.d_o = tensor(heads, False)

    def timed(self, work):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # As long as what Python takes to enqueue the call; both sides flush alike, since a pause lets the card
        # clock higher.
        self.flush.fill_(1)
        begin.record()
        result = work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end), result

    def times(self, rounds, first):
        """Of some rounds; the first call has one more, which does not count."""
        found = []
        with sdpa_kernel(self.peer):
            for _ in range(rounds + first):
                forward, o = self.timed(lambda: torch.nn.functional.scaled_dot_product_attention(
                    self.q, self.k, self.v, is_causal=self.causal, enable_gqa=self.grouped))
                backward, _ = self.timed(lambda: torch.autograd.grad(o, (self.q, self.k, self.v), self.d_o))
                found.append((forward, backward))
        return found[first:]


def own_times(bench, backend, shape, head_first, rounds):
    rows, (heads, kv_heads), width, causal = shape
    bench.stdin.write(f"{backend} {rows} {heads} {kv_heads} {width} {int(causal)} {int(head_first)} {rounds}\n")
    bench.stdin.flush()
    numbers = [1e3 * float(x) for x in bench.stdout.readline().split()]
    return list(zip(numbers[::2], numbers[1::2]))


def record(options, **row):
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)


def compare(bench, options, shape, head_first):
    ours, theirs = [], []
    peer = Torch(PEERS[options.peer], shape, head_first)
    for turn in range(options.turns):
        theirs += peer.times(options.rounds, int(turn == 0))
        ours += own_times(bench, options.backend, shape, head_first, options.rounds)
    rows, (heads, kv_heads), width, causal = shape
    cells = []
    for i in range(2):
        own, other = (statistics.median(t[i] for t in times) for times in (ours, theirs))
        flops = (4, 10)[i] * rows * rows * width * heads / (2 if causal else 1)
        record(options, seq=rows, heads=heads, kv_heads=kv_heads, head_dim=width, causal=causal,
               order="bhsd" if head_first else "bshd", **{"pass": ("forward", "backward")[i]}, ms=own, peer_ms=other)
        cells.append(f"{own:8.3f} {other:8.3f} {flops / own * 1e-9:6.0f} {other / own:6.3f}")
    print(f"{rows:6} {heads:2}/{kv_heads:<2} {width:4} {'causal' if causal else 'full':6} "
          f"{'bhsd' if head_first else 'bshd'} | {cells[0]} | {cells[1]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--backend", default="cudnn", choices=["cudnn", "hopper", "mma"])
    parser.add_argument("--peer", default="cudnn", choices=sorted(PEERS))
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seq", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--orders", nargs="+", default=["bhsd", "bshd"], choices=["bhsd", "bshd"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{platform.platform()}")
    print("   seq heads   dim mask   order |  fwd ms torch ms TFLOP/s  ratio |  bwd ms torch ms TFLOP/s  ratio")
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}
    with subprocess.Popen([options.bench], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as bench:
        for order in options.orders:
            for seq in options.seq:
                for heads in HEADS:
                    for causal in (False, True):
                        compare(bench, options, (seq, heads, options.head_dim, causal), order == "bhsd")
        bench.stdin.close()


if __name__ == "__main__":
    main()
