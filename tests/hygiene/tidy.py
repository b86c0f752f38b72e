#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the sources of a compilation database, several at once.

Sources of one folder with equal flags are read as one translation unit, for clang-tidy 14 matches every check
against every declaration of the system headers: 8 sources together cost little more than one. A group whose names
collide (anonymous namespaces) is split in halves until it compiles.

    tidy.py BUILD_FOLDER PATTERN      findings on standard output, exit 1 if any
"""

import argparse
import bisect
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

SOURCES_PER_GROUP = 8


def compiler_flags(entry):
    """The flags of one entry without compiler, source and output."""
    words = entry.get("arguments") or shlex.split(entry["command"])
    flags = []
    skip = False
    for word in words[1:]:
        if skip or word in ("-c", entry["file"]):
            skip = False
        elif word == "-o":
            skip = True
        else:
            flags.append(word)
    return tuple(flags)


def groups_of(database, pattern):
    by_flags = {}
    for entry in database:
        if re.search(pattern, entry["file"]):
            key = (os.path.dirname(entry["file"]), entry["directory"], compiler_flags(entry))
            by_flags.setdefault(key, []).append(entry["file"])
    for (_, directory, flags), files in by_flags.items():
        files.sort()
        for first in range(0, len(files), SOURCES_PER_GROUP):
            yield directory, flags, files[first : first + SOURCES_PER_GROUP]


def run(directory, command):
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


class Group:
    """Sources as one translation unit. Their texts are copied, not included: the analyzer walks through the functions
    of the main file only."""

    def __init__(self, folder, files):
        self.files = files
        self.folder = os.path.dirname(files[0])
        self.first_lines = []
        self.path = files[0]
        if len(files) == 1:
            return
        name = "_".join([*pathlib.Path(self.folder).parts[-3:], pathlib.Path(files[0]).stem, str(len(files))])
        self.path = str(folder / f"{name}.cpp")
        text = ""
        for file in files:
            self.first_lines.append(text.count("\n") + 1)
            text += pathlib.Path(file).read_text(encoding="utf-8")
        pathlib.Path(self.path).write_text(text, encoding="utf-8")

    def located(self, text):
        """A report with lines of the group as lines of its sources."""

        def source_line(match):
            line = int(match.group(1))
            index = bisect.bisect_right(self.first_lines, line) - 1
            return f"{self.files[index]}:{line - self.first_lines[index] + 1}:"

        return re.sub(re.escape(self.path) + r":(\d+):", source_line, text) if self.first_lines else text


class Tidy:
    def __init__(self, build):
        self.config = pathlib.Path(__file__).resolve().parents[2] / ".clang-tidy"
        self.folder = pathlib.Path(build).resolve() / "tidy-groups"
        self.folder.mkdir(parents=True, exist_ok=True)

    def findings(self, directory, flags, files):
        """Texts of findings; none for sources without any."""
        group = Group(self.folder, files)
        options = [*flags, f"-iquote{group.folder}"]
        if len(files) > 1 and run(directory, ["clang++", "-fsyntax-only", "-w", group.path, *options]).returncode != 0:
            half = len(files) // 2
            return self.findings(directory, flags, files[:half]) + self.findings(directory, flags, files[half:])
        done = run(directory, ["clang-tidy", "-quiet", f"--config-file={self.config}", group.path, "--", *options])
        if done.returncode == 0 and not done.stdout.strip():
            return []
        return [group.located(done.stdout.strip() or done.stderr.strip())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build folder with compile_commands.json")
    parser.add_argument("pattern", help="regular expression of the sources' paths")
    arguments = parser.parse_args()
    database = json.loads((pathlib.Path(arguments.build) / "compile_commands.json").read_text(encoding="utf-8"))
    groups = sorted(groups_of(database, arguments.pattern), key=lambda group: -len(group[2]))
    if not groups:
        parser.error(f"no source of {arguments.build} matches {arguments.pattern}; configure the folder first")
    tidy = Tidy(arguments.build)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for texts in pool.map(lambda group: tidy.findings(*group), groups) for text in texts]
    print("\n".join(found), end="\n" if found else "")
    print(f"{sum(len(group[2]) for group in groups)} sources, {len(found)} groups with findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
