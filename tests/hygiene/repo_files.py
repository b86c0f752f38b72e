# SPDX-License-Identifier: Apache-2.0
"""The project's own files, without data and build output."""
import pathlib

FOLDERS = ("topology", "planner", "kernels", "runtime", "cli", "configs", "tests")
DATA = ("tests/data/", "tests/fuzz/corpus/", "configs/models/", "configs/jobs/")
CPP = {".cpp", ".hpp", ".c", ".h", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".cmake"}


def own_files(root):
    """Relative paths (posix strings) of all own files, in order."""
    root = pathlib.Path(root)
    found = [path for path in root.iterdir() if path.is_file() and not path.name.startswith(".git")]
    found += [path for folder in FOLDERS if (root / folder).is_dir()
              for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    names = sorted(path.relative_to(root).as_posix() for path in found)
    return [name for name in names if not name.startswith(DATA)]


def suffix(name):
    """".cpp" of "a.cpp", ".hpp" of "version.hpp.in", ".cmake" of "CMakeLists.txt"."""
    path = pathlib.PurePosixPath(name)
    if path.name == "CMakeLists.txt":
        return ".cmake"
    return pathlib.PurePosixPath(path.stem).suffix if path.suffix == ".in" else path.suffix
