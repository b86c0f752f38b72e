#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large inputs are planned within a bound of memory, or refused by name before they take it."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

GIB = 1 << 20  # in the KiB of ru_maxrss

BIG = "node:1024 nvswitch gpu:8(h100) nic:8(400G) fabric:rail"
CALL = ["plan", "attention", "--heads", "32", "--kv-heads", "8", "--head-dim", "128"]
STEP = ["plan", "llama-3.1-8b", "--cluster", "dgx-h100"]


def run(usp, words):
    """(exit code, stdout, stderr, greatest resident memory in KiB)"""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([usp] + words, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read().decode(), err.read().decode(), usage.ru_maxrss


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    faults = []
    with tempfile.TemporaryDirectory() as tmp:
        ones = pathlib.Path(tmp) / "ones"
        ones.write_text("1\n" * 1000)
        documents = ["--document-lengths", str(ones)]
        plan = str(pathlib.Path(tmp) / "plan.json")
        cases = [
            # words, exit code, what stdout or stderr says, GiB
            (CALL + ["--seq", "8192", "--cluster", BIG], 0, r"ring \d+ x ulysses \d+", 1),
            (STEP + ["--seq", "1M", "-o", plan] + documents, 0, r"ring \d+ x ulysses \d+", 2),
            (["validate", plan], 0, "", 2),
            (["explain", plan], 0, "", 2),
            (STEP + ["--seq", "4M"] + documents, 3, "more than 1048576 documents", 1),
            (STEP + ["--seq", "1024M"] + documents, 3, "more than 1048576 documents", 1),
            (["whatif", "llama-3.1-8b", "--cluster", "dgx-h100", "--seq", "256k", "--sweep", "nodes=1:65536:x2"], 4,
             "the sweep would price", 1),
            (["price", "--heads", "8", "--kv-heads", "8", "--head-dim", "128", "--seq", "1M", "--ring", "32767",
              "--ulysses", "1", "--method", "ring_direct", "--cluster", "dgx-h100", "--nodes", "4096"], 4,
             "routes between devices", 1),
        ]
        for words, code, text, gib in cases:
            got, out, err, kib = run(usp, words)
            if got != code or not re.search(text, out if code == 0 else err):
                faults.append(f"{' '.join(words)}: exit {got}, {err[-300:]!r}")
            if kib > gib * GIB:
                faults.append(f"{' '.join(words)}: {kib / GIB:.2f} GiB")
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
