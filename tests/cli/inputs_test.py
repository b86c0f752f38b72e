#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inputs_test.py USP: tensors of files that one rank holds otherwise than the others, or that no type can hold."""
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import launch_ranks  # noqa: E402

RANKS = 3
USP = sys.argv[1] if len(sys.argv) > 1 else "usp"
TOKENS, WIDTH = 1024, 8
HEADS = {"q": 4, "k": 2, "v": 2, "dout": 4}


def write_npy(path, heads, values):
    """fp32, [1][token][head][width]."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {TOKENS}, {heads}, {WIDTH}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1")
                     + struct.pack(f"<{len(values)}f", *values))


class Inputs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.plan = str(cls.path / "plan.json")
        subprocess.run([USP, "plan", "attention", "--heads", "4", "--kv-heads", "2", "--head-dim", str(WIDTH), "--seq",
                        str(TOKENS), "--ranks", str(RANKS), "--ring", "3", "--ulysses", "1", "-q", "-o", cls.plan],
                       check=True, stdout=subprocess.DEVNULL)
        draw = random.Random(1)
        cls.values = {name: [draw.gauss(0, 1) for _ in range(TOKENS * heads * WIDTH)] for name, heads in HEADS.items()}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def write(self, name, file, changes=None):
        values = list(self.values[name])
        for place, value in (changes or {}).items():
            values[place] = value
        write_npy(self.path / file, HEADS[name], values)
        return str(self.path / file)

    def run_usp(self, *arguments):
        return subprocess.run([USP, "run", self.plan, *arguments], capture_output=True, text=True, check=False)

    def test_a_difference_in_the_middle_on_one_rank_is_refused_by_name(self):
        for name, heads in HEADS.items():
            middle = TOKENS * heads * WIDTH // 2
            for rank in range(RANKS):
                changed = {middle: self.values[name][middle] + 1} if rank == 1 else None
                self.write(name, f"{name}{rank}.npy", changed)
            command = ["sh", "-c", f'exec "$0" run "$1" --{name} "$2/{name}$RANK.npy"', USP, self.plan, str(self.path)]
            code, processes = launch_ranks.launch(RANKS, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                  text=True)
            outputs, errors = zip(*(process.communicate() for process in processes))
            self.assertEqual(code, 5, errors)
            self.assertEqual(outputs, ("",) * RANKS)
            shown = "dO" if name == "dout" else name
            self.assertIn(f"rank 1 holds another '{shown} (--seed, --{name})'", "".join(errors))

    def test_terms_beyond_the_type_are_not_verifiable(self):
        result = self.run_usp("--q", self.write("q", "huge.npy", {0: 1e38}), "--verify")
        self.assertEqual(result.returncode, 6, result.stderr)
        self.assertIn("cannot be verified", result.stderr)
        self.assertIn("dk at batch 0, token 0, head 0: terms overflow the type; not verifiable", result.stderr)
        self.assertNotIn("is wrong", result.stderr)

    def test_the_verdict_tells_wrong_from_not_verifiable(self):
        huge = self.write("q", "huge.npy", {0: 1e38})
        for flags, verdict, code in ((["--q", huge, "--verify"], "not_verifiable", 6),
                                     (["--verify", "--kernel", "reference", "--tolerance", "1e-30"], "wrong", 6),
                                     (["--verify"], "verified", 0), ([], "not_verified", 0)):
            result = self.run_usp(*flags, "--json")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual(json.loads(result.stdout)["verdict"], verdict)
            self.assertEqual(json.loads(result.stdout)["ok"], code == 0)

    def test_a_large_input_that_the_type_holds_is_verified(self):
        result = self.run_usp("--v", self.write("v", "large.npy", {5: 1e4}), "--verify")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_no_numbers_are_named_as_such(self):
        for value in (math.nan, math.inf):
            result = self.run_usp("--k", self.write("k", "none.npy", {17: value}), "--verify")
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("[0, 1, 0, 1]", result.stderr)
            self.assertIn(f"holds {value}", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
