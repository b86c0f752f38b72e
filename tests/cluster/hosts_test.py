#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hosts_test.py USP: 4 ranks on 2 emulated hosts, under mpirun and with torchrun's variables."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import launchers
import network
import sandbox

USP = sys.argv[1] if len(sys.argv) > 1 else "usp"
MBIT = 1000
LAUNCHERS = launchers.available()


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=sandbox.RUN)
        cls.hosts = network.Network([network.Nic(MBIT), network.Nic(MBIT)]).hosts

    def plan(self, *degrees):
        file = pathlib.Path(self.folder.name) / "-".join(degrees)
        subprocess.run([USP, "plan", "attention", "--heads", "4", "--kv-heads", "4", "--head-dim", "64", "--seq", "512",
                        "--dtype", "fp32", "--ranks", "4", *degrees, "-q", "-o", file], check=True,
                       stdout=subprocess.DEVNULL)
        return file

    def test_each_host_has_its_name_and_its_ranks(self):
        for name, launch in LAUNCHERS.items():
            with self.subTest(name):
                code, out, errors = launch(self.hosts, 2, ["hostname"])
                self.assertEqual(code, 0, errors)
                self.assertEqual(sorted(out.split()), ["host0", "host0", "host1", "host1"])

    def test_results_and_bytes_are_those_of_the_plan(self):
        for degrees in (("--ulysses", "4"), ("--ring", "2", "--ulysses", "2"), ("--ring", "4")):
            file = self.plan(*degrees)
            for name, launch in LAUNCHERS.items():
                with self.subTest(name, degrees=degrees):
                    self.run_and_verify(launch, name, file)

    def run_and_verify(self, launch, name, file):
        code, out, errors = launch(self.hosts, 2, [USP, "run", file, "--verify", "--json"])
        self.assertEqual(code, 0, errors)
        document = json.loads(out)
        self.assertTrue(document["ok"])
        self.assertTrue(document["traffic"]["equal"])
        self.assertEqual(document["communicator"], name)

    def test_exchanges_within_a_host_never_leave_it(self):
        """ring 2 x ulysses 2 in the order of the hosts: rings cross the NICs, exchanges of heads do not."""
        file = self.plan("--ring", "2", "--ulysses", "2", "--order", "ulysses_inner", "--forward-only")
        # Keys and values of a host's half of the tokens: 256 x 4 heads x 64 x 4 bytes each.
        keys_and_values = 2 * 256 * 4 * 64 * 4
        for name, launch in LAUNCHERS.items():
            with self.subTest(name):
                before = [host.sent_bytes() for host in self.hosts]
                code, _, errors = launch(self.hosts, 2, [USP, "run", file])
                self.assertEqual(code, 0, errors)
                for host, sent in zip(self.hosts, before):
                    crossed = host.sent_bytes() - sent
                    self.assertGreater(crossed, keys_and_values)
                    self.assertLess(crossed, 1.5 * keys_and_values)  # headers and control messages


if __name__ == "__main__":
    sandbox.enter()
    unittest.main(argv=sys.argv[:1])
