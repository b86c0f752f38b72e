#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes configs/calibrations/*.json from public measurement tables.

usage: make_calibrations.py COLLECTIVES.csv ATTENTION.csv SDPA.csv BACK_TO_BACK.csv OUT_DIR     (needs numpy and scipy)

COLLECTIVES.csv: platform,lib_version,dtype,op,ngpus,bytes,time_us_min,time_us_max,n_dup  (nccl-tests, out of place)
ATTENTION.csv:   platform,kernel,batch,isl,heads,kv_heads,head_dim,window,ms              (causal prefill, bf16)
Both are extracts of ai-dynamo/aiconfigurator @095f58a5 (Apache-2.0). End-to-end tables are never read here.
SDPA.csv:        gpu_name,cudnn_backend_version,data_type,attn_mask,sliding_window_size,batch_size,q_seqlen,kv_seqlen,
                 num_q_heads,num_kv_heads,head_dim_qk,head_dim_vo,deterministic_bwd,profile_pass,time_ms,...
An extract of NVIDIA/cudnn-frontend @3929da2, benchmark/sdpa_benchmark_training/results (MIT). Its calls rest: after each
the benchmark sleeps ten times as long as the call took.
BACK_TO_BACK.csv: calls that do not, tests/data/measurements/sdpa_back_to_back.csv.
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
# The card's figures of configs/devices/devices.json are what kernels are borrowed by.
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
# Kernels of cuDNN: (name in SDPA.csv, calibration with the links, cuDNN version, version as printed).
CUDNN = {"gb200-cudnn-9.22": ("NVIDIA GB200", "gb200", "92200", "9.22.0"),
         "gb300-cudnn-9.22": ("NVIDIA GB300", "gb300", "92200", "9.22.0"),
         "h200_sxm-cudnn-9.19": ("NVIDIA H200", "h200_sxm", "91901", "9.19.1")}
DEVICES = {"a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm",
           "b300_sxm": "b300-sxm", "l40s": "l40s", "rtx_pro_6000": "rtx-pro-6000"}
