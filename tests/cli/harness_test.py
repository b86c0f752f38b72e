#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The harness itself: each kind of expectation passes where it holds and fails where it does not."""
import pathlib
import sys
import tempfile
import unittest

from run_cli_tests import run_case

PROGRAM = """#!/bin/sh
echo '{"a": [{"b": 1}], "none": null}'
[ "$1" = quiet ] || echo note >&2
exit "${2:-0}"
"""


class Harness(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folders = {"tmp": folder.name}
        self.program = pathlib.Path(folder.name, "program")
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)

    def faults(self, args=(), **case):
        return run_case(self.program, {"name": "x", "args": list(args), **case}, self.folders)[0]

    def test_what_holds_passes(self):
        self.assertEqual(self.faults(stdout=["none"], stderr=["note"], not_stdout=["note"], not_stderr=["none"],
                                     files=["{tmp}/program"],
                                     json={"a.0.b": 1, "none": {"is": "null"}, "c": {"is": "absent"},
                                           "a": {"is": "exists"}}), [])

    def test_each_broken_expectation_is_one_fault(self):
        for case in ({"exit": 3}, {"stdout": ["note"]}, {"stderr": ["none"]}, {"not_stdout": ["none"]},
                     {"not_stderr": ["note"]}, {"files": ["{tmp}/other"]}, {"json": {"a.0.b": 2}},
                     {"json": {"a.0.b": 1.0}}, {"json": {"a.1": 1}}, {"json": {"none": {"is": "absent"}}},
                     {"json": {"a": {"is": "null"}}}, {"json": {"c": {"is": "exists"}}}, {"typo": 1}):
            with self.subTest(case=case):
                self.assertEqual(len(self.faults(**case)), 1)

    def test_failing_run_must_not_print_on_stdout(self):
        self.assertEqual(len(self.faults(["loud", "3"], exit=3)), 1)

    def test_signal_is_no_exit_code(self):
        self.program.write_text("#!/bin/sh\nkill -SEGV $$\n")
        self.assertTrue(self.faults(exit=1))


if __name__ == "__main__":
    sys.exit(unittest.main())
