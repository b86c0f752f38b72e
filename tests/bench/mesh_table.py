#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every ring x ulysses mesh over the GPUs of one host, in one command and one JSON file.

    cmake --build build --target usp bench_gpu_ranks
    tests/bench/mesh_table.py --gpus 4 --json meshes.json [--cluster dgx-h100] [--bin build/bin] [--quick]

In this order: forward and gradients of every mesh against fp64 at a small size, with its bytes; what the planner
predicts for every case and mesh, and what it would choose, written to the file before anything is timed; then causal
attention forward and backward, 32/8 and 64/8 heads of 128, over every mesh and transport, beside PyTorch's context
parallel and one GPU; packed documents; and what follows from it: the best mesh beside one GPU's rate, beside PyTorch,
the planner's choice beside the best mesh, and the share of waiting. Where there are fewer GPUs than --gpus ranks share
them, and only correctness and predictions are run. Exits with 1 when a mesh is wrong or a step failed.
"""
import argparse
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

HEAD_DIM = 128
HEADS = [(32, 8), (64, 8)]
PACKED = [(512, "exponential"), (2048, "exponential"), (1024, "long_tailed")]
# Beside one GPU's rate and PyTorch, by tokens; the planner's choice beside the best mesh; the share of waiting.
LINEAR = {65536: 0.93, 262144: 0.96}
PYTORCH = {16384: 1.5, 65536: 1.04}
CHOICE, WAITING = 0.97, {262144: 0.04}


def meshes(gpus):
    return [(gpus // u, u) for u in range(1, gpus + 1) if gpus % u == 0]


class Report:
    """What was found so far; on disk after every step, so that predictions are written before measurements."""

    def __init__(self, path):
        self.path = path
        self.found = {"machine": platform.platform(), "correctness": [], "predictions": [], "measured": [],
                      "summary": [], "faults": []}

    def add(self, part, row):
        self.found[part].append(row)
        pathlib.Path(self.path).write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: {json.dumps(row)}", flush=True)


def gpu_names():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.strip().splitlines()


def plan(usp, path, where, *flags):
    """The answer of `usp plan attention --json`, with the plan file at `path`."""
    command = [usp, "plan", "attention", *where, "--head-dim", str(HEAD_DIM), "--backend", "cudnn", "-q", "--json",
               "-o", path, *map(str, flags)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def correctness(usp, options, report):
    with tempfile.TemporaryDirectory() as folder:
        for ring, ulysses in meshes(options.gpus):
            path = f"{folder}/plan.json"
            plan(usp, path, ["--ranks", str(options.gpus)], "--heads", 8, "--kv-heads", 4, "--seq", 1000, "--ring",
                 ring, "--ulysses", ulysses)
            for kernel in dict.fromkeys(["cudnn", "mma", *options.backends]):
                flags = [] if kernel == "cudnn" else ["--device", "cuda", "--kernel", kernel]
                done = subprocess.run([usp, "run", path, "--verify", "--json", "-q", *flags], capture_output=True,
                                      text=True)
                row = {"ring": ring, "ulysses": ulysses, "kernel": kernel, "ok": done.returncode == 0}
                if done.stdout.startswith("{"):
                    answer = json.loads(done.stdout)
                    row.update(errors=answer["errors"], bytes_equal=answer["traffic"]["equal"])
                else:
                    row.update(error=done.stderr.strip()[-300:])
                report.add("correctness", row)


def cluster_flags(options):
    return ["--cluster", options.cluster, "--devices", ",".join(map(str, range(options.gpus)))]


def predictions(usp, options, report):
    with tempfile.TemporaryDirectory() as folder:
        for tokens in options.seq:
            for heads, kv_heads in options.heads:
                shape = ["--heads", heads, "--kv-heads", kv_heads, "--seq", tokens]
                best = plan(usp, f"{folder}/p.json", cluster_flags(options), *shape)["best"]
                choice = {k: best["mesh"][k] for k in ("ring", "ulysses")}
                for ring, ulysses in meshes(options.gpus):
                    try:
                        found = plan(usp, f"{folder}/p.json", cluster_flags(options), *shape, "--ring", ring,
                                     "--ulysses", ulysses)["best"]
                    except subprocess.CalledProcessError as error:
                        report.add("faults", {"step": "predictions", "error": error.stderr[-300:]})
                        continue
                    report.add("predictions", {
                        "tokens": tokens, "heads": heads, "kv_heads": kv_heads, "ring": ring, "ulysses": ulysses,
                        "method": found["method"], "layout": found["layout"], "time_s": found["time_s"],
                        "forward_s": found["forward"]["time_s"], "band": found["band"],
                        "chosen": choice == {"ring": ring, "ulysses": ulysses}})


def timed(options, report, gpus, heads, tokens, *flags):
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "rows.json"
        script = pathlib.Path(__file__).with_name("bench_gpu_ranks_torch.py")
        command = [sys.executable, str(script), f"{options.bin}/bench_gpu_ranks", "--gpus", gpus, "--heads", heads[0],
                   "--kv-heads", heads[1], "--head-dim", HEAD_DIM, "--backends", *options.backends, "--transports",
                   *options.transports, "--chunks", *options.chunks, "--rounds",
                   3 if options.quick else 7, "--json", found, "--seq", *tokens, *flags]
        done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
        if done.returncode != 0:
            report.add("faults", {"step": f"timing on {gpus}", "error": done.stderr.strip()[-300:]})
        rows = found.read_text().splitlines() if found.exists() else []
    for row in map(json.loads, rows):
        report.add("measured", row)


def measure(options, report):
    for heads in options.heads:
        timed(options, report, options.gpus, heads, options.seq)
        timed(options, report, 1, heads, [s for s in options.seq if s <= 262144], "--no-torch")
    packed = [s for s in options.seq if s <= 65536][-1:]
    for mean, kind in PACKED:
        timed(options, report, options.gpus, options.heads[0], packed, "--documents", mean, "--lengths", kind)


def fastest(rows, **wanted):
    """The row of least time among those with these fields; None where there is none."""
    fit = [r for r in rows if "both_ms" in r and all(r.get(k) == v for k, v in wanted.items())]
    return min(fit, key=lambda r: r["both_ms"], default=None)


def summary(found, gpus):
    """What follows from predictions and measurements, beside its targets."""
    rows = found["measured"]
    for tokens in sorted({r["seq"] for r in rows}):
        for heads, kv_heads in sorted({(r["heads"], r["kv_heads"]) for r in rows}):
            case = {"seq": tokens, "heads": heads, "kv_heads": kv_heads, "documents": 0}
            best = fastest(rows, **case, gpus=gpus, by="usp")
            if best is None:
                continue
            row = {**case, "best": best["name"], "tflop_s_per_gpu": best["both_tflop_s"]}

            def compare(name, ratio, target, row=row):
                row[name] = ratio
                if target is not None:
                    row[f"{name}_target"] = target

            if alone := fastest(rows, **case, gpus=1, by="usp"):
                compare("linear", best["both_tflop_s"] / alone["both_tflop_s"], LINEAR.get(tokens))
            if torch := fastest(rows, **case, gpus=gpus, by="torch"):
                compare("beside_pytorch", torch["both_ms"] / best["both_ms"], PYTORCH.get(tokens))
            if best.get("waited_ms") is not None:
                compare("waiting", best["waited_ms"] / best["both_ms"], WAITING.get(tokens))
            for p in found["predictions"]:
                if p["chosen"] and (p["tokens"], p["heads"], p["kv_heads"]) == (tokens, heads, kv_heads):
                    chosen = fastest(rows, **case, gpus=gpus, by="usp", ring=p["ring"], ulysses=p["ulysses"])
                    row["chosen"] = f"{p['ring']} x {p['ulysses']}"
                    if chosen:
                        compare("choice", best["both_ms"] / chosen["both_ms"], CHOICE)
            yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--cluster", default="dgx-h100", help="what predictions are made for")
    parser.add_argument("--seq", type=int, nargs="+", help="tokens (16384 65536 262144, and 1048576 on 8 GPUs)")
    parser.add_argument("--heads", nargs="+", type=lambda x: tuple(map(int, x.split("/"))), default=HEADS,
                        metavar="QUERY/KV", help="(32/8 64/8)")
    parser.add_argument("--backends", nargs="+", default=["cudnn"], help="that are timed (cudnn)")
    parser.add_argument("--transports", nargs="+", default=["copy_engine", "nccl"], help="that are timed (both)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4], help="head chunks that are timed (1 2 4)")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.seq = options.seq or [16384, 65536, 262144] + ([1048576] if options.gpus >= 8 else [])
    usp = f"{options.bin}/usp"
    report = Report(options.json)
    names = gpu_names()
    report.found.update(gpus=names, ranks=options.gpus)
    predictions(usp, options, report)
    if names:
        correctness(usp, options, report)
    else:
        report.add("faults", {"step": "correctness", "error": "no GPU here"})
    if len(names) >= options.gpus:
        measure(options, report)
        for row in summary(report.found, options.gpus):
            report.add("summary", row)
    else:
        report.add("faults", {"step": "timing", "error": f"{options.gpus} GPUs asked for, {len(names)} here: not run"})
    wrong = [r for r in report.found["correctness"] if not r["ok"]]
    return 1 if wrong or report.found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
