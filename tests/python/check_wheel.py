#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel of usp-attention into a new environment and uses it from an empty folder, without the repository."""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

PROGRAM = """
import os, pathlib, sys
import usp_attention as usp
place = pathlib.Path(usp.__file__).parent
assert place.is_relative_to(sys.prefix) and pathlib.Path(usp.library().path).is_relative_to(place), usp.library()
result = usp.plan("llama-3.1-8b", "dgx-h100", seq=65536)
assert usp.PlanResult.from_json(result.to_json()).best == result.best
assert list(usp.layout_tokens("zigzag", 8, 2, 1, 0)) == [0, 1, 6, 7]
try:
    usp.Mesh
except usp.EnvironmentFault as error:
    assert "usp-attention[torch]" in str(error), error
print(usp.library().path)
"""
# What the policies of manylinux let a wheel take of the machine; libstdc++ too, so that a process has one, which is torch's.
ALLOWED = re.compile(r"/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libexpat|ld-linux-\S+)\.so")


def check_content(wheel: pathlib.Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("usp_attention/libusp.so", "usp_attention/py.typed", "usp_attention/hf/__init__.py"):
        assert wanted in names, f"{wheel.name} lacks {wanted}"
    others = [name for name in names if not re.match(r"usp_attention(\.libs|-[\d.]+\.dist-info)?/", name)]
    assert not others, f"{wheel.name} installs {others} beside the package"


def check_installed(wheel: pathlib.Path, machine: bool = False) -> None:
    """machine: the library may need more of this machine than every Linux has."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = pathlib.Path(scratch, "env")
        venv.create(environment)
        python = environment / "bin/python3"
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "-q", "--disable-pip-version-check", "install",
                        "--no-index", str(wheel)], check=True)
        ran = subprocess.run([python, "-I", "-c", PROGRAM], cwd=scratch, check=True, capture_output=True, text=True)
        if machine:
            return
        needed = subprocess.run(["ldd", ran.stdout.strip()], check=True, capture_output=True, text=True).stdout
        foreign = [line.strip() for line in needed.splitlines()
                   if "/" in line and str(environment) not in line and not ALLOWED.search(line)]
        assert not foreign and "not found" not in needed, f"{wheel.name} takes {foreign} of this machine:\n{needed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=pathlib.Path)
    wheel = parser.parse_args().wheel.resolve()
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$", wheel.name), f"{wheel.name} is not of manylinux"
    check_content(wheel)
    check_installed(wheel)
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB, installs and runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
