#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""expect_exit.py CODE COUNT PATTERN COMMAND...: the command ends with CODE (or "any" but 0) and exactly COUNT lines
("1+": one or more) of its stderr match PATTERN (a Python regular expression); those of ranks ("usp: rank N: ...") come
once per rank."""
import re
import subprocess
import sys


def main():
    code, count, pattern, command = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    print(run.stdout, run.stderr, f"exit code {run.returncode}", sep="\n")
    faults = []
    if (run.returncode == 0) if code == "any" else (run.returncode != int(code)):
        faults.append(f"exit code {run.returncode}, not {code}")
    lines = [line for line in run.stderr.splitlines() if re.search(pattern, line)]
    if not lines if count == "1+" else len(lines) != int(count):
        faults.append(f"{len(lines)} lines match {pattern}, not {count}")
    tellers = [line.split(":")[1] for line in lines if line.startswith("usp: rank ")]
    if len(set(tellers)) != len(tellers):
        faults.append("a rank printed its error twice")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
