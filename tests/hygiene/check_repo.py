#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that a machine can see: licence lines, size, tabs, layers, what may be included."""
import pathlib
import re
import sys

from repo_files import CPP, SCRIPTS, own_files, suffix

MAX_LINES = 500
ENVIRONMENT_READER = "topology/base/src/env.cpp"
JSON_HEADER = "topology/base/include/usp/base/json.hpp"
# Headers for .cpp files alone, which are not installed.
JSON_HEADERS = re.compile(r"usp/base/json\w*\.hpp$")
OUTSIDE = "." + "./shared"
# Who may name a method of the ring axis: its library, the search's list of alternatives, and the records of what
# frameworks do.
METHOD_USERS = ("planner/schedule/", "planner/src/search/alternatives.cpp", "planner/src/framework/")

# A backend is named by its folder, which holds this file, and by the lists of records.
BACKEND_RECORD = re.compile(r"kernels/src/(?:.*/)?(\w+)/traits\.cpp$")
BACKEND_LISTS = {
    "planner/schedule/include/usp/schedule/backend.hpp",
    "planner/schedule/src/backends.cpp",
    "kernels/include/usp/kernels/backends.hpp",
    "kernels/include/usp/kernels/cuda_backends.hpp",
    "kernels/src/kernel_factories.cpp",
    "kernels/src/cuda/stub.cpp",
    "runtime/include/usp/usp.h",  # numbers of the C API
}
# Names that are words of other things too: only what names the record or the kernel counts.
COMMON_NAMES = {"cpu"}
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

