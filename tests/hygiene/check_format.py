#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Own C++ files are as clang-format 14 lays them out. Exit 77 (skipped) where that version is not installed."""
import pathlib
import re
import shutil
import subprocess
import sys

from repo_files import CPP, own_files

VERSION = "14"


def formatter():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path is None:
            continue
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        if re.search(r"version " + VERSION + r"\.", text):
            return path
    return None


def main():
    root = pathlib.Path(sys.argv[1])
    tool = formatter()
    if tool is None:
        print(f"skipped: clang-format {VERSION} is not installed")
        return 77
    files = [name for name in own_files(root) if pathlib.PurePosixPath(name).suffix in CPP]
    run = subprocess.run([tool, "--dry-run", "-Werror", *files], cwd=root, capture_output=True, text=True, check=False)
    print(run.stderr[:4000])
    if run.returncode != 0:
        print(f"run: {tool} -i on the files above")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
