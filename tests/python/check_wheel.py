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
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(name for name in mapped if not name.startswith((sys.prefix, sys.base_prefix))), sep="\\n")
"""
# What any Linux has (the policies of manylinux), and Python's own.
ALLOWED = re.compile(r"/(libc|libm|libdl|librt|libpthread|ld-linux-x86-64|ld-linux-aarch64|libz|libffi|libbz2|liblzma|libcrypto|"
                     r"libssl|libexpat|libpython3)[-.]")


def check_content(wheel: pathlib.Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("usp_attention/libusp.so", "usp_attention/py.typed", "usp_attention/hf/__init__.py"):
        assert wanted in names, f"{wheel.name} lacks {wanted}"
    others = [name for name in names if not re.match(r"usp_attention(\.libs|-[\d.]+\.dist-info)?/", name)]
    assert not others, f"{wheel.name} installs {others} beside the package"


def check_installed(wheel: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        environment = pathlib.Path(scratch, "env")
        venv.create(environment, with_pip=True)
        python = environment / "bin/python3"
        subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-index", str(wheel)],
                       check=True)
        ran = subprocess.run([python, "-I", "-c", PROGRAM], cwd=scratch, check=True, capture_output=True, text=True)
        foreign = [name for name in ran.stdout.splitlines() if not ALLOWED.search(name)]
        assert not foreign, f"{wheel.name} loads {foreign} of this machine"


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
