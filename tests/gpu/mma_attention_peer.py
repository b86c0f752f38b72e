#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FLASH backend on the configurations of mma_attention_check --bench.

usage: mma_attention_peer.py [mma_attention_check] [filter]
With the program's path it runs that too and prints the ratios of both, measured in one run.
"""
import math
import re
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

PACKED = [14000, 1500, 6800, 300, 9100, 4200, 2600, 800, 5200, 3400, 1900, 7336, 100, 4700, 1100, 2500]


def exponential(total, mean):
    """Lengths at the quantiles of an exponential distribution, long and short ones mixed."""
    count = total // mean
    lengths = [1 + int(-mean * math.log(1 - (27 * i % count + 0.5) / count)) for i in range(count)]
    lengths[-1] += total - sum(lengths)
    return lengths


def configurations():
    for causal in (False, True):
        kind = "causal" if causal else "full"
        yield f"hd128_{kind}_16k", 16384, 16, 16, 128, causal, None
        yield f"hd128_{kind}_32k", 32768, 16, 16, 128, causal, None
        yield f"hd128_gqa_{kind}_16k", 16384, 32, 8, 128, causal, None
        yield f"hd64_{kind}_16k", 16384, 32, 32, 64, causal, None
        yield f"hd64_gqa_{kind}_16k", 16384, 32, 8, 64, causal, None
        yield f"hd96_{kind}_16k", 16384, 16, 16, 96, causal, None
        yield f"hd192_{kind}_16k", 16384, 8, 8, 192, causal, None
        yield f"hd256_{kind}_16k", 16384, 8, 8, 256, causal, None
    yield "packed_mha_64k", 65536, 16, 16, 128, True, PACKED
    yield "packed_gqa_64k", 65536, 32, 8, 128, True, PACKED
    yield "packed_1k_mha_64k", 65536, 16, 16, 128, True, exponential(65536, 1024)
    yield "packed_1k_gqa_64k", 65536, 32, 8, 128, True, exponential(65536, 1024)
    yield "hd128_causal_4k", 4096, 16, 16, 128, True, None


def median_seconds(work):
    for _ in range(2):
        work()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def measure(rows, heads, kv_heads, width, causal, documents):
    def tensor(h):
        return torch.randn(1, rows, h, width, device="cuda", dtype=torch.bfloat16)

    q, k, v = (tensor(h).requires_grad_() for h in (heads, kv_heads, kv_heads))
    d_o = tensor(heads)
    if documents is None:
        pairs = rows * (rows + 1) / 2 if causal else rows * rows

        def forward():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
                    enable_gqa=heads != kv_heads).transpose(1, 2)
    else:
        from torch.nn.attention.varlen import varlen_attn
        pairs = sum(n * (n + 1) / 2 for n in documents)
        ends = torch.tensor([0] + documents, device="cuda").cumsum(0).to(torch.int32)

        def forward():
            return varlen_attn(q[0], k[0], v[0], ends, ends, max(documents), max(documents), window_size=(-1, 0))[None]
    with torch.no_grad():
        fwd = median_seconds(forward)
    out = forward()
    bwd = median_seconds(lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True))
    flops = 4 * pairs * heads * width
    return flops / fwd * 1e-12, 2.5 * flops / bwd * 1e-12


def own_figures(program, pattern):
    text = subprocess.run([program, "--bench", pattern], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(text, flush=True)
    rows = re.findall(r"^(\S+)\s+fwd\s+\S+ ms\s+(\S+)\s+bwd\s+\S+ ms\s+(\S+)", text, re.M)
    return {name: (float(fwd), float(bwd)) for name, fwd, bwd in rows}


def main():
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    own = own_figures(sys.argv[1], pattern) if len(sys.argv) > 1 else {}
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name, *shape in configurations():
        if pattern not in name:
            continue
        try:
            fwd, bwd = measure(*shape)
        except (RuntimeError, TypeError) as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        line = f"{name:<30} FLASH fwd {fwd:6.1f} bwd {bwd:6.1f}"
        if name in own:
            line += f"  ratio fwd {own[name][0] / fwd:5.3f} bwd {own[name][1] / bwd:5.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
