#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page_test.py USP SOURCE: text for people is wrapped to the terminal or COLUMNS, with headings in bold on terminals; pipes,
JSON and CSV get lines as they are."""
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

SKIPPED = 77
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
STEP = ["llama-3.1-8b", "--cluster", "dgx-h100", "--nodes", "4", "--seq", "1M"]
CALL = ["--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--seq", "128k", "--cluster", "dgx-h100"]
EXPORTS = ["megatron", "deepspeed", "accelerate", "torchtitan", "yunchang", "usp-attention"]
VERBS = ["plan", "compare", "export", "whatif", "report", "model", "models", "topo", "price", "explain", "run", "bench",
         "calibrate", "validate", "score"]


def run(words, **environment):
    names = ("COLUMNS", "NO_COLOR")
    variables = {name: value for name, value in os.environ.items() if name not in names} | environment
    return subprocess.run(words, capture_output=True, text=True, env=variables, check=False)


def commands(usp, source, plan):
    data = source / "tests" / "data"
    yield [usp, "plan", *STEP, "-o", plan]
    yield [usp, "plan", *STEP, "--framework", "megatron"]
    yield [usp, "plan", "attention", *CALL]
    yield [usp, "compare", *STEP]
    yield [usp, "whatif", *STEP, "--sweep", "seq=64k:1M:x2"]
    yield [usp, "price", *CALL, "--ring", "2", "--ulysses", "4"]
    yield [usp, "explain", plan]
    yield [usp, "topo", "dgx-h100", "--nodes", "2"]
    yield [usp, "model", "deepseek-v3"]
    yield [usp, "models"]
    yield [usp, "validate", plan]
    yield [usp, "score", str(data / "measurements" / "usp_attention_a100_nvlink.csv"), "--cluster", "a100-sxm"]
    for framework in EXPORTS:
        yield [usp, "export", plan, "--to", framework]
    for verb in VERBS:
        yield [usp, verb, "--help"]
    yield [usp, "--help"]


def is_command(line):
    return re.match(r" *(usp|mpirun|torchrun|cat) \S", line)


def check_width(usp, source, plan, faults):
    for words in commands(usp, source, plan):
        for columns in (80, 60):
            done = run(words, COLUMNS=str(columns))
            if done.returncode != 0:
                faults.append(f"{words}: exit {done.returncode}: {done.stderr}")
            wide = [line for line in (done.stdout + done.stderr).splitlines()
                    if len(line) > columns and not is_command(line) and "/" not in line.split()[-1] and " \\" not in line[-2:]]
            if columns == 80 and wide:
                faults.append(f"{' '.join(words[1:])}: {len(wide[0])} columns: {wide[0]!r}")
        whole = run(words).stdout.split()
        narrow = run(words, COLUMNS="80").stdout.split()
        rules = re.compile(r"-{4,}")
        if [word for word in whole if not rules.fullmatch(word)] != [word for word in narrow if not rules.fullmatch(word)]:
            faults.append(f"{' '.join(words[1:])}: wrapping changes words")


def check_color(usp, faults):
    words = [usp, "plan", *STEP, "-q"]
    plain = run(words).stdout
    if "\x1b" in plain:
        faults.append("escape sequences in a pipe")
    colored = run(words + ["--color", "always"]).stdout
    if f"{BOLD}ring 1 x ulysses 8" not in colored or colored.replace(BOLD, "").replace(PLAIN, "") != plain:
        faults.append(f"--color always: {colored[:300]!r}")
    for form in (["--json"], ):
        if "\x1b" in run(words + form + ["--color", "always"]).stdout:
            faults.append(f"escape sequences under {form}")
    csv = [usp, "compare", *STEP, "--csv", "-q"]
    if run(csv).stdout != run(csv + ["--color", "always"], COLUMNS="40").stdout:
        faults.append("CSV is wrapped or coloured")
    if run([usp, "topo", "dgx-h100", "--color", "blue"]).returncode != 2:
        faults.append("--color blue is taken")


def on_terminal(words, columns, **environment):
    """What a terminal of so many columns gets."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:  # a bare chroot
        print(f"no terminals here: {error}")
        sys.exit(SKIPPED)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")} | environment
    with subprocess.Popen(words, stdout=theirs, stderr=subprocess.DEVNULL, env=variables) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        process.wait()
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def check_terminal(usp, faults):
    words = [usp, "plan", *STEP]
    seen = on_terminal(words, 72)
    if BOLD not in seen:
        faults.append("no bold on a terminal")
    bare = seen.replace(BOLD, "").replace(PLAIN, "")
    if not 60 < max(map(len, bare.splitlines())) <= 72:
        faults.append(f"a terminal of 72 columns gets {max(map(len, bare.splitlines()))}")
    if "\x1b" in on_terminal(words, 72, NO_COLOR="1"):
        faults.append("escape sequences in spite of NO_COLOR")
    if max(map(len, on_terminal(words, 72, NO_COLOR="1", COLUMNS="100").splitlines())) <= 72:
        faults.append("COLUMNS does not precede the terminal's own width")


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    faults = []
    with tempfile.TemporaryDirectory() as tmp:
        check_width(usp, source, str(pathlib.Path(tmp) / "plan.json"), faults)
    check_color(usp, faults)
    check_terminal(usp, faults)
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
