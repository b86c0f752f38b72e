#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test files by pytest in an environment with torch; exit 77 where there is none."""

import argparse
import os
import pathlib
import subprocess
import sys

SKIPPED = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=pathlib.Path, required=True)
    parser.add_argument("--package", required=True, help="the folder that holds usp_attention")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    python = arguments.environment / "bin/python3"
    if not python.exists() or subprocess.run([python, "-c", "import torch, pytest"], capture_output=True).returncode:
        print(f"skipped: no torch in {arguments.environment}; run ./usp.sh install-torch")
        return SKIPPED
    environment = {**os.environ, "PYTHONPATH": arguments.package, "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", *arguments.files]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