# Layer -> layers it may include, besides itself.
ALLOWED = {
    "base": set(),
    "topology": {"base"},
    "schedule": {"base"},
    "planner": {"base", "topology", "schedule"},
    "kernels": {"base", "schedule"},
    "runtime": {"base", "topology", "schedule", "planner", "kernels"},
    "cli": {"base", "topology", "schedule", "planner", "kernels", "runtime"},
}
# Parts of the runtime that execute plans, without what prices them or reads clusters.
EXECUTOR = ("runtime/src/comm/", "runtime/src/exec/", "runtime/src/capi/", "runtime/include/usp/comm/")
# No CUDA, NCCL or MPI in these layers.
HOST_ONLY = {"base", "topology", "schedule", "planner", "cli"}
DEVICE_HEADER = re.compile(r"^((cuda|cudnn|cublas|nvml)[\w/]*\.h|nccl\.h|mpi\.h|nvtx3/.*)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def layer_of(name):
    """The layer of a file by its folder; None outside the layers (tests, configs)."""
    if name.startswith("topology/base/"):
        return "base"
    if name.startswith("planner/schedule/") or BACKEND_RECORD.match(name):
        return "schedule"
    top = name.split("/")[0]
    return top if top in ALLOWED else None


def public_headers(names):
    """{"usp/base/error.hpp": "topology/base/include/usp/base/error.hpp"}"""
    found = {}
    for name in names:
        if "/include/" in name and layer_of(name) and suffix(name) in CPP:
            found[name.split("/include/", 1)[1].removesuffix(".in")] = name
    return found


def check_include(name, header, owners):
    layer = layer_of(name)
    if layer is None:
        return None
    owner = layer_of(owners[header]) if header in owners else None
    if owner and owner != layer and owner not in ALLOWED[layer]:
        return f"{layer} must not include {header} of {owner}"
    if owner and "/detail/" in header:
        if owner != layer:
            return f"includes {header}, which is internal to {owner}"
        if name in owners.values() and "/detail/" not in name:
            return f"a public header must not include {header}, which is not installed"
    if name.startswith(EXECUTOR) and owner in {"planner", "topology"}:
        return f"the executor must not include {header} of {owner}"
    if header.startswith("usp/") and header not in owners:
        return f"includes {header}, which no layer owns"
    if layer in HOST_ONLY and DEVICE_HEADER.match(header):
        return f"{layer} builds without CUDA, NCCL and MPI, but includes {header}"
    if header.startswith("nlohmann/") and suffix(name) != ".cpp" and name != JSON_HEADER:
        return f"includes {header}; only .cpp files may (through usp/base/json.hpp)"
    if header.startswith("fmt/") and (name in owners.values() or suffix(name) in {".cu", ".cuh"}):
        return f"includes {header}; public headers and CUDA sources may not"
    if JSON_HEADERS.match(header) and name in owners.values() and not JSON_HEADERS.search(name):
        return f"a public header must not include {header}"
    return None


def backend_folders(names):
    """{"mma": "kernels/src/cuda/mma/"}"""
    return {found[1]: name.removesuffix("traits.cpp") for name in names if (found := BACKEND_RECORD.match(name))}


def without_comments(text):
    return COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def check_backends(name, text, folders):
    """Code names no backend but in its folder and in the lists; a record names its fallback, and the folder of a
    backend of two parts (hopper_cudnn) its parts."""
    if layer_of(name) is None or "/examples/" in name or name in BACKEND_LISTS or BACKEND_RECORD.match(name):
        return []
    code = without_comments(text).replace("wgmma.mma_async", "")  # an instruction
    faults = []
    parts = {part for backend, folder in folders.items() if name.startswith(folder) for part in backend.split("_")}
    for backend, folder in folders.items():
        pattern = rf"\bBackend::{backend}\b|\b{backend}_traits\b|\bmake_{backend}_kernel\b"
        if backend not in COMMON_NAMES:
            pattern += rf"|(?<![A-Za-z0-9])(?i:{backend})(?![A-Za-z0-9])"
        if backend not in parts and not name.startswith(folder) and (found := re.search(pattern, code)):
            faults.append(f"names backend {backend} ({found[0]}); ask its record (usp/schedule/backend.hpp)")
    return faults


def check_cpp(name, text, owners):
    faults = []
    if text.count("\n") > MAX_LINES:
        faults.append(f"{text.count(chr(10))} lines; split it ({MAX_LINES} at most)")
    if suffix(name) in {".hpp", ".h", ".cuh"} and "#pragma once" not in text:
        faults.append("header without #pragma once")
    if re.search(r"\b(secure_)?getenv\s*\(", text) and name != ENVIRONMENT_READER:
        faults.append(f"reads the environment; only {ENVIRONMENT_READER} may")
    if layer_of(name) and not name.startswith(METHOD_USERS) and re.search(r"\bMethod::", text):
        faults.append("names a method; ask its record (usp/schedule/method.hpp)")
    faults += [fault for header in INCLUDE.findall(text) if (fault := check_include(name, header, owners))]
    return faults


def check_file(name, text, owners, folders):
    """Faults of one file."""
    kind = suffix(name)
    faults = []
    if kind in CPP | SCRIPTS and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:3]):
        faults.append("no SPDX line on top")
    if "\t" in text and kind in CPP | SCRIPTS | {".json", ".md"}:
        faults.append("holds a tab")
    if OUTSIDE in text:
        faults.append("refers to a folder outside the repository")
    if text and not text.endswith("\n"):
        faults.append("does not end with a newline")
    if kind in CPP:
        faults += check_cpp(name, text, owners) + check_backends(name, text, folders)
    return faults


def check_tree(root):
    names = own_files(root)
    owners = public_headers(names)
    folders = backend_folders(names)
    faults = []
    for name in names:
        try:
            text = (pathlib.Path(root) / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            faults.append(f"{name}: is not UTF-8")
            continue
        faults += [f"{name}: {fault}" for fault in check_file(name, text, owners, folders)]
    return faults, len(names)


def main():
    faults, count = check_tree(sys.argv[1])
    for fault in faults:
        print(fault)
    print(f"{count} files checked, {len(faults)} faults")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
