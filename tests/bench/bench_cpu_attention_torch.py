#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CPU attention kernel beside PyTorch's CPU scaled_dot_product_attention: causal, fp32, one thread.

    tests/bench/bench_cpu_attention_torch.py build/bin/bench_cpu_attention [--venv DIR]

Makes a virtual environment (a throwaway one without --venv), installs torch from PyPI into it and runs both in
turns; prints the best and the median seconds and the ratio PyTorch / ours (above 1: ours is faster).
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import venv

SHAPES = [(2048, 4, 128), (8192, 2, 128)]


def install(folder):
    """Python of a virtual environment that has torch."""
    python = pathlib.Path(folder) / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    return python


def torch_seconds(tokens, heads, width, rounds):
    """Prints "forward forward+backward" per round; runs inside the virtual environment."""
    import torch

    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, heads, tokens, width, requires_grad=True) for _ in range(3))
    gradient = torch.randn(1, heads, tokens, width)
    attention = torch.nn.functional.scaled_dot_product_attention
    for _ in range(rounds + 1):
        start = time.perf_counter()
        with torch.no_grad():
            attention(q, k, v, is_causal=True)
        forward = time.perf_counter() - start
        start = time.perf_counter()
        attention(q, k, v, is_causal=True).backward(gradient)
        print(forward, time.perf_counter() - start)
        q.grad = k.grad = v.grad = None


def measured(command):
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [tuple(float(x) for x in line.split()[-2:]) for line in lines if line]


def compare(bench, python, shape, turns):
    tokens, heads, width = map(str, shape)
    ours, theirs = [], []
    for _ in range(turns):
        ours += measured([bench, "--seconds", "--rounds", "2", "--seq", tokens, "--heads", heads, "--kv-heads", heads,
                          "--head-dim", width])
        theirs += measured([python, __file__, "--torch", tokens, heads, width, "2"])[1:]
    print(f"{tokens} tokens, {heads} heads of {width}: seconds best (median)")
    for column, what in enumerate(("forward", "forward + backward")):
        a, b = [x[column] for x in ours], [x[column] for x in theirs]
        print(f"  {what:19} ours {min(a):.4f} ({statistics.median(a):.4f})  torch {min(b):.4f} "
              f"({statistics.median(b):.4f})  ratio {min(b) / min(a):.2f} "
              f"({statistics.median(b) / statistics.median(a):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the built bench_cpu_attention")
    parser.add_argument("--venv", help="keep the virtual environment here")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as throwaway:
        python = install(args.venv or throwaway)
        for shape in SHAPES:
            compare(args.bench, python, shape, args.turns)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--torch"]:
        torch_seconds(*map(int, sys.argv[2:6]))
    else:
        main()
