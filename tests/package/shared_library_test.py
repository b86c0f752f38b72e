#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libusp.so as users of C and of other languages meet it: its symbols are usp.h's functions and no others,
pkg-config's line alone builds a C program against a moved install tree, and ctypes loads it and plans by it."""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile


def output(command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def header_functions(folder):
    """Functions of all headers of the C API."""
    names = set()
    for header in folder.glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        names |= set(re.findall(r"\b(usp_\w+)\s*\((?!\*)[^;{]*\);", text))
    return names


def exported(library):
    lines = output(["nm", "-D", "--defined-only", str(library)]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}


def check_symbols(prefix, library):
    declared, found = header_functions(prefix / "include/usp"), exported(library)
    assert declared, "no function was found in the headers"
    assert declared == found, f"only in the headers: {declared - found}; only exported: {found - declared}"
    versions = output(["objdump", "-T", str(library)])
    assert re.search(r"USP_0\s+usp_version", versions), "usp_version has no symbol version"


def check_program(prefix, folder, library, compiler, program):
    shutil.copy(program, folder / "program.c")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}
    flags = shlex.split(output(["pkg-config", "--cflags", "--libs", "usp"], env=environment))
    subprocess.run([compiler, "-std=c99", "program.c", "-o", "program", *flags], cwd=folder, check=True)
    printed = output([str(folder / "program")], env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)})
    assert printed.strip(), "the example printed nothing"


def check_planning(api):
    """A plan by JSON, and its own request again."""
    def plan(request):
        text = ctypes.c_char_p()
        status = api.usp_plan_step_json(json.dumps(request).encode(), ctypes.byref(text))
        assert status == 0, api.usp_last_error().decode()
        printed = text.value
        api.usp_text_free(text)
        return json.loads(printed)

    api.usp_last_error.restype = ctypes.c_char_p
    api.usp_text_free.restype = None
    result = plan({"model": "llama-3.1-8b", "cluster": "dgx-h100", "workload": {"seq": 65536}})
    assert result["format"] == "usp.plan_result" and result["best"]["fits_memory"], result["best"]
    assert plan(result["request"]) == result, "the echoed request gives another plan"
    assert api.usp_plan_step_json(b"{}", ctypes.byref(ctypes.c_char_p())) == 3, "an empty request was planned"
    assert b"model" in api.usp_last_error(), api.usp_last_error()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--program", required=True, help="a C program that prints something")
    parser.add_argument("--version", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        output([arguments.cmake, "--install", arguments.build, "--prefix", str(folder / "first")])
        prefix = (folder / "first").rename(folder / "moved")
        library = next(prefix.rglob("libusp.so"))
        check_symbols(prefix, library)
        check_program(prefix, folder, library, arguments.compiler, arguments.program)
        for name in ("LICENSE", "NOTICE"):
            assert next(prefix.rglob(name), None), f"{name} is not installed"
        api = ctypes.CDLL(str(library))
        api.usp_version.restype = ctypes.c_char_p
        assert api.usp_version().decode() == arguments.version, api.usp_version()
        check_planning(api)
    return 0


if __name__ == "__main__":
    sys.exit(main())