SCALED_FROM = {"b300_sxm": "gb300-cudnn-9.22", "rtx_pro_6000": "l40s"}
SCALED_WHY = {
    "rtx_pro_6000": "no attention data; L40S is the nearest part (PCIe, mma.sync kernels), scaled by peak bf16",
    "b300_sxm": "no attention data; the same chip as GB300, scaled by multiprocessors, clock and power limit",
}
# Kernel families, from the FlashAttention-3 paper's H100 tables (bwd full against fwd full; least squares of 1/rate = 1/asymptote + slope/length). Backward entries: (head dim, head dim of V, rate forward / rate backward, keys
# added to extra_keys). 192/128: cuDNN 9.19 on H200. A full mask has no rows of its own: it runs at the causal
# rate of the longest call (606 against 602 TFLOP/s at 16K on H100; cuDNN on H200 is flat from 4K).
MLA_HOPPER = (192, 128, 1.49, 105)
FAMILY = {
    "fa2": {
        "backward": [(64, 64, 1.105, 174), (128, 128, 1.146, 170)],
        "source": "FlashAttention-3 paper (2024-07), FA2 columns, H100 SXM5, fp16, 16K tokens",
    },
    "fa3": {
        "backward": [(64, 64, 1.03, 127), (128, 128, 1.132, 218), MLA_HOPPER, (256, 256, 1.575, 218)],
        "source": "FlashAttention-3 paper (2024-07), FA3 columns, H100 SXM5, fp16, 16K tokens; head_dim 256: "
                  "flash-attention pull request 2889 (H200, 16K); 192/128: cuDNN 9.19 on H200",
    },
    "trtllm": {
        "backward": [(64, 64, 1.30, 127), (128, 128, 1.30, 218), (192, 128, 1.62, 105)], "backward_band": 0.3,
        "source": "forward over backward rate of cuDNN 9.22 on GB200 and GB300, 16K to 32K tokens: this kernel has no "
                  "backward",
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


def kv_rate(ms_per_byte):
    """Of the reads of K and V; nothing where the fit ends at its bound: no measured call shows them."""
    return {} if 1e3 / ms_per_byte >= 0.999e15 else {"kv_bytes_per_s": si(number(1e-6 / ms_per_byte), 9)}


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
                 "extra_keys": number(x[3]), **kv_rate(x[4]), "rows": len(fit), "mape": number(error.mean(), 3),
                 "p90": number(np.quantile(error, 0.9), 3)}
        windowed = select(rows, platform, kernel, head_dim, True)
        if windowed:
            error = np.abs(predict(x, windowed, head_dim, sms) / column(windowed, "ms") - 1)
            entry["window_mape"] = number(error.mean(), 3)
        out.append(entry)
    return out


def family_json(name, softmax_fraction):
    family = FAMILY[name]
    out = {"name": name, "backward": [
        {"head_dim": d, "rate_ratio": r, "extra_keys": k} if d == v else
        {"head_dim": d, "head_dim_v": v, "rate_ratio": r, "extra_keys": k} for d, v, r, k in family["backward"]],
           "source": family["source"]}
    out.update({k: family[k] for k in ("full_gain", "full_extra_keys", "backward_band") if k in family})
    if softmax_fraction:
        out["softmax_fraction"] = number(softmax_fraction, 3)
        out["softmax_source"] = ("only head_dim 128 is measured: 0.043 SM clocks per score outside the matrix products "
                                 "(FA2 on H100 .043-.046, on L40S .041), of this part's clocks per score at 1.41 GHz")
    return out


def sdpa_rows(rows, gpu, head_dim, backward):
    """bf16 rows of one card, head dim and pass; backward kernels are the ones that add in any order."""
    out = []
    for r in rows:
        if r["gpu_name"] != gpu or r["data_type"] != "bfloat16" or int(r["head_dim_qk"]) != head_dim:
            continue
        if r["profile_pass"] == "both":
            ms = float(r["bwd_time_ms" if backward else "fwd_time_ms"])
        elif r["profile_pass"] == ("bwd" if backward else "fwd") and not (backward and r["deterministic_bwd"] == "True"):
            ms = float(r["time_ms"])
        else:
            continue
        out.append({"full": r["attn_mask"] == "no_mask", "window": int(r["sliding_window_size"] or 0), "ms": ms,
                    "keys": int(r["kv_seqlen"]), "rows": int(r["q_seqlen"]),
                    "heads": int(r["batch_size"]) * int(r["num_q_heads"]),
                    "kv": int(r["batch_size"]) * int(r["num_kv_heads"]) * (head_dim + int(r["head_dim_vo"])) * 2,
                    "head_dim_v": int(r["head_dim_vo"])})
    return out


def sdpa_predict(x, rows, sms):
    """AttentionCostModel's formula in ms; x: launch, ms of a tile's key, serial, extra keys, ms per byte, full's extra."""
    launch, per_key, serial, extra, per_kv_byte, full_extra = x
    out = []
    for r in rows:
        w = min(r["window"], r["rows"])
        mean = r["keys"] if r["full"] else w - w * (w - 1) / (2 * r["rows"]) if w else (r["rows"] + 1) / 2
        longest = min(r["rows"], mean + TILE) if w else r["keys"]
        tiles = r["heads"] * np.ceil(r["rows"] / TILE)
        work = tiles * (mean + extra * (full_extra if r["full"] else 1)) / sms
        out.append(launch + per_key * (work + (0.5 if r["full"] else 1) * serial * longest)
                   + r["kv"] * r["keys"] * per_kv_byte)
    return np.array(out)


def sdpa_fit(rows, head_dim, sms, full_extra=None):
    """Forward: least squares of log time over calls without a window; (parameters, errors)."""
    ms = np.array([r["ms"] for r in rows])
    guess = 4 * TILE * (head_dim + rows[0]["head_dim_v"]) / 2 / (1.5e12 / sms)
    low = [1e-3, guess / 100, 1e-3, 1, 1e-12, full_extra or 0.3]
    high = [0.2, guess * 100, 3, 3000, 1e-4, (full_extra or 1.5) * 1.0001]
    r = least_squares(lambda x: np.log(sdpa_predict(np.exp(x), rows, sms) / ms),
                      np.log([0.02, guess, 0.3, 150, 1e-9, full_extra or 0.7]), loss="soft_l1", f_scale=0.1,
                      bounds=(np.log(low), np.log(high)))
    x = np.exp(r.x)
    return x, np.abs(sdpa_predict(x, rows, sms) / ms - 1)


def sdpa_fit_backward(rows, forward, sms):
    """Backward: launch, time of a key and extra keys; the rest as forward, K and V counted twice."""
    ms = np.array([r["ms"] for r in rows])

    def whole(x):
        return [x[0], x[1], forward[2], forward[3] * x[2], 2 * forward[4], forward[5]]

    r = least_squares(lambda x: np.log(sdpa_predict(whole(np.exp(x)), rows, sms) / ms),
                      np.log([0.05, 3 * forward[1], 1.0]), loss="soft_l1", f_scale=0.1,
                      bounds=(np.log([1e-3, forward[1], 1e-3]), np.log([0.2, 30 * forward[1], 10])))
    y = whole(np.exp(r.x))
    return y, np.abs(sdpa_predict(y, rows, sms) / ms - 1)


def sustained(rows, gpu, dims, backward, sms):
    """Rate of calls back to back over what the fits of calls with rests say; None where none were measured."""
    ratios = []
    for r in rows:
        if r["gpu_name"] != gpu:
            continue
        d = int(r["head_dim"])
        fit, back = (next(x for x in part if x["head_dim"] == d) for part in (dims, backward))
        call = [{"full": False, "window": 0, "keys": int(r["q_seqlen"]), "rows": int(r["q_seqlen"]),
                 "heads": int(r["batch_size"]) * int(r["num_q_heads"]),
                 "kv": int(r["batch_size"]) * int(r["num_kv_heads"]) * 2 * d * 2}]
        per_key = 4e3 * TILE * d * sms / fit["peak_flop_per_s"]
        x = [fit["launch_s"] * 1e3, per_key, fit["serial"], fit["extra_keys"], 1e3 / fit.get("kv_bytes_per_s", np.inf), 1]
        y = [back["launch_s"] * 1e3, 2.5 * back["rate_ratio"] * per_key, x[2], x[3] + back["extra_keys"], 2 * x[4], 1]
        both = sdpa_predict(x, call, sms)[0] + sdpa_predict(y, call, sms)[0]
        ratios.append(both / float(r["fwd_bwd_ms"]))
    return number(float(np.mean(ratios)), 3) if ratios else None


def sdpa_attention(rows, gpu, sms, narrow):
    """Fits of both passes by head dim; `narrow`: rate of head_dim 64 over that of 128, where only windows were measured."""
    dims, backward, full = [], [], []
    for head_dim in (64, 128, 192):
        ahead = [r for r in sdpa_rows(rows, gpu, head_dim, False) if not r["window"]]
        back = [r for r in sdpa_rows(rows, gpu, head_dim, True) if not r["window"]]
        if len(ahead) < 3:
            continue
        masks = any(r["full"] for r in ahead)
        x, error = sdpa_fit(ahead, head_dim, sms, None if masks else full[0])
        if masks:
            full.append(x[5])
        y, back_error = sdpa_fit_backward(back, x, sms)
        v = ahead[0]["head_dim_v"]
        width = (head_dim + v) / 2
        named = {"head_dim": head_dim} if v == head_dim else {"head_dim": head_dim, "head_dim_v": v}
        rate = 4 * TILE * width / x[1] * sms / 1e9
        dims.append({**named, "launch_s": si(number(x[0] * 1e3), -6), "peak_flop_per_s": si(number(rate), 12),
                     "serial": number(x[2]), "extra_keys": number(x[3]), "full_extra_keys": number(x[5], 3),
                     **kv_rate(x[4]), "rows": len(ahead),
                     "mape": number(error.mean(), 3), "p90": number(np.quantile(error, 0.9), 3)})
        backward.append({**named, "rate_ratio": number(y[1] / x[1] / 2.5), "extra_keys": number(y[3] - x[3]),
                         "launch_s": si(number(y[0] * 1e3), -6), "rows": len(back),
                         "mape": number(back_error.mean(), 3), "p90": number(np.quantile(back_error, 0.9), 3)})
    if dims[0]["head_dim"] == 128 and narrow:
        dims.insert(0, {**dims[0], "head_dim": 64, "peak_flop_per_s": si(number(
            dims[0]["peak_flop_per_s"] * narrow / 1e12), 12), "rows": 0, "mape": 0.2, "p90": 0.3})
    return dims, backward


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


def card(devices, name):
    """Figures of a device by which kernels are borrowed."""
    d = next(d for d in devices if d["name"] == name)
    return {"generation": d["generation"], "clock_hz": d["clock_hz"]["value"], "power_w": d["power_w"]["value"]}


def power_clock(watts, lender_watts):
    """The sustained clock over the lender's: the law of GemmCard::at_power."""
    return ((watts / lender_watts - 0.17) / (1 - 0.17)) ** 0.4


def borrowed(dims, name, base, device, lender):
    """Fits of another card: per multiprocessor and clock within a generation, else by peak."""
    same = device["generation"] == lender["generation"]
    if same:
        speed = device["sm_count"] * device["clock_hz"] / (lender["sm_count"] * lender["clock_hz"])
        speed *= power_clock(device["power_w"] / device["sm_count"], lender["power_w"] / lender["sm_count"])
    else:
        speed = device["bf16_flop_per_s"] / lender["bf16_flop_per_s"]
    out = [dict(d) for d in dims]
    for d in out:
        d["peak_flop_per_s"] = si(number(d["peak_flop_per_s"] / 1e12 * speed), 12)
    return out


def write(out_dir, content):
    with open(f"{out_dir}/{content['name']}.json", "w") as f:
        f.write(compact(json.dumps(content, indent=1)) + "\n")


# Line rate of a device: NVLink through NVSwitch, or its PCIe slot.
LINE_RATE = {"a100_sxm": 300, "h100_sxm": 450, "h200_sxm": 450, "b200_sxm": 900, "b300_sxm": 900, "gb200": 900,
             "gb300": 900, "l40s": 32, "rtx_pro_6000": 64}


def links_of(name, comm, repeat):
    table, _, _, _, _, nccl, _, _ = PLATFORMS[name]
    source = {"measurement": "collectives", "source": CONFIGURATOR + ", nccl_perf.parquet",
              "licence": "Apache-2.0", "version": "NCCL " + nccl,
              "note": "nccl-tests out of place, fp16, one node; the newest NCCL version of this platform; minimum over "
                      "repeated runs (the slower ones carry other work's noise; this version has none)"}
    links = {"class": "nvswitch" if LINE_RATE[name] > 100 else "pcie", "bytes_per_s": si(LINE_RATE[name], 9),
             "source": "data sheet"}
    return source, {"links": links, "repeatability": repeat, "collectives": collectives(comm, table, nccl),
                    "point_to_point": point_to_point() if name in ("h100_sxm", "h200_sxm") else [],
                    "interference": interference()}


MEMORY = {"value": 0.88, "source": "device copy 2.95 TB/s of 3.35 on H100; other parts assumed alike"}


def main():
    comm, prefill, sdpa, back_to_back, out_dir = *map(read, sys.argv[1:5]), sys.argv[5]
    devices = json.load(open(__file__.rsplit("/", 3)[0] + "/devices/devices.json"))["devices"]
    repeat = repeatability(comm)
    fits = {n: attention(prefill, p[0], p[6], p[2], p[3]) for n, p in PLATFORMS.items() if p[6]}
    peaks = {d["head_dim"]: d["peak_flop_per_s"] for d in fits["b200_sxm"]}
    narrow = peaks[64] / peaks[128]
    device_of = {}
    for name, p in PLATFORMS.items():
        device_of[name] = {"name": p[1], "sm_count": p[2], "bf16_flop_per_s": si(p[3], 12), "memory_bytes_per_s":
                           si(p[4], 9), **card(devices, DEVICES.get(name, name)), "source": "vendor data sheet, dense"}
    backward_of = {}
    for name, (gpu, base, _, printed) in CUDNN.items():
        sms = PLATFORMS[base][2]
        fits[name], backward_of[name] = sdpa_attention(sdpa, gpu, sms, narrow if base != "h200_sxm" else None)
        device_of[name] = device_of[base]
        links, content = links_of(base, comm, repeat)
        rows = {"measurement": "attention", "source": "NVIDIA/cudnn-frontend @3929da2, benchmark/"
                "sdpa_benchmark_training/results", "licence": "MIT", "version": "cuDNN " + printed,
                "note": "bf16, both passes, 2048 to 32768 tokens, batch 1 and 2" +
                ("; head_dim 64: rate of B200's trtllm kernels against their head_dim 128" if base != "h200_sxm" else "")}
        ratio = sustained(back_to_back, gpu, fits[name], backward_of[name], sms)
        clock = {"sustained": {"ratio": ratio, "source": "the measured calls rest ten times their own time; calls back to "
                               "back on one H200, 64K causal, both passes"}} if ratio else {}
        write(out_dir, {"format": "usp.calibration", "version": 2, "name": name, "device": device_of[name],
                        "sources": [links, rows], **content,
                        "attention": {"library": {"name": "cudnn", "version": printed}, "measured_tokens": [2048, 32768],
                                      "tile_rows": TILE, **clock, "head_dims": fits[name],
                                      "family": {"name": "cudnn", "backward": backward_of[name],
                                                 "source": "both passes measured"}},
                        "memory_efficiency": MEMORY})
    for name, (_, _, sms, _, _, _, kernel, family) in PLATFORMS.items():
        if name in ("gb200", "gb300"):
            continue
        base = SCALED_FROM.get(name)
        dims = borrowed(fits[base], name, base, device_of[name], device_of[base]) if base else fits[name]
        fraction = 0.0
        if len(dims) == 1:
            fraction = FA2_SOFTMAX_CLOCKS / (4 * 128 * sms * A100_HZ / dims[0]["peak_flop_per_s"])
        cudnn = base in CUDNN
        library = kernel or (None if cudnn else PLATFORMS[base][6])
        links, content = links_of(name, comm, repeat)
        rows = {"measurement": "attention", "source": CONFIGURATOR + ", context_attention_perf.parquet",
                "licence": "Apache-2.0", "version": library,
                "note": "causal prefill, bf16, 512 to 16384 tokens, batch 1 to 4" + (
                    "; fitted on " + base if base else "")}
        if cudnn:
            rows.update({"source": "NVIDIA/cudnn-frontend @3929da2, benchmark/sdpa_benchmark_training/results",
                         "licence": "MIT", "version": "cuDNN " + CUDNN[base][3], "note": "bf16; fitted on " + base})
        named = {"name": "cudnn", "version": CUDNN[base][3]} if cudnn else {
            "name": library, "version": "of aiconfigurator 095f58a5"}
        kernels = {"name": "cudnn", "backward": backward_of[base], "source": "both passes measured on " + base} \
            if cudnn else family_json(family, fraction)
        content = {"format": "usp.calibration", "version": 2, "name": name, "device": device_of[name],
                   "sources": [links, rows], **content,
                   "attention": {"library": named, "measured_tokens": [2048, 32768] if cudnn else [512, 16384],
                                 "tile_rows": TILE, "head_dims": dims, "family": kernels},
                   "memory_efficiency": MEMORY}
        if base:
            content["attention"]["scaled_from"] = base
            content["attention"]["scaled_why"] = SCALED_WHY[name]
        write(out_dir, content)


def compact(text):
    """Lists of numbers and small objects on one line."""
    import re
    text = re.sub(r"\[\s+((?:-?[\d.e+-]+,?\s*)+)\]", lambda m: "[" + " ".join(m.group(1).split()) + "]", text)
    return re.sub(r"\{\s+([^{}]{1,240}?)\s+\}", lambda m: "{" + " ".join(m.group(1).split()) + "}", text)


if __name__ == "__main__":
    main()
