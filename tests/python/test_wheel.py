# SPDX-License-Identifier: Apache-2.0
"""A wheel of this tree around the library that the build made: what pyproject.toml puts into it, and that it installs and
plans in an environment of its own. ./usp.sh wheel builds the library for it too, and asks for more (check_wheel.py)."""

import shutil
import subprocess
import sys

import pytest
import usp_attention as usp
from check_wheel import check_content, check_installed
from paths import REPOSITORY


def test_wheel(tmp_path):
    pytest.importorskip("scikit_build_core", reason="./usp.sh install-torch fetches it")
    tree, package = tmp_path / "tree", "runtime/python/usp_attention"
    shutil.copytree(REPOSITORY / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "VERSION", "LICENSE", "NOTICE", "runtime/python/README.md"):
        shutil.copy(REPOSITORY / name, tree / name)
    shutil.copy(usp.library().path, tree / package / "libusp.so")
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-build-isolation",
                    "--no-deps", "-C", "wheel.cmake=false", "-w", str(tmp_path), str(tree)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    check_content(wheel)
    check_installed(wheel, machine=True)
