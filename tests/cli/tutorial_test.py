#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tutorial_test.py USP SOURCE: the commands of cli/tutorial.md run as printed, one after another in an empty folder.

A command ends with exit 0, or with what a comment behind it says: "# exit 4". And every word of the command line that has
a meaning of its own is in cli/glossary.md.
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# Words of enums that stand for a way to divide or keep a sequence.
ENUMS = ["LayoutKind", "DkvReturn", "AxisOrder", "Recompute"]


def commands(source):
    for line in (source / "cli" / "tutorial.md").read_text().splitlines():
        if line.startswith("    usp "):
            expected = re.search(r"  # exit (\d)$", line)
            yield shlex.split(line, comments=True), int(expected[1]) if expected else 0


def words_of_enums(source):
    text = "".join(file.read_text() for file in (source / "planner" / "schedule" / "include").rglob("*.hpp"))
    for enum in ENUMS:
        table = re.search(rf"struct WordTable<{enum}> {{.*?}};\n}};", text, re.DOTALL)
        yield from re.findall(r'{"(\w+)"', table[0])
    for file in (source / "planner" / "schedule" / "src" / "methods").glob("*.cpp"):
        yield from re.findall(r'\.word = "(\w+)"', file.read_text())


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    faults, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for words, expected in commands(source):
            count += 1
            done = subprocess.run([usp, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != expected:
                faults.append(f"{' '.join(words)}: exit {done.returncode}, not {expected}: {done.stderr}")
    glossary = (source / "cli" / "glossary.md").read_text()
    words = set(words_of_enums(source))
    faults += [f"glossary.md: `{word}` is missing" for word in sorted(words) if f"`{word}`" not in glossary]
    print("\n".join(faults) or f"{count} commands, {len(words)} words")
    return 1 if faults or count < 15 or len(words) < 12 else 0


if __name__ == "__main__":
    sys.exit(main())
