#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples that `usp plan attention`, `explain`, `run` and `bench` print under --help, as printed.

plan.json is what the example of `usp plan attention` writes, at fewer tokens; q.npy, k.npy and v.npy are
results of a run. Examples for GPUs are parsed only (a GPU may be missing: exit 5); those under mpirun run where
there is one.
"""
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

TIMEOUT_S = 120


def examples(usp, verb):
    text = subprocess.run([usp, *verb, "--help"], capture_output=True, text=True, check=True).stdout
    return [line.strip() for line in text.split("Examples:")[1].splitlines() if "usp " in line]


def command(line, usp):
    words = shlex.split(line)
    if words[0] == "mpirun":
        words[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    return [usp if word == "usp" else word for word in words]


def run(words, folder):
    environment = dict(os.environ, OMPI_MCA_plm_rsh_agent="")
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                          env=environment)


def prepare(usp, folder):
    """The files that the examples name. Returns what went wrong."""
    [line] = [example for example in examples(usp, ["plan", "attention"]) if "-o plan.json" in example]
    words = command(line, usp)
    words[words.index("--seq") + 1] = "96"
    made = [run(words, folder), run([usp, "run", "plan.json", "-o", "made"], folder)]
    if any(step.returncode for step in made):
        return "".join(step.stderr for step in made)
    for result, name in (("out", "q"), ("dk", "k"), ("dv", "v")):
        shutil.copy(folder / "made" / f"{result}.npy", folder / f"{name}.npy")
    return ""


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    failed = count = 0
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        fault = prepare(usp, folder)
        if fault:
            print(fault)
            return 1
        for verb in ("explain", "run", "bench"):
            for line in examples(usp, [verb]):
                words = command(line, usp)
                if words[0] == "mpirun" and not shutil.which("mpirun"):
                    continue
                done = run(words, folder)
                needs_gpu = "cuda" in line or "--gpu" in line
                wanted = (0, 5) if needs_gpu or words[0] == "mpirun" else (0,)
                count += 1
                if done.returncode not in wanted or (done.returncode == 0 and not done.stdout):
                    failed += 1
                    print(f"FAIL {line}\n     exit {done.returncode}: {done.stderr}")
    print(f"{count - failed} of {count} examples ran")
    return 1 if failed or count < 9 else 0


if __name__ == "__main__":
    sys.exit(main())
