#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The `usp price` that `usp plan attention` prints prices the plan as the plan does, and where it prints none `usp price`
has no flag for the call."""
import json
import shlex
import subprocess
import sys
import tempfile

CALL = "plan attention --heads 32 --kv-heads 8 --head-dim 128 --seq 64k"
PLANS = [
    "--cluster dgx-h100",
    "--cluster dgx-h100 --window 4096",
    "--cluster dgx-h100 --window 4096 --forward-only",
    "--cluster dgx-h100 --documents 40k,16k,8k --ring 4",
    "--cluster dgx-h100 --documents 40k,16k,8k --nodes 2 --order ring_inner --ring 2",
    "--cluster dgx-h100 --full --ring 8 --transport nccl",
    "--cluster dgx-h100 --ring 8 --method double_ring --no-overlap",
    "--cluster dgx-h100 --ring 4 --dkv-return cycle --method ring --head-chunks 2",
    "--cluster h200 --calibration h200_sxm-pair --dkv-return cycle",
    "--cluster dgx-h100 --gated --window 2048",
    "--cluster h200 --calibration h200_sxm-pair --window 512",
    "--cluster h200 --calibration h200_sxm-pair --backend cudnn --ring 8 --method ring",
    "--cluster dgx-a100 --ring 1 --ulysses 1 --transport nccl",
    "--cluster mi300x --batch 2 --dtype fp16",
    "--cluster 'node:2 nvswitch gpu:8(h100) nic:8(400G)' --fabric rail --tensor 1 --window 8k",
]
PRICED_BY_NO_FLAG = ["--ranks 4", "--cluster dgx-h100 --softcap 30", "--cluster dgx-h100 --tensor 2", "--cluster dgx-h100 --sinks"]
HEADING = "to price this layout by itself"


def run(usp, words, folder):
    done = subprocess.run([usp, *words], capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"usp {shlex.join(words)}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def printed_command(text):
    lines = text.splitlines()
    return lines[lines.index(HEADING) + 1].strip() if HEADING in lines else None


def check(usp, flags, folder):
    """Faults of one plan."""
    words = shlex.split(f"{CALL} {flags} -q")
    text, plan = run(usp, words, folder), json.loads(run(usp, [*words, "--json"], folder))
    command = printed_command(text)
    if command is None:
        return [f"{flags}: no command is printed"]
    best = plan["best"]
    masked = any(flag in flags for flag in ("--window", "--documents")) and best["mesh"]["ring"] > 1
    faults = []
    if ("--prune" in command) != masked or (", pruned" in best["description"]) != masked:
        faults.append(f"{flags}: of {best['description']} the command is {command}")
    price = json.loads(run(usp, [*shlex.split(command)[1:], "-q", "--json"], folder))
    times = [price["time_s"], price["passes"]["forward"]["time_s"], price["passes"].get("backward", {}).get("time_s", 0)]
    wanted = [best["time_s"], best["forward"]["time_s"], (best["backward"] or {}).get("time_s", 0)]
    if masked:
        whole = json.loads(run(usp, [*shlex.split(command.replace(" --prune", ""))[1:], "-q", "--json"], folder))
        if whole["traffic"]["forward"]["total_bytes"] <= price["traffic"]["forward"]["total_bytes"]:
            faults.append(f"{command}: as many bytes without --prune, so that the case shows nothing")
    if any(abs(time - want) > 1e-9 * want for time, want in zip(times, wanted)):
        faults.append(f"{command}: {times}, the plan has {wanted}")
    if price["request"]["plan"]["backend"] != best["backend"]:
        faults.append(f"{command}: backend {price['request']['plan']['backend']}, the plan has {best['backend']}")
    return faults


def main():
    usp = sys.argv[1]
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for flags in PLANS:
            faults += check(usp, flags, folder)
        for flags in PRICED_BY_NO_FLAG:
            command = printed_command(run(usp, shlex.split(f"{CALL} {flags} -q"), folder))
            if command is not None:
                faults.append(f"{flags}: prints {command}")
    print("\n".join(faults) or f"{len(PLANS)} plans are priced alike")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
