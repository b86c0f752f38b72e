#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples that `usp plan attention`, `explain`, `run` and `bench` print under --help, as printed.

plan.json is what the example of `usp plan attention` writes, at fewer tokens; q.npy, k.npy and v.npy are
results of a run. Examples for GPUs end with exit 5 where there is none, those under mpirun where the build has no
MPI. README.md shows what its first `usp plan` prints, row by row, and the commands of README.md and cli/verbs.md run as
printed, one after another in a folder that has the repository's.
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


def lacks(done, line):
    """Whether an example ended because this machine or build lacks what it asks for."""
    reasons = ["no MPI"] if line.startswith("mpirun") else []
    if "cuda" in line or "--gpu" in line:
        reasons += ["no GPU", "no CUDA"]
    return done.returncode == 5 and any(reason in done.stderr for reason in reasons)


def readme_faults(usp, source):
    """Rows of the first block of README.md with a prompt that its command does not print, in that order."""
    block = (source / "README.md").read_text().split("    $ build/bin/usp ")[1].split("\nfollowed by")[0]
    ask, shown = block.split("\n\n", 1)
    done = run([usp, *shlex.split(ask.replace("\\\n", " "))], source)
    wanted = [row.removeprefix("    ") for row in shown.rstrip().splitlines()]
    printed = done.stdout.splitlines()
    first = printed.index(wanted[0]) if wanted[0] in printed else 0
    pairs = zip(wanted, printed[first:first + len(wanted)])
    return [f"README.md: {a!r}, but {b!r} is printed" for a, b in pairs if a != b]


def printed_commands(text):
    """Indented lines that start the program, continued where they end with a backslash."""
    joined = text.replace("\\\n", " ")
    return [line.strip().removeprefix("$ ") for line in joined.splitlines()
            if line.startswith(("    build/bin/usp ", "    $ build/bin/usp "))]


def document_faults(usp, source):
    """Commands of the documents that do not end with exit 0."""
    faults, count = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        for name in ("configs", "tests"):
            (folder / name).symlink_to(source / name)
        for document in ("README.md", "cli/verbs.md"):
            for line in printed_commands((source / document).read_text()):
                count += 1
                done = run([usp, *shlex.split(line, comments=True)[1:]], folder)
                if done.returncode or not done.stdout:
                    faults.append(f"{document}: {line}: exit {done.returncode}: {done.stderr}")
    return faults if count >= 15 else [*faults, f"only {count} commands in README.md and cli/verbs.md"]


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
                count += 1
                if not (done.returncode == 0 and done.stdout) and not lacks(done, line):
                    failed += 1
                    print(f"FAIL {line}\n     exit {done.returncode}: {done.stderr}")
    source = pathlib.Path(sys.argv[2]).resolve()
    faults = readme_faults(usp, source) + document_faults(usp, source)
    print("\n".join(faults))
    print(f"{count - failed} of {count} examples ran")
    return 1 if failed or faults or count < 9 else 0


if __name__ == "__main__":
    sys.exit(main())
