#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""export_classes_test.py USP SOURCE: what `usp export` prints is taken by the frameworks' own argument classes, of those
packages that this interpreter or the environment of ./usp.sh install-torch has. Skipped where there is none; names are
checked against tests/data/frameworks by export_test.py in any case.
"""
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
STEP = ["plan", "llama-3.1-8b", "--cluster", "dgx-h100"]
IMAGE = ["plan", "attention", "--heads", "24", "--kv-heads", "24", "--head-dim", "128", "--seq", "64k", "--full",
         "--forward-only", "--cluster", "dgx-h100"]
# framework: module that has its classes, plans that it takes
TAKEN = {"accelerate": ("accelerate", [STEP + ["--seq", "128k", "--framework", "accelerate"],
                                       STEP + ["--nodes", "4", "--seq", "1M"],
                                       STEP + ["--seq", "64k", "--ulysses", "8", "--zero", "2", "--recompute", "full"]]),
         "torchtitan": ("torchtitan", [STEP + ["--seq", "128k", "--framework", "torchtitan"],
                                       STEP + ["--nodes", "2", "--seq", "64k", "--tensor", "2", "--ring", "4", "--data", "2"],
                                       STEP + ["--seq", "16k", "--zero", "2", "--recompute", "none", "--data", "4"]]),
         "deepspeed": ("deepspeed", [STEP + ["--seq", "128k", "--framework", "deepspeed"],
                                     STEP + ["--seq", "64k", "--data", "8", "--batch", "4", "--microbatches", "2"],
                                     STEP + ["--nodes", "2", "--seq", "64k", "--zero", "1", "--recompute", "full"]]),
         "xdit": ("xfuser", [IMAGE, IMAGE + ["--nodes", "2"]])}


def has(interpreter, module):
    return subprocess.run([interpreter, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    environment = str(source / "build" / "python-env" / "bin" / "python3")
    interpreters = [sys.executable] + [environment] * pathlib.Path(environment).exists()
    faults, taken, missing = [], [], []
    for framework, (module, plans) in TAKEN.items():
        interpreter = next((python for python in interpreters if has(python, module)), None)
        if interpreter is None:
            missing.append(module)
            continue
        for plan in plans:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([usp, *plan, "-q", "-o", "plan.json"], cwd=folder, capture_output=True, check=True)
                text = subprocess.run([usp, "export", "plan.json", "--to", framework, "--json", "-q"], cwd=folder,
                                      capture_output=True, text=True, check=True).stdout
                done = subprocess.run([interpreter, str(source / "tests" / "cli" / "framework_classes.py"), framework],
                                      input=text, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                faults.append(f"{framework}: {' '.join(plan)}: {done.stdout}{done.stderr[-800:]}")
            else:
                taken.append(done.stdout.strip().splitlines()[-1])
    print("\n".join(faults + sorted(set(taken))))
    if missing:
        print(f"not installed: {', '.join(missing)} (pip install --no-deps, torch beside it)")
    if faults:
        return 1
    return 0 if taken else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
