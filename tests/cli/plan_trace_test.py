#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plan_trace_test.py USP: `usp explain --trace` draws a plan without running it: spans of a lane follow one another, every
arrow has both ends, bytes are those of the plan, and both passes last as long as the plan predicts."""
import json
import pathlib
import subprocess
import sys
import tempfile

CALL = ["plan", "attention", "--heads", "32", "--kv-heads", "8", "--head-dim", "128"]
# (flags of the plan, ranks that are drawn)
PLANS = [(["--seq", "128k", "--cluster", "dgx-h100", "--ring", "2", "--ulysses", "4"], 8),
         (["--seq", "1M", "--cluster", "dgx-h100", "--nodes", "4", "--ring", "4", "--ulysses", "8"], 16),
         (["--seq", "1M", "--cluster", "dgx-h100", "--nodes", "8", "--ring", "64", "--ulysses", "1", "--method", "double_ring"], 16),
         (["--seq", "4096", "--ranks", "6", "--ring", "3", "--ulysses", "2"], 6)]


def check(events, ranks, plan):
    faults = []
    if {event["pid"] for event in events} != set(range(ranks)):
        faults.append(f"ranks {sorted({event['pid'] for event in events})}")
    lanes = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for lane, spans in lanes.items():
        spans.sort()
        if any(after[0] < before[1] - 1e-6 * before[1] for before, after in zip(spans, spans[1:])):
            faults.append(f"spans of lane {lane} overlap")
    starts = sorted(event["id"] for event in events if event["ph"] == "s")
    ends = sorted(event["id"] for event in events if event["ph"] == "f")
    if not starts or starts != ends or len(set(starts)) != len(starts):
        faults.append(f"{len(starts)} arrows begin, {len(ends)} end")
    sent = [sum(event["args"]["bytes"] for event in events if event["ph"] == "X" and event["pid"] == rank and
                event["name"].startswith("send") and event["cat"] == "transfer") for rank in range(ranks)]
    predicted = plan["layers"][0]["prediction"]
    most = predicted["forward"]["sent_bytes"] + predicted["backward"]["sent_bytes"]
    if max(sent) > most or (ranks == plan["mesh"]["ring"] * plan["mesh"]["ulysses"] and max(sent) < most / 2):
        faults.append(f"{max(sent)} bytes are sent, the plan has {most}")
    seconds = predicted["forward"]["time_s"] + predicted["backward"]["time_s"]
    last = max(end for spans in lanes.values() for _, end in spans) / 1e6
    if not seconds * 0.5 < last < seconds * 1.02:
        faults.append(f"lasts {last} s, the plan {seconds} s")
    return faults


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    faults = []
    with tempfile.TemporaryDirectory() as tmp:
        plan, trace = pathlib.Path(tmp) / "plan.json", pathlib.Path(tmp) / "trace.json"
        for words, ranks in PLANS:
            subprocess.run([usp, *CALL, *words, "-q", "-o", str(plan)], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([usp, "explain", str(plan), "--trace", str(trace), "-q"], check=True, stdout=subprocess.DEVNULL)
            events = json.loads(trace.read_text())["traceEvents"]
            faults += [f"{' '.join(words)}: {fault}" for fault in check(events, ranks, json.loads(plan.read_text()))]
        few = subprocess.run([usp, "explain", str(plan), "--trace", "-", "--trace-ranks", "2", "-q"], check=True,
                             capture_output=True, text=True).stdout
        if {event["pid"] for event in json.loads(few)["traceEvents"]} != {0, 1}:
            faults.append("--trace-ranks 2 draws others")
        lone = subprocess.run([usp, "explain", str(plan), "--trace-ranks", "2"], capture_output=True, text=True, check=False)
        if lone.returncode != 2 or "--trace-ranks is of --trace" not in lone.stderr:
            faults.append("--trace-ranks alone is taken")
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
