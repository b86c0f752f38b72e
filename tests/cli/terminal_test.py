#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `usp` writes on stderr when that is a terminal: progress after a while, wiped at the end of the work; and how
Ctrl-C and SIGTERM end it. Waits for what is written, never for a time: work is held up by stopping the process."""
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77
WIPED = b"\r\x1b[K"

# Many searches: long enough to be met in the middle, with --no-break-even so that points are all there is.
# Sanitizers take some eight times as long: fewer nodes.
NODES = "2" if len(sys.argv) > 3 else "16"
SWEEP = ["whatif", "llama-3.1-8b", "--cluster", "dgx-h100", "--nodes", NODES, "--seq", "256k", "--no-break-even", "--sweep"]
BENCHED = "512" if len(sys.argv) > 3 else "2k"
LONG = SWEEP + ["seq=64k:1M:+2k"]


def terminal_pair():
    try:
        return pty.openpty()
    except OSError as error:  # a bare chroot
        print(f"no terminals here: {error}")
        sys.exit(SKIPPED)


class Terminal:
    """A command whose stderr is a terminal."""

    def __init__(self, words):
        self.ours, theirs = terminal_pair()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        self.seen = b""

    def read(self):
        """False at the end."""
        try:
            part = os.read(self.ours, 4096)
        except OSError:  # the other end is closed
            return False
        self.seen += part
        return bool(part)

    def until(self, text):
        while text not in self.seen and self.read():
            pass
        return text in self.seen

    def end(self):
        """(exit code, stdout, what the terminal got)"""
        out = []
        reader = threading.Thread(target=lambda: out.append(self.process.stdout.read()))
        reader.start()  # beside the terminal, which holds few bytes
        while self.read():
            pass
        reader.join()
        code = self.process.wait()
        os.close(self.ours)
        return code, out[0], self.seen


def held_up(words):
    """The command, stopped for longer than progress keeps quiet."""
    terminal = Terminal(words)
    for _ in range(8):  # whenever it begins to work, one of the pauses comes after that
        time.sleep(0.15)
        terminal.process.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        terminal.process.send_signal(signal.SIGCONT)
        if terminal.process.poll() is not None:
            break
    return terminal.end()


def check_progress(usp, faults):
    words = [usp] + SWEEP + ["seq=64k:1M:+16k"]
    code, out, seen = held_up(words)
    if code != 0 or b"256K" not in out:
        faults.append(f"exit {code}, stdout {out[-300:]!r}")
    if b"% of 61 points" not in seen or not seen.endswith(WIPED):
        faults.append(f"no progress, or not wiped: {seen[-300:]!r}")
    for silent in ("--quiet", "--json"):
        if b"%" in held_up(words + [silent])[2]:
            faults.append(f"progress under {silent}")
    piped = subprocess.run(words + ["-q"], capture_output=True, check=True)
    if piped.stderr:
        faults.append(f"progress in a pipe: {piped.stderr!r}")


def planned(usp, plan, *words):
    """The file of a plan of one causal call."""
    subprocess.run([usp, "plan", "attention", "--head-dim=64", *words, "-q", "-o", str(plan)], check=True,
                   stdout=subprocess.DEVNULL)
    return str(plan)


def check_runs(usp, folder, faults):
    """The oracle of --verify and the ranks of a dry run."""
    verified = [usp, "run", planned(usp, folder / "short.json", "--heads=8", "--kv-heads=1", "--seq=768", "--ranks=2"), "--verify"]
    code, out, seen = held_up(verified)
    if code != 0 or b"% of 2362368 scores in fp64" not in seen or not seen.endswith(WIPED) or b"oracle" not in out:
        faults.append(f"run --verify: exit {code}, no progress, or not wiped: {seen[-300:]!r}")
    if b"note: --verify" in seen:
        faults.append(f"run --verify announces a few seconds: {seen[-300:]!r}")
    played = [usp, "run", planned(usp, folder / "ring.json", "--heads=8", "--kv-heads=1", "--seq=64k", "--ranks=512",
                                  "--ring=512", "--ulysses=1", "--method=ring"), "--dry-run"]
    code, out, seen = held_up(played)
    if code != 0 or b"% of 512 ranks" not in seen or not seen.endswith(WIPED):
        faults.append(f"run --dry-run: exit {code}, no progress, or not wiped: {seen[-300:]!r}")
    timed = [usp, "bench", planned(usp, folder / "timed.json", "--heads=8", "--kv-heads=1", f"--seq={BENCHED}", "--ranks=2"),
             "--repeat", "2"]
    code, out, seen = held_up(timed)
    if code != 0 or b"% of 6 passes" not in seen or not seen.endswith(WIPED):
        faults.append(f"bench: exit {code}, no progress, or not wiped: {seen[-300:]!r}")
    for words in (verified + ["--quiet"], played + ["--json"]):
        if b"%" in held_up(words)[2]:
            faults.append(f"progress of {words[1:]}")
    minutes = [usp, "run", planned(usp, folder / "long.json", "--heads=28", "--kv-heads=1", "--seq=4k", "--ranks=2"), "--verify"]
    terminal = Terminal(minutes)
    if not terminal.until(b"% of "):
        faults.append(f"run --verify: no progress: {terminal.seen[-300:]!r}")
    terminal.process.send_signal(signal.SIGINT)
    code = terminal.end()[0]
    if code != -signal.SIGINT:
        faults.append(f"run --verify: exit {code} after SIGINT")
    if not re.search(rb"note:\S* --verify computes some 2.3e\+08 scores .* about \d+ (seconds|minutes) on \d+ core", terminal.seen):
        faults.append(f"run --verify: not announced: {terminal.seen[:300]!r}")


def check_signals(usp, folder, faults):
    report = folder / "report.html"
    plan = ["--cluster", "dgx-h100", "--nodes", "2048", "--seq", "256k", "-o", str(report)]
    for words in (LONG, ["plan", "llama-3.1-8b"] + plan, ["report", "llama-3.1-8b"] + plan):
        for number in (signal.SIGINT, signal.SIGTERM):
            terminal = Terminal([usp] + words)
            if not terminal.until(b"% of "):
                faults.append(f"{words[0]}: no progress: {terminal.seen[-300:]!r}")
            terminal.process.send_signal(number)
            code = terminal.end()[0]
            if code != -number:
                faults.append(f"{words[0]}: exit {code} after {number.name}")
    left = sorted(path.name for path in folder.iterdir())
    if left:
        faults.append(f"left lying: {left}")


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    faults = []
    check_progress(usp, faults)
    with tempfile.TemporaryDirectory() as tmp:
        check_runs(usp, pathlib.Path(tmp), faults)
    with tempfile.TemporaryDirectory() as tmp:
        check_signals(usp, pathlib.Path(tmp), faults)
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
