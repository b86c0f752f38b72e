#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchrun_test.py USP: plans run as processes that a launcher like torchrun starts, beside the same on threads."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import launch_ranks  # noqa: E402

RANKS = 4
USP = sys.argv[1] if len(sys.argv) > 1 else "usp"
RESULTS = ("out.npy", "dq.npy", "dk.npy", "dv.npy")


TOKEN = "c1b0d7aa5e2f49838c6d0e1f2a3b4c5d"


def launch(arguments, ranks=RANKS, options=()):
    """Exit code, stdout and stderr of each rank."""
    code, processes = launch_ranks.launch(ranks, [USP, *arguments],
                                          launch_ranks.parser().parse_args([str(ranks), *options]),
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return code, *zip(*(process.communicate() for process in processes))


class Torchrun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.plan = str(cls.path / "plan.json")
        subprocess.run([USP, "plan", "attention", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--seq", "96",
                        "--dtype", "fp32", "--ranks", "4", "--ring", "2", "--ulysses", "2", "-q", "-o", cls.plan],
                       check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_results_are_those_of_threads_bit_for_bit(self):
        threads, processes = self.path / "threads", self.path / "processes"
        subprocess.run([USP, "run", self.plan, "-o", threads], check=True, stdout=subprocess.DEVNULL)
        code, outputs, errors = launch(["run", self.plan, "--verify", "--json", "-o", str(processes)])
        self.assertEqual(code, 0, errors)
        document = json.loads(outputs[0])
        self.assertTrue(document["ok"])
        self.assertTrue(document["traffic"]["equal"])
        self.assertEqual(document["communicator"], "sockets")
        self.assertEqual(outputs[1:], ("",) * (RANKS - 1), "rank 0 alone reports")
        for name in RESULTS:
            self.assertEqual((threads / name).read_bytes(), (processes / name).read_bytes(), name)

    def test_a_failed_check_ends_all_with_its_code(self):
        code, _, errors = launch(["run", self.plan, "-o", "/proc/none"])
        self.assertEqual(code, 5, errors)
        self.assertIn("/proc/none", "".join(errors))

    def test_bench(self):
        code, outputs, errors = launch(["bench", self.plan, "--repeat", "2", "--json"])
        self.assertEqual(code, 0, errors)
        json.loads(outputs[0])
        self.assertEqual(outputs[1:], ("",) * (RANKS - 1))

    def test_another_number_of_ranks_is_refused(self):
        code, _, errors = launch(["run", self.plan], ranks=2)
        self.assertEqual(code, 2)
        for error in errors:
            self.assertIn("the plan is for 4 ranks, torchrun started 2", error)

    def test_a_rank_that_fails_before_it_meets_the_others_tells_them(self):
        for wrong, told in ((0, (1, 2, 3)), (2, (0, 1, 3))):
            command = ["sh", "-c", f'test "$RANK" = {wrong} && set -- "$1" --layer 7; exec "$0" run "$@" --watchdog 50',
                       USP, self.plan]
            code, processes = launch_ranks.launch(RANKS, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                  text=True)
            outputs, errors = zip(*(process.communicate() for process in processes))
            self.assertEqual(code, 2, errors)
            self.assertEqual("".join(outputs), "")
            self.assertIn("--layer", errors[wrong])
            for rank in told:
                self.assertEqual(processes[rank].returncode, 2, errors)
                self.assertIn(f"rank {wrong}", errors[rank])
                self.assertIn("layer", errors[rank])

    def test_a_rank_that_refuses_the_value_of_a_flag_tells_the_others(self):
        for verb, flag in (("run", "--documents"), ("bench", "--ring-transport")):
            command = ["sh", "-c", f'test "$RANK" = 2 && set -- "$1" {flag} 5x; exec "$0" {verb} "$@" --watchdog 50',
                       USP, self.plan]
            code, processes = launch_ranks.launch(RANKS, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                  text=True)
            errors = [process.communicate()[1] for process in processes]
            self.assertEqual(code, 2, errors)
            for error in errors:
                self.assertIn(f"{flag}: '5x'", error)

    def test_a_rank_with_another_plan_tells_the_others(self):
        other = str(self.path / "two.json")
        subprocess.run([USP, "plan", "attention", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--seq", "96",
                        "--dtype", "fp32", "--ranks", "2", "-q", "-o", other], check=True, stdout=subprocess.DEVNULL)
        command = ["sh", "-c", 'test "$RANK" = 3 && shift; exec "$0" run "$1" --watchdog 50', USP, self.plan, other]
        code, processes = launch_ranks.launch(RANKS, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        errors = [process.communicate()[1] for process in processes]
        self.assertEqual(code, 2, errors)
        for error in errors:
            self.assertIn("the plan is for 2 ranks, torchrun started 4", error)

    def test_a_rank_that_fails_alone_ends_with_its_own_code(self):
        alone = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": "29411"}
        result = subprocess.run([USP, "run", "/proc/none.json", "--watchdog", "0.2"], capture_output=True, text=True,
                                env={**os.environ, **alone}, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stderr.count("/proc/none.json"), 1, result.stderr)

    def test_beyond_loopback_a_job_has_a_secret_or_trusts_its_network(self):
        address = launch_ranks.own_address()
        if address is None:
            self.skipTest("this host has no address beyond loopback")
        network = ["--network", *(f"--set={rank}:MASTER_ADDR={address}" for rank in range(RANKS))]
        code, _, errors = launch(["run", self.plan], options=network)
        self.assertEqual(code, 5, errors)
        for error in errors:
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn("export USP_JOB_TOKEN=$(openssl rand -hex 32)", error)
        code, _, errors = launch(["run", self.plan, "--trust-network"], options=network)
        self.assertEqual(code, 0, errors)
        self.assertEqual("".join(errors).count("without a secret"), 1, errors)
        tokens = [f"--set={rank}:USP_JOB_TOKEN={TOKEN}" for rank in range(RANKS)]
        code, _, errors = launch(["run", self.plan], options=network + tokens)
        self.assertEqual((code, "".join(errors)), (0, ""))

    def test_ranks_meet_at_any_loopback_address(self):
        plan = str(self.path / "three.json")
        subprocess.run([USP, "plan", "attention", "--heads", "3", "--kv-heads", "3", "--head-dim", "8", "--seq", "96",
                        "--dtype", "fp32", "--ranks", "3", "-q", "-o", plan], check=True, stdout=subprocess.DEVNULL)
        for address in ("127.0.1.1", "127.0.0.2"):
            places = [f"--set={rank}:{name}={value}" for rank in range(3)
                      for name, value in (("MASTER_ADDR", address), ("LOCAL_WORLD_SIZE", "1"))]
            code, _, errors = launch(["run", plan], ranks=3, options=places)
            self.assertEqual((code, "".join(errors)), (0, ""), address)

    def test_an_address_of_all_interfaces_is_refused(self):
        places = [f"--set={rank}:{name}={value}" for rank in range(RANKS)
                  for name, value in (("MASTER_ADDR", "0.0.0.0"), ("LOCAL_WORLD_SIZE", "1"), ("USP_JOB_TOKEN", TOKEN))]
        code, _, errors = launch(["run", self.plan], options=places)
        self.assertEqual(code, 5, errors)
        for error in errors:
            self.assertIn("MASTER_ADDR 0.0.0.0 means all interfaces", error)

    def test_trust_that_is_not_needed_is_said_or_refused(self):
        code, _, errors = launch(["run", self.plan, "--trust-network"])
        self.assertEqual(code, 0, errors)
        self.assertEqual("".join(errors).count("--trust-network is not needed"), 1, errors)
        alone = subprocess.run([USP, "run", self.plan, "--trust-network"], capture_output=True, text=True, check=False)
        self.assertEqual(alone.returncode, 2)
        self.assertIn("--trust-network", alone.stderr)

    def test_a_dry_run_is_one_process(self):
        code, _, errors = launch(["run", self.plan, "--dry-run"])
        self.assertEqual(code, 2)
        for error in errors:
            self.assertIn("without mpirun, srun or torchrun", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
