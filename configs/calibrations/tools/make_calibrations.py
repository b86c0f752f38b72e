#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes configs/calibrations/*.json from public measurement tables.

usage: make_calibrations.py COLLECTIVES.csv ATTENTION.csv OUT_DIR     (needs numpy and scipy)

COLLECTIVES.csv: platform,lib_version,dtype,op,ngpus,bytes,time_us_min,time_us_max,n_dup  (nccl-tests, out of place)
ATTENTION.csv:   platform,kernel,batch,isl,heads,kv_heads,head_dim,window,ms              (causal prefill, bf16)
Both are extracts of ai-dynamo/aiconfigurator @095f58a5 (Apache-2.0). End-to-end tables are never read here.
"""
import csv
import json
import sys
from decimal import Decimal

import numpy as np
from scipy.optimize import least_squares

TILE = 128
OPERATIONS = ("alltoall", "all_gather", "reduce_scatter", "all_reduce")
CONFIGURATOR = "ai-dynamo/aiconfigurator @095f58a5"
# name: (table name, device, SMs, dense bf16 TFLOP/s, memory GB/s, NCCL version, kernel in the attention table)
PLATFORMS = {
    "a100_sxm": ("a100_sxm", "A100-SXM4-80GB", 108, 312, 2039, "2.27.3", "vllm_flash_attn", "fa2"),
    "h100_sxm": ("h100_sxm", "H100-SXM5-80GB", 132, 989, 3352, "2.29.2", "vllm_flash_attn_fa3", "fa3"),
    "h200_sxm": ("h200_sxm", "H200-SXM5-141GB", 132, 989, 4800, "2.29.2", "vllm_flash_attn_fa3", "fa3"),
    "b200_sxm": ("b200_sxm", "B200-SXM-180GB", 148, 2250, 8000, "2.29.2", "vllm_flashinfer_trtllmprefill", "trtllm"),
    "b300_sxm": ("b300_sxm", "B300-SXM-270GB", 148, 2250, 8000, "2.29.2", None, "trtllm"),
    "gb200": ("gb200", "GB200-185GB", 148, 2500, 8000, "2.29.2", None, "trtllm"),
    "gb300": ("gb300", "GB300", 148, 2500, 8000, "2.29.2", None, "trtllm"),
    "l40s": ("l40s", "L40S-48GB", 142, 362, 864, "2.27.3", "vllm_flash_attn_fa2", "fa2"),
    "rtx_pro_6000": ("rtx_pro_6000_server", "RTX PRO 6000 Blackwell Server", 188, 468, 1792, "2.29.2", None, "fa2"),
}
SCALED_FROM = {"b300_sxm": "b200_sxm", "gb200": "b200_sxm", "gb300": "b200_sxm", "rtx_pro_6000": "l40s"}
SCALED_WHY = {
    "rtx_pro_6000": "no attention data; L40S is the nearest part (PCIe, mma.sync kernels), scaled by peak bf16"
}
# Kernel families, from the FlashAttention-3 paper's H100 tables (fwd full against causal, bwd full against fwd full;
# least squares of 1/rate = 1/asymptote + slope/length). full_extra_keys multiplies extra_keys on a full mask;
# backward head dims carry (rate forward / rate backward, keys added to extra_keys).
FAMILY = {
    "fa2": {
        "full_gain": 1.04, "full_extra_keys": 0.48,
        "backward": [(64, 1.105, 174), (128, 1.146, 170)],
        "source": "FlashAttention-3 paper (2024-07), FA2 columns, H100 SXM5, fp16, 16K tokens",
    },
    "fa3": {
        "full_gain": 1.0, "full_extra_keys": 0.68,
        "backward": [(64, 1.03, 127), (128, 1.132, 218), (256, 1.575, 218)],
        "source": "FlashAttention-3 paper (2024-07), FA3 columns, H100 SXM5, fp16, 16K tokens; head_dim 256: "
                  "flash-attention pull request 2889 (H200, 16K)",
    },
    "trtllm": {
        "full_gain": 1.0, "full_extra_keys": 0.68,
        "backward": [(64, 1.03, 127), (128, 1.132, 218), (256, 1.575, 218)],
        "source": "FA3 figures on H100; this kernel has no published backward or full-mask figures here",
    },
}
# Softmax work per score that is not hidden behind the matrix products, in SM clocks: FA2's head_dim 64 and 128 rates
# give .046 (H100, full), .043 (H100, causal) and .041 (the L40S fit of this script at 2.52 GHz).
FA2_SOFTMAX_CLOCKS = 0.043
A100_HZ = 1.41e9


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def number(x, digits=4):
    return float(f"{x:.{digits}g}")


def si(x, exponent):
    """x times 10^exponent, its decimal digits kept; an integer where it is one."""
    value = Decimal(repr(x)).scaleb(exponent)
    return int(value) if value == value.to_integral_value() else float(value)


def collectives(rows, table, version):
    curves = []
    for op in OPERATIONS:
        for ranks in (2, 4, 8):
            points = sorted((int(r["bytes"]), float(r["time_us_min"])) for r in rows
                            if r["platform"] == table and r["lib_version"] == version and r["dtype"] == "half"
                            and r["op"] == op and int(r["ngpus"]) == ranks)
            if points:
                assert all(b[0] == 2 * a[0] for a, b in zip(points, points[1:])), (table, op, ranks)
                curves.append({"operation": op, "ranks": ranks, "first_bytes": points[0][0],
                               "time_s": [si(t, -6) for _, t in points]})
    return curves


def repeatability(rows):
    """p90 over all repeated measurements of (max - min) / (max + min), for short and long transfers."""
    pairs = [(int(r["bytes"]), float(r["time_us_min"]), float(r["time_us_max"])) for r in rows if int(r["n_dup"]) > 1]
    half = [(b, (hi - lo) / (hi + lo)) for b, lo, hi in pairs]
    below = [x for b, x in half if b < 1 << 20]
    above = [x for b, x in half if b >= 1 << 20]
    return {"small_message_ratio": number(np.quantile(below, 0.9), 3),
            "large_message_ratio": number(np.quantile(above, 0.9), 3)}


def select(rows, platform, kernel, head_dim, windowed=False):
    return [r for r in rows if r["platform"] == platform and r["kernel"] == kernel
            and int(r["head_dim"]) == head_dim and (r["window"] != "0") == windowed]


def column(rows, name):
    return np.array([float(r[name]) for r in rows])


def predict(x, rows, head_dim, sms):
    """launch + tile work / SMs + longest tile + K and V read: the model of AttentionCostModel::forward, in ms."""
    launch, per_key, serial, extra, per_kv_byte = x
    s = column(rows, "isl")
    window = column(rows, "window")
    mean = np.where(window > 0, np.minimum(window, s) - np.minimum(window, s) * (np.minimum(window, s) - 1) / (2 * s),
                    (s + 1) / 2)
    longest = np.where(window > 0, np.minimum(s, mean + TILE), s)
    batch = column(rows, "batch")
    tiles = batch * column(rows, "heads") * np.ceil(s / TILE)
    kv_bytes = batch * column(rows, "kv_heads") * s * 2 * head_dim * 2
    return launch + per_key * (tiles * (mean + extra) / sms + serial * longest) + kv_bytes * per_kv_byte


def attention(rows, platform, kernel, sms, peak):
    out = []
    for head_dim in (64, 128):
        fit = select(rows, platform, kernel, head_dim)
        if not fit:
            continue
        ms = column(fit, "ms")
        guess = 4 * TILE * head_dim / (0.6 * peak * 1e9 / sms)
        r = least_squares(lambda x: np.log(predict(np.exp(x), fit, head_dim, sms) / ms),
                          np.log([0.01, guess, 0.5, 100, 1e-9]), loss="soft_l1", f_scale=0.1)
        x = np.exp(r.x)
        error = np.abs(predict(x, fit, head_dim, sms) / ms - 1)
        entry = {"head_dim": head_dim, "launch_s": si(number(x[0] * 1e3), -6), "peak_flop_per_s":
                 si(number(4 * TILE * head_dim / x[1] * sms / 1e9), 12), "serial": number(x[2]),
                 "extra_keys": number(x[3]), "kv_bytes_per_s": si(number(1e-6 / x[4]), 9), "rows": len(fit), "mape": number(error.mean(), 3),
                 "p90": number(np.quantile(error, 0.9), 3)}
        windowed = select(rows, platform, kernel, head_dim, True)
        if windowed:
            error = np.abs(predict(x, windowed, head_dim, sms) / column(windowed, "ms") - 1)
            entry["window_mape"] = number(error.mean(), 3)
        out.append(entry)
    return out


def family_json(name, softmax_fraction):
    family = FAMILY[name]
    out = {"name": name, "full_gain": family["full_gain"], "full_extra_keys": family["full_extra_keys"],
           "backward": [{"head_dim": d, "rate_ratio": r, "extra_keys": k} for d, r, k in family["backward"]],
           "source": family["source"]}
    if softmax_fraction:
        out["softmax_fraction"] = number(softmax_fraction, 3)
        out["softmax_source"] = ("only head_dim 128 is measured: 0.043 SM clocks per score outside the matrix products "
                                 "(FA2 on H100 .043-.046, on L40S .041), of this part's clocks per score at 1.41 GHz")
    return out


def point_to_point():
    mib = 1 << 20
    h100 = "measured on 2x H100-SXM5-80GB, NV18, driver 580, both directions at once"
    ce = [(32, 317), (64, 349), (256, 380)]
    nccl = [(64, 178), (512, 319)]
    return [
        {"transport": "copy_engine", "points": [{"bytes": m * mib, "bytes_per_s": si(g, 9)} for m, g in ce],
         "source": h100 + ", peer memcpy"},
        {"transport": "nccl", "points": [{"bytes": m * mib, "bytes_per_s": si(g, 9)} for m, g in nccl],
         "source": h100 + ", NCCL 2.28.9 grouped send/recv"},
    ]


def interference():
    h100 = ("2x H100, cuDNN 9.19 attention (16 heads, head_dim 128, full, 4K-16K) beside 64-256 MiB transfers: "
            "attention time added, as a share of the transfer's own time")
    return [
        {"transport": "copy_engine", "ratio": 0.10, "min_ratio": 0.02, "max_ratio": 0.42,
         "source": h100 + "; 1 to 7 % of the attention's"},
        {"transport": "nccl", "ratio": 0.45, "min_ratio": 0.27, "max_ratio": 0.64,
         "source": h100 + "; 7 to 69 % of the attention's; NCCL 2.28.9 send/recv"},
    ]


def main():
    comm, prefill, out_dir = read(sys.argv[1]), read(sys.argv[2]), sys.argv[3]
    repeat = repeatability(comm)
    fits = {n: attention(prefill, p[0], p[6], p[2], p[3]) for n, p in PLATFORMS.items() if p[6]}
    for name, (table, device, sms, peak, memory, nccl, kernel, family) in PLATFORMS.items():
        base = SCALED_FROM.get(name)
        dims = [dict(d) for d in fits[base or name]]
        if base:
            for d in dims:
                d["peak_flop_per_s"] = si(number(d["peak_flop_per_s"] / 1e12 * peak / PLATFORMS[base][3]), 12)
        fraction = 0.0
        if len(dims) == 1:
            fraction = FA2_SOFTMAX_CLOCKS / (4 * 128 * sms * A100_HZ / dims[0]["peak_flop_per_s"])
        sources = [{"measurement": "collectives", "source": CONFIGURATOR + ", nccl_perf.parquet",
                    "licence": "Apache-2.0", "version": "NCCL " + nccl,
                    "note": "nccl-tests out of place, fp16, one node; the newest NCCL version of this platform; minimum "
                            "over repeated runs (the slower ones carry other work's noise; this version has none)"}]
        sources.append({"measurement": "attention", "source": CONFIGURATOR + ", context_attention_perf.parquet",
                        "licence": "Apache-2.0", "version": PLATFORMS[base or name][6],
                        "note": "causal prefill, bf16, 512 to 16384 tokens, batch 1 to 4" + (
                            "; fitted on " + base if base else "")})
        content = {
            "format": "usp.calibration", "version": 2, "name": name,
            "device": {"name": device, "sm_count": sms, "bf16_flop_per_s": si(peak, 12),
                       "memory_bytes_per_s": si(memory, 9), "source": "vendor data sheet, dense"},
            "sources": sources,
            "repeatability": repeat,
            "collectives": collectives(comm, table, nccl),
            "point_to_point": point_to_point() if name in ("h100_sxm", "h200_sxm") else [],
            "interference": interference(),
            "attention": {"measured_tokens": [512, 16384], "tile_rows": TILE, "head_dims": dims,
                          "family": family_json(family, fraction)},
            "memory_efficiency": {"value": 0.88, "source": "device copy 2.95 TB/s of 3.35 on H100; other parts assumed "
                                                           "alike"},
        }
        if base:
            content["attention"]["scaled_from"] = base
            content["attention"]["scaled_why"] = SCALED_WHY.get(
                name, "no attention data; same architecture, scaled by peak bf16")
        with open(f"{out_dir}/{name}.json", "w") as f:
            text = json.dumps(content, indent=1)
            f.write(compact(text) + "\n")


def compact(text):
    """Lists of numbers and small objects on one line."""
    import re
    text = re.sub(r"\[\s+((?:-?[\d.e+-]+,?\s*)+)\]", lambda m: "[" + " ".join(m.group(1).split()) + "]", text)
    return re.sub(r"\{\s+([^{}]{1,240}?)\s+\}", lambda m: "{" + " ".join(m.group(1).split()) + "}", text)


if __name__ == "__main__":
    main()
