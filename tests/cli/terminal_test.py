#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `usp` writes on stderr when that is a terminal: the progress of a dry run, wiped at its end."""
import os
import pathlib
import pty
import subprocess
import sys
import tempfile


SKIPPED = 77


def terminal_pair():
    try:
        return pty.openpty()
    except OSError as error:  # a bare chroot
        print(f"no terminals here: {error}")
        sys.exit(SKIPPED)


def on_terminal(words):
    """(exit code, stdout, what the terminal on stderr got)"""
    ours, theirs = terminal_pair()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        out = process.stdout.read()
        code = process.wait()
    os.close(ours)
    return code, out, seen


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as tmp:
        plan = str(pathlib.Path(tmp) / "plan.json")
        subprocess.run([usp, "plan", "attention", "--heads", "8", "--kv-heads", "8", "--head-dim", "8", "--seq", "256",
                        "--ranks", "64", "--ring", "8", "--ulysses", "8", "-q", "-o", plan],
                       check=True, capture_output=True)
        words = [usp, "run", plan, "--dry-run"]
        code, out, seen = on_terminal(words)
        faults = []
        if code != 0 or b"every send meets its receive" not in out:
            faults.append(f"exit {code}, stdout {out!r}")
        if b"usp: 50% of 64 ranks" not in seen or not seen.endswith(b"\r\x1b[K"):
            faults.append(f"no progress, or not wiped: {seen!r}")
        if on_terminal(words + ["--quiet"])[2]:
            faults.append("--quiet is not quiet")
        piped = subprocess.run(words, capture_output=True, check=True)
        if piped.stderr:
            faults.append(f"progress in a pipe: {piped.stderr!r}")
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
