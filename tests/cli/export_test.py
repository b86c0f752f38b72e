#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""export_test.py USP SOURCE: every setting that `usp export` prints is one that the framework has, and its launch lines
start the script with those settings.

tests/data/frameworks/<framework>.txt lists the names of a version, as its first lines say. Launch lines run in bash with
launchers that print what they are called with.
"""
import ast
import json
import pathlib
import subprocess
import sys
import tempfile

STUBS = """
torchrun() { printf '%s\\n' "$@" ; } ; accelerate() { printf '%s\\n' "$@" ; } ; xdit() { printf '%s\\n' "$@" ; }
srun() { while [ "$1" != bash ]; do shift; done; SLURM_NODEID=0 "$@" ; }
mpirun() { while [ "$1" != bash ]; do shift; done; OMPI_COMM_WORLD_RANK=0 "$@" ; }
export -f torchrun accelerate
export MASTER_ADDR=first NODE_RANK=0 NNODES=4 GPUS_PER_NODE=8 MODULE=llama3 CONFIG=llama3_8b MODEL=flux
"""
STEP = ["plan", "llama-3.1-8b", "--cluster", "dgx-h100"]
TRAINED = ["megatron", "deepspeed", "accelerate", "torchtitan", "yunchang", "usp-attention"]
# (arguments of the plan, frameworks)
PLANS = [(STEP + ["--nodes", "4", "--seq", "1M"], TRAINED),
         (STEP + ["--nodes", "2", "--seq", "256k", "--data", "1", "--ring", "2", "--ulysses", "4", "--tensor", "2",
                  "--zero", "1", "--recompute", "full"], ["megatron", "accelerate", "torchtitan"]),
         (STEP + ["--nodes", "2", "--seq", "256k", "--data", "1", "--ring", "2", "--ulysses", "8", "--order", "ring_inner"],
          ["usp-attention", "yunchang"]),
         (STEP + ["--seq", "16k", "--zero", "2", "--recompute", "none", "--data", "4"], TRAINED),
         (STEP + ["--seq", "128k", "--ulysses", "8", "--ring", "1"], TRAINED),
         (STEP + ["--seq", "64k", "--data", "8"], TRAINED),
         (["plan", "attention", "--heads", "24", "--kv-heads", "24", "--head-dim", "128", "--seq", "64k", "--full",
           "--forward-only", "--cluster", "dgx-h100"], ["xdit", "yunchang"]),
         (["plan", "attention", "--heads", "24", "--kv-heads", "24", "--head-dim", "128", "--seq", "64k", "--full",
           "--forward-only", "--cluster", "dgx-h100", "--nodes", "2"], ["xdit", "yunchang"])]


def names_of(source, framework):
    text = (source / "tests" / "data" / "frameworks" / f"{framework}.txt").read_text()
    head = [line for line in text.splitlines() if line.startswith("# ")]
    assert len(head) == 2, framework
    return {line for line in text.splitlines() if not line.startswith("# ")}


def keys_of(value):
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in keys_of(item)}
    return set()


def names_in(text):
    """Keys of a JSON file, keywords of calls in code."""
    if text["title"].endswith(".json"):
        return keys_of(json.loads(text["text"]))
    calls = [node for node in ast.walk(ast.parse(text["text"])) if isinstance(node, ast.Call)]
    return {keyword.arg for call in calls for keyword in call.keywords}


def check_names(result, known):
    printed = {item["name"] for item in result["arguments"]}
    for text in result["texts"]:
        printed |= names_in(text)
    return sorted(name for name in printed if name not in known)


def check_launch(result):
    """Each line starts the same command with every argument as a word of its own."""
    words = [word for item in result["arguments"] for word in [item["name"]] + (item["value"] or "").split()]
    array = "ARGS=(" + " ".join(words) + ")\n"
    seen = []
    for line in result["launch"]:
        done = subprocess.run(["bash", "-uc", STUBS + array + line["command"]], capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stderr:
            return [f"{line['launcher']}: {done.stderr}"]
        seen.append(done.stdout.split("\n")[:-1])
    faults = [f"{line['launcher']} starts another command" for line, got in zip(result["launch"], seen) if got != seen[0]]
    script = [] if result["framework"]["word"] != "accelerate" else ["train.py"]  # its launcher's arguments
    if words and seen[0][-len(words + script):] != words + script:
        faults.append(f"arguments arrive as {seen[0]}")
    return faults


def check(usp, source, plan, framework):
    done = subprocess.run([usp, "export", str(plan), "--to", framework, "--json"], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        return [f"exit {done.returncode}: {done.stderr}"]
    result = json.loads(done.stdout)
    faults = check_launch(result)
    if framework != "usp-attention":
        unknown = check_names(result, names_of(source, framework))
        faults += [f"no such names: {unknown}"] if unknown else []
    if not result["arguments"] and not result["texts"]:
        faults.append("no settings")
    return faults


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    failed = count = 0
    with tempfile.TemporaryDirectory() as tmp:
        plan = pathlib.Path(tmp) / "plan.json"
        for words, frameworks in PLANS:
            subprocess.run([usp, *words, "-q", "-o", str(plan)], check=True, stdout=subprocess.DEVNULL)
            for framework in frameworks:
                count += 1
                for fault in check(usp, source, plan, framework):
                    failed += 1
                    print(f"FAIL {framework} of usp {' '.join(words)}: {fault}")
    print(f"{count} exports, {failed} faults")
    return 1 if failed or count < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
