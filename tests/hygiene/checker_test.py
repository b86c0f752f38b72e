#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hygiene checker itself: each rule is broken once and found."""
import pathlib
import sys
import tempfile
import unittest

from check_repo import check_tree

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "#pragma once\n"
GOOD = {
    "topology/base/include/usp/base/error.hpp": HEADER,
    "topology/base/include/usp/base/json.hpp": HEADER + "#include <nlohmann/json.hpp>\n",
    "topology/base/include/usp/base/json_units.hpp": HEADER + '#include "usp/base/json.hpp"\n',
    "topology/base/include/usp/base/version.hpp.in": HEADER,
    "topology/src/a.cpp": SPDX + '#include "usp/base/json.hpp"\n#include "usp/base/version.hpp"\n',
    "planner/include/usp/planner/plan.hpp": HEADER + '#include "usp/base/error.hpp"\n',
    "planner/include/usp/planner/detail/axes.hpp": HEADER,
    "planner/src/b.cpp": SPDX + '#include "usp/planner/detail/axes.hpp"\n',
    "planner/include/usp/schedule/tick.hpp": HEADER,
    "runtime/include/usp/usp.h": "/* SPDX-License-Identifier: Apache-2.0 */\n#pragma once\n#include <stdint.h>\n",
    "tests/runtime/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n" + '#include "usp/usp.h"\n',
    "cli/main.cpp": SPDX + '#include "usp/planner/plan.hpp"\n',
    "topology/base/src/env.cpp": SPDX + "const char* v = std::getenv(name);\n",
    "kernels/src/cpu/traits.cpp": SPDX + "const BackendTraits cpu_traits = {.word = \"cpu\"};\n",
    "kernels/src/cuda/mma/traits.cpp": SPDX + "const BackendTraits mma_traits = {.word = \"mma\"};\n",
    "kernels/src/cuda/fast/traits.cpp": SPDX + "const BackendTraits fast_traits = {.fallback = &mma_traits};\n",
    "kernels/include/usp/kernels/view.hpp": HEADER,
    "kernels/src/cuda/mma/a.cpp": SPDX + "use(Backend::mma);\n",
    "kernels/src/kernel_factories.cpp": SPDX + "list({make_cpu_kernel, make_mma_kernel});\n",
    "runtime/src/a.cpp": SPDX + "// as the mma backend\nrun(\"cpu\"); /* not\nfast */ int comma, breakfast;\n",
    "kernels/cuda/a.cu": SPDX + "#include <cuda_runtime.h>\n",
    "tests/data/topo.txt": "a\tb",
    "CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\n",
}
BROKEN = {
    "no licence": ("cli/a.cpp", "int x;\n"),
    "no licence in CMake": ("cli/CMakeLists.txt", "project(x)\n"),
    "tab": ("cli/a.cpp", SPDX + "\tint x;\n"),
    "no newline": ("cli/a.cpp", SPDX + "int x;"),
    "long": ("cli/a.cpp", SPDX + "int x;\n" * 500),
    "pragma once": ("cli/a.hpp", SPDX),
    "pragma once in a C header": ("runtime/include/usp/a.h", SPDX),
    "no licence in C": ("tests/a.c", "int x;\n"),
    "upward include of a C header": ("planner/src/c.cpp", SPDX + '#include "usp/usp.h"\n'),
    "environment": ("cli/a.cpp", SPDX + "auto v = getenv (name);\n"),
    "outside": ("README.md", "see ." + "./shared/design.md\n"),
    "upward include": ("topology/src/b.cpp", SPDX + '#include "usp/planner/plan.hpp"\n'),
    "schedule above planner": ("planner/schedule/include/usp/schedule/b.hpp", HEADER + '#include "usp/planner/plan.hpp"\n'),
    "planner below the executor": ("runtime/src/exec/a.cpp", SPDX + '#include "usp/planner/plan.hpp"\n'),
    "a method by name": ("cli/a.cpp", SPDX + "auto method = usp::Method::ring;\n"),
    "a kernel in a backend's record": (
        "kernels/src/cuda/slow/traits.cpp", SPDX + '#include "usp/kernels/view.hpp"\n'),
    "cuda in a backend's record": ("kernels/src/cuda/slow/traits.cpp", SPDX + "#include <cuda_runtime.h>\n"),
    "a backend by name": ("cli/a.cpp", SPDX + "auto backend = usp::Backend::cpu;\n"),
    "a backend's kernel by name": ("runtime/src/b.cpp", SPDX + "auto kernel = make_cpu_kernel();\n"),
    "a backend's word": ("cli/a.cpp", SPDX + 'if (word == "mma") return;\n'),
    "a backend in a text": ("cli/a.cpp", SPDX + 'fail("leave the rest to Fast"); // mma\n'),
    "a backend in another's folder": ("kernels/src/cuda/fast/a.cpp", SPDX + "int mma_steps = 0;\n"),
    "unknown header": ("cli/a.cpp", SPDX + '#include "usp/base/nothing.hpp"\n'),
    "json in a header": ("cli/a.hpp", HEADER + "#include <nlohmann/json.hpp>\n"),
    "json units in a public header": (
        "planner/include/usp/planner/b.hpp", HEADER + '#include "usp/base/json_units.hpp"\n'),
    "json in a public header": ("planner/include/usp/planner/b.hpp", HEADER + '#include "usp/base/json.hpp"\n'),
    "internal header in a public one": ("planner/include/usp/planner/b.hpp", HEADER + '#include "usp/planner/detail/axes.hpp"\n'),
    "internal header of another layer": ("cli/a.cpp", SPDX + '#include "usp/planner/detail/axes.hpp"\n'),
    "cuda in the planner": ("planner/src/a.cpp", SPDX + "#include <cuda_runtime_api.h>\n"),
    "mpi in the topology": ("topology/src/b.cpp", SPDX + "#  include <mpi.h>\n"),
}


class Checker(unittest.TestCase):
    def faults(self, extra=()):
        with tempfile.TemporaryDirectory() as root:
            for name, text in {**GOOD, **dict(extra)}.items():
                file = pathlib.Path(root, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return check_tree(root)[0]

    def test_good_tree(self):
        self.assertEqual(self.faults(), [])

    def test_each_rule(self):
        for rule, broken in BROKEN.items():
            with self.subTest(rule=rule):
                found = self.faults([broken])
                self.assertEqual([fault.split(":")[0] for fault in found], [broken[0]], found)


if __name__ == "__main__":
    sys.exit(unittest.main())
