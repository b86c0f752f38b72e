# SPDX-License-Identifier: Apache-2.0
"""The package beside usp.h: structs, enumerators and signatures as a C compiler sees them; what the library needs."""

import ctypes
import re
import shutil
import subprocess
import sys

import pytest
import usp_attention as usp
from paths import HEADER, REPOSITORY
from usp_attention import _library, _structs

C_NAMES = {
    _structs.Fault: "usp_fault", _structs.AttentionDesc: "usp_attention_desc", _structs.CommOptions: "usp_comm_options",
    _structs.SocketJob: "usp_socket_job", _structs.Tensor: "usp_tensor", _structs.AttentionInputs:
    "usp_attention_inputs", _structs.AttentionGradients: "usp_attention_gradients", _structs.PassRecord:
    "usp_pass_record", _structs.Allocator: "usp_allocator", _structs.EngineDesc: "usp_engine_desc",
    _structs.LayoutDesc: "usp_layout_desc", _structs.BatchSizes: "usp_batch_sizes", _structs.Call: "usp_call",
}
ENUMERATORS = {
    **{f"USP_{word.upper()}": i for words in (_structs.DTYPES, _structs.METHODS, _structs.LAYOUTS)
       for i, word in enumerate(words)},
    **{f"USP_{prefix}_{word.upper()}": i for prefix, words in (
        ("DKV", _structs.DKV_RETURNS), ("BACKEND", _structs.BACKENDS), ("TRANSPORT", _structs.TRANSPORTS))
       for i, word in enumerate(words)},
    **{f"USP_{name}": getattr(_structs, name) for name in (
        "OK", "INTERNAL", "USAGE", "INVALID_INPUT", "INFEASIBLE", "ENVIRONMENT", "VERIFICATION", "FORWARD", "BACKWARD",
        "FAULT_COMMUNICATION", "FAULT_DISAGREEMENT", "UNBOUNDED")},
}


def test_structs_and_enumerators(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    lines = ['#include "usp/usp.h"', "#include <stdio.h>", "int main(void) {"]
    expected = {}
    for kind, name in C_NAMES.items():
        expected[name] = ctypes.sizeof(kind)
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in kind._fields_:
            expected[f"{name}.{field}"] = getattr(kind, field).offset
            lines.append(f'  printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    for name, value in ENUMERATORS.items():
        expected[name] = value
        lines.append(f'  printf("{name} %lld\\n", (long long){name});')
    source = tmp_path / "offsets.c"
    source.write_text("\n".join([*lines, "  return 0;", "}", ""]))
    program = tmp_path / "offsets"
    subprocess.run([compiler, "-std=c99", "-I", str(HEADER.parents[1]), str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert {name: int(value) for name, value in map(str.split, printed.splitlines())} == expected


def test_signatures():
    """As many arguments as the header declares, for every function that the package calls."""
    headers = "".join(path.read_text() for path in sorted(HEADER.parent.glob("*.h")))  # usp.h and what it includes
    text = re.sub(r"/\*.*?\*/", "", headers, flags=re.S)
    declared = {name: len([a for a in arguments.split(",") if a.strip() != "void"])
                for name, arguments in re.findall(r"\b(usp_\w+)\s*\(([^()]*)\);", text)}
    used = {**_library._STATUS_FUNCTIONS, **{n: a for n, (_, a) in _library._OTHER_FUNCTIONS.items()}}
    assert {name: len(arguments) for name, arguments in used.items()} == {name: declared[name] for name in used}


def test_version():
    version = (REPOSITORY / "VERSION").read_text().split()[0]
    assert usp.library().version == usp.__version__ == version
    assert version.startswith(".".join(map(str, _structs.HEADER_VERSION)) + ".")
    assert f'version = "{version}"' not in (REPOSITORY / "pyproject.toml").read_text(), "read it from VERSION"


def test_needs_no_torch_and_no_python():
    """So that one file serves every version of both."""
    needed = subprocess.run(["readelf", "-d", usp.library().path], check=True, capture_output=True, text=True).stdout
    names = re.findall(r"NEEDED.*\[(.*)\]", needed)
    assert names and not [name for name in names if re.search("torch|python|c10", name)], names


def test_planner_without_torch():
    program = ("import sys; import usp_attention as usp; usp.layout_tokens('zigzag', 8, 2, 1, 0); "
               "usp.plan('llama-3.1-8b', 'dgx-h100', seq=65536); assert 'torch' not in sys.modules, 'torch'")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names():
    for name in usp.__all__:
        assert getattr(usp, name) is not None
    with pytest.raises(AttributeError):
        usp.ring_attention


def test_errors_by_status():
    with pytest.raises(usp.UsageError, match="outside the mesh"):
        usp.layout_tokens("zigzag", 8, 2, 1, 5)
    with pytest.raises(usp.UsageError, match="kind is 'spiral'; it must be one of contiguous"):
        usp.layout_tokens("spiral", 8, 2, 1, 0)
    with pytest.raises(usp.InvalidInput, match="the step has"):
        usp.layout_tokens("zigzag", 8, 2, 1, 0, [0, 9])
    assert issubclass(usp.UsageError, ValueError) and issubclass(usp.CommunicationError, RuntimeError)
