#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random commands with extreme values: each ends with exit 0, 2, 3 or 4, explains a refusal, and in time.

A part of the commands reads plan files with extreme leaves, signed anew, so that what lies behind the digest is
reached. Prints the slowest and the largest commands. Seeds repeat: the same seed, the same commands. Time is that
of the processor, so that a busy machine fails no command; one that waits without end is ended by the clock.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import extreme_commands  # noqa: E402

ALLOWED = {0, 2, 3, 4}
SANITIZER = re.compile(rb"runtime error:|Sanitizer|SUMMARY: ")
DIGEST = re.compile(rb"its digest is ([0-9a-f]+)")
PLAN_SHARE = 0.12  # of the commands
SHOWN = 5
PATIENCE = 10  # seconds of the clock per second of the processor
SCORES = ("machine,world,direction,causal,dtype,batch,seq,heads,kv_heads,head_dim,ring,ulysses,layout,exchange,iters_per_s\n"
          "m,8,forward,true,bf16,1,65536,32,8,128,2,4,zigzag,qkvpack,10\n")


class Runner:
    def __init__(self, usp, timeout_s, memory_bytes, folder):
        self.usp, self.timeout_s, self.memory_bytes, self.folder = usp, timeout_s, memory_bytes, folder

    def run(self, arguments):
        """A record of one command: exit code (negative: a signal), seconds of both clocks, peak memory, stderr."""
        with tempfile.TemporaryFile() as errors:
            began = time.monotonic()
            process = subprocess.Popen([self.usp, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=errors, cwd=self.folder)
            self.limit(process)
            usage, late = self.wait(process, began)
            errors.seek(0)
            return {"command": shlex.join(arguments), "exit": process.returncode,
                    "late": late or process.returncode == -signal.SIGXCPU,
                    "seconds": round(usage.ru_utime + usage.ru_stime, 3),
                    "wall_seconds": round(time.monotonic() - began, 3), "memory_bytes": usage.ru_maxrss * 1024,
                    "stderr": errors.read(1 << 20)}

    def limit(self, process):
        limits = [(resource.RLIMIT_CPU, self.timeout_s)]
        if self.memory_bytes:
            limits.append((resource.RLIMIT_AS, self.memory_bytes))
        try:
            for kind, most in limits:
                resource.prlimit(process.pid, kind, (most, most + 1))
        except ProcessLookupError:  # it has ended
            pass

    def wait(self, process, began):
        pause, late = 0.002, False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage, late
            if not late and time.monotonic() - began > PATIENCE * self.timeout_s:
                late = True
                process.kill()
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)


def fault_of(record):
    """What is wrong with a finished command; empty: nothing."""
    if record["late"]:
        return f"still running after {record['seconds']} s of the processor, {record['wall_seconds']} s in all"
    if record["exit"] < 0:
        return f"ended by signal {-record['exit']}"
    if SANITIZER.search(record["stderr"]):
        return "a finding of a sanitizer"
    if record["exit"] not in ALLOWED:
        return f"exit {record['exit']}"
    if record["exit"] and not record["stderr"].startswith(b"usp: "):
        return "a refusal without a word"
    return ""


def prepare(usp, folder):
    """Small valid files for the commands to read."""
    (folder / "lengths").write_text("4096\n1000\n333\n")
    (folder / "scores.csv").write_text(SCORES)
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
         "tie_word_embeddings": False}))
    for arguments in (["plan", "attention", "--heads=8", "--kv-heads=4", "--head-dim=32", "--seq=512", "--ranks=4",
                       "--documents=256,128,128", "-o", folder / "plan.json"],
                      ["plan", "gpt-oss-20b", "--seq=16k", "--cluster=dgx-h100", "-o", folder / "step.json"]):
        subprocess.run([usp, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_mutated(runner, seed):
    """A plan file with extreme leaves, signed where its values alone are readable, for the verbs that take one."""
    rng = random.Random(seed)
    plan = json.loads((runner.folder / rng.choice(["plan.json", "step.json"])).read_text())
    plan = extreme_commands.mutate_plan(rng, plan)
    path = runner.folder / f"plan-{seed}.json"
    path.write_text(json.dumps(plan))
    records = [runner.run(["validate", str(path)])]
    if signed := DIGEST.search(records[0]["stderr"]):
        plan["digest"] = signed.group(1).decode()
        path.write_text(json.dumps(plan))
        verb = rng.choice([["validate"], ["explain"], ["explain", "--rank=0", "--json"], ["run", "--dry-run"]])
        records.append(runner.run([verb[0], str(path), *verb[1:]]))
    for record in records:
        if fault_of(record):
            record["plan"] = plan
    path.unlink()
    return records


def run_one(runner, seed):
    rng = random.Random(seed)
    if rng.random() < PLAN_SHARE:
        return run_mutated(runner, seed)
    return [runner.run(extreme_commands.generate(rng, runner.folder))]


def text_of(record):
    return f"{record['seconds']:8.2f} s {record['memory_bytes'] / 1e6:8.0f} MB  exit {record['exit']:3}  usp {record['command']}"


def report(records):
    codes = sorted({record["exit"] for record in records})
    print(f"{len(records)} commands; " +
          ", ".join(f"exit {code}: {sum(record['exit'] == code for record in records)}" for code in codes))
    for title, key in (("slowest", "seconds"), ("largest", "memory_bytes")):
        print(title)
        for record in sorted(records, key=lambda r: -r[key])[:SHOWN]:
            print("  " + text_of(record))
    faults = [record for record in records if fault_of(record)]
    for record in faults:
        print(f"FAIL {fault_of(record)}\n  {text_of(record)}")
        print("  " + record["stderr"][-3000:].decode(errors="replace").replace("\n", "\n  "))
        if "plan" in record:
            print("  plan: " + json.dumps(record["plan"]))
    return len(faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--usp", required=True, type=pathlib.Path)
    parser.add_argument("--count", type=int, default=400, help="commands")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout-s", type=int, default=120,
                        help="processor time: a command that takes longer is ended, and fails")
    parser.add_argument("--memory-bytes", type=int, default=0,
                        help="RLIMIT_AS of a command; 0: none, as sanitizers need it")
    parser.add_argument("--json", type=pathlib.Path, help="write all records here")
    args = parser.parse_args()
    usp = str(args.usp.resolve())
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(usp, args.timeout_s, args.memory_bytes, pathlib.Path(name))
        prepare(usp, runner.folder)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            seeds = [args.seed * 1000003 + i for i in range(args.count)]
            records = [record for some in pool.map(lambda seed: run_one(runner, seed), seeds) for record in some]
    if args.json:
        args.json.write_text(json.dumps([{**record, "stderr": record["stderr"].decode(errors="replace")}
                                         for record in records], indent=1))
    return 1 if report(records) or not records else 0


if __name__ == "__main__":
    sys.exit(main())
