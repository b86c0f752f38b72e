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
import re
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


LARGE = ["plan", "llama-3.1-70b", "--seq", "32k", "--cluster", "dgx-h100", "--nodes", "8", "--global-batch", "64"]
# (arguments of the plan, framework, settings and their values, settings that must not be there)
DECIDED = [(LARGE + ["--pipeline", "4", "--virtual-stages", "5", "--recompute", "full", "--recompute-layers", "20",
                     "--framework", "megatron"], "megatron",
            {"--num-virtual-stages-per-pipeline-rank": "5", "--recompute-method": "block", "--recompute-num-layers": "1",
             "--grad-reduce-in-bf16": None}, ["--decoder-first-pipeline-num-layers"]),
           (["plan", "mixtral-8x22b"] + LARGE[2:] + ["--tensor", "8", "--no-sequence-parallel", "--whole-experts", "--gradients", "fp32"], "megatron",
            {"--expert-tensor-parallel-size": "1", "--accumulate-allreduce-grads-in-fp32": None},
            ["--sequence-parallel", "--grad-reduce-in-bf16"])]
CALL = ["plan", "attention", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--seq", "64k", "--cluster", "dgx-h100",
        "--dtype"]
DECIDED += [(CALL + ["bf16"], "megatron", {"--bf16": None}, ["--fp16"]), (CALL + ["fp16"], "megatron", {"--fp16": None}, ["--bf16"]),
            (CALL + ["fp32"], "megatron", {}, ["--bf16", "--fp16"]),
            (CALL + ["bf16"], "accelerate", {"--mixed_precision": "bf16"}, []),
            (CALL + ["fp32"], "accelerate", {"--mixed_precision": "no"}, []),
            (CALL + ["bf16"], "torchtitan", {}, ["--training.mixed_precision_param"]),
            (CALL + ["fp32"], "torchtitan", {"--training.mixed_precision_param": "float32"}, [])]
SCRIPT = "it's  $MODEL \"my\" `train`; x.py"


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


def commands_in(text):
    """Launch lines of the text, as a shell would read them."""
    section = text.split("\nlaunch (")[1].split("\n", 1)[1].split("\n\n")[0]
    return re.split(r"^  # .*\n", section, flags=re.MULTILINE)[1:]


def check_script(usp, plan, framework):
    """A script of any name is one word of every launch line."""
    call = [usp, "export", str(plan), "--to", framework, "--script", SCRIPT]
    result = json.loads(subprocess.run(call + ["--json"], capture_output=True, text=True, check=True).stdout)
    text = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    array = "ARGS=(--some thing)\n"
    faults = []
    for command in [line["command"] for line in result["launch"]] + commands_in(text):
        done = subprocess.run(["bash", "-uc", STUBS + array + command], capture_output=True, text=True, check=False)
        if SCRIPT not in done.stdout.split("\n") or done.stderr:
            faults.append(f"{command} gives {done.stdout}{done.stderr}")
    return faults


def check_plan_file(result, plan):
    """The code of this project's package loads the plan that was exported."""
    calls = [node for text in result["texts"] for node in ast.walk(ast.parse(text["text"])) if isinstance(node, ast.Call)]
    names = [ast.literal_eval(keyword.value) for call in calls for keyword in call.keywords if keyword.arg == "plan"]
    return [] if names == [str(plan)] else [f"loads {names}, not {plan}"]


def check_decided(usp, plan, framework, values, absent):
    call = [usp, "export", str(plan), "--to", framework, "--json"]
    result = json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    printed = {item["name"]: item["value"] for item in result["arguments"]}
    wrong = {name: printed.get(name, "absent") for name, value in values.items() if printed.get(name, "absent") != value}
    return [f"prints {wrong}"] * bool(wrong) + [f"prints {name}" for name in absent if name in printed]


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
    else:
        faults += check_plan_file(result, plan)
    if not result["arguments"] and not result["texts"]:
        faults.append("no settings")
    return faults


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    failed = count = 0
    with tempfile.TemporaryDirectory() as tmp:
        plan = pathlib.Path(tmp) / "the \"plan\".json"
        for words, frameworks in PLANS:
            subprocess.run([usp, *words, "-q", "-o", str(plan)], check=True, stdout=subprocess.DEVNULL)
            for framework in frameworks:
                count += 1
                for fault in check(usp, source, plan, framework):
                    failed += 1
                    print(f"FAIL {framework} of usp {' '.join(words)}: {fault}")
                if words == STEP + ["--nodes", "4", "--seq", "1M"]:
                    for fault in check_script(usp, plan, framework):
                        failed += 1
                        print(f"FAIL {framework} with a script: {fault}")
        for words, framework, values, absent in DECIDED:
            count += 1
            subprocess.run([usp, *words, "-q", "-o", str(plan)], check=True, stdout=subprocess.DEVNULL)
            for fault in check(usp, source, plan, framework) + check_decided(usp, plan, framework, values, absent):
                failed += 1
                print(f"FAIL {framework} of usp {' '.join(words)}: {fault}")
    print(f"{count} exports, {failed} faults")
    return 1 if failed or count < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
