#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""calibrate_test.py USP [MPIRUN...]: usp calibrate on processes of a launcher like torchrun and, where it is given, of
mpirun; what it writes is planned, priced and scored with."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import launch_ranks  # noqa: E402

RANKS = 2
USP = sys.argv[1] if len(sys.argv) > 1 else "usp"
MPIRUN = sys.argv[2:]
CALL = ["--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--seq", "512", "--dtype", "fp32"]
ROW = ("machine,world,direction,causal,dtype,batch,seq,heads,kv_heads,head_dim,ring,ulysses,layout,exchange,library,"
       "iters_per_s\nhost,2,forward,true,fp32,1,512,4,2,64,2,1,zigzag,no_packed,usp,900\n")
ONE_RANK = ROW.splitlines()[0] + "\nhost,1,forward,true,fp32,1,2048,4,2,64,1,1,contiguous,no_packed,usp,50\n"


def usp(*arguments, **options):
    return subprocess.run([USP, *arguments], capture_output=True, text=True, check=False, **options)


class Calibrate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.calibration, self.cluster = self.path / "host.json", self.path / "cluster.json"
        self.command = ["calibrate", "--quick", "--max-seconds", "0.5", "-o", str(self.calibration), "--write-cluster",
                        str(self.cluster)]

    def launch(self, *arguments):
        code, processes = launch_ranks.launch(RANKS, [USP, *self.command, *arguments],
                                              launch_ranks.parser().parse_args([str(RANKS)]),
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return code, *zip(*(process.communicate() for process in processes))

    def check_use(self, communicator):
        document = json.loads(self.calibration.read_text())
        cluster = json.loads(self.cluster.read_text())
        self.assertEqual(document["cluster"], cluster["name"])
        rates = {dtype: cluster["specs"][0][f"{dtype}_flop_per_s"]["provenance"] for dtype in ("bf16", "fp16", "fp32")}
        self.assertEqual(rates, {"bf16": "guess", "fp16": "guess", "fp32": "measured"})
        self.assertIn(communicator, document["sources"][0]["note"])
        self.assertFalse((self.path / "host.json.partial").exists())
        for verb in (["plan", "attention"], ["price", "--ring", "1", "--ulysses", "2"]):
            done = usp(*verb, *CALL, "--cluster", str(self.cluster), "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(json.loads(done.stdout)["calibration"]["calibrated"])
        done = usp("score", "-", "--cluster", str(self.cluster), "--json", input=ROW)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_cluster_file_names_the_calibration_beside_it(self):
        place = self.path / "place"
        place.mkdir()
        self.assertEqual(usp(*self.command).returncode, 0)
        for file in (self.calibration, self.cluster):
            file.rename(place / file.name)
        self.calibration.write_text("{}")  # of that name, where the command runs
        plan = ["plan", "attention", *CALL, "--cluster", str(place / self.cluster.name)]
        done = usp(*plan, cwd=self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Measured anew, the kernels are still those of this machine.
        again = self.command[:self.command.index("--write-cluster")]
        again[again.index("-o") + 1] = str(place / self.calibration.name)
        self.assertEqual(usp(*again).returncode, 0)
        done = usp(*plan, cwd=self.path)
        self.assertNotIn("scaled from", done.stdout)
        (place / self.calibration.name).unlink()
        done = usp(*plan, cwd=self.path)
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("at '/calibration'", done.stderr)

    def test_processes_over_tcp(self):
        code, outputs, errors = self.launch()
        self.assertEqual(code, 0, errors)
        self.assertIn("2 ranks and 1 host (sockets)", outputs[0])
        self.assertEqual(outputs[1], "", "rank 0 alone reports")
        self.check_use("sockets")

    def test_processes_of_mpirun(self):
        if not MPIRUN:
            self.skipTest("no mpirun")
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run([*MPIRUN, str(RANKS), USP, *self.command], capture_output=True, text=True, check=False,
                              env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("2 ranks and 1 host (mpi)"), 1)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.check_use("mpi")

    def test_an_interrupt_says_what_is_kept(self):
        partial = self.path / "host.json.partial"
        process = subprocess.Popen([USP, "calibrate", "--ranks", "2", "-o", str(self.calibration)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not partial.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 5, errors)
        self.assertIn("interrupted after", errors)
        self.assertIn(f"{partial} keeps them", errors)
        self.assertFalse(self.calibration.exists())
        self.assertTrue(json.loads(partial.read_text())["parts"])

    def test_two_that_write_one_file_do_not_overwrite_each_other(self):
        lock = self.path / "host.json.lock"
        first = subprocess.Popen([USP, "calibrate", "--ranks", "2", "-o", str(self.calibration)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while first.poll() is None and not lock.exists():
            time.sleep(0.01)
        done = usp(*self.command)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("another usp calibrate writes", done.stderr)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
        self.assertFalse(lock.exists())
        self.assertEqual(usp(*self.command, "--restart").returncode, 0)

    def test_rows_are_added_once_by_all_processes(self):
        self.assertEqual(usp(*self.command, "--ranks", "2").returncode, 0)
        rows = self.path / "rows.csv"
        rows.write_text(ONE_RANK)
        self.command = ["calibrate", "--add", str(rows), "--cluster", str(self.cluster), "-o", str(self.calibration)]
        code, outputs, errors = self.launch()
        self.assertEqual(code, 0, errors)
        self.assertIn("kernels of cpu: times x", outputs[0])
        self.assertEqual(outputs[1], "")
        corrected = [source for source in json.loads(self.calibration.read_text())["sources"]
                     if source["measurement"].startswith("corrected")]
        self.assertEqual(len(corrected), 1)

    def test_runs_of_plans_are_added(self):
        self.assertEqual(usp(*self.command, "--ranks", "2").returncode, 0)
        plan, run = self.path / "plan.json", self.path / "run.json"
        add = ["calibrate", "--add", str(run), "--cluster", str(self.cluster), "-o", str(self.calibration)]
        self.assertEqual(usp("plan", "attention", *CALL, "--ranks", "1", "-o", str(plan)).returncode, 0)
        for verb in ("run", "bench"):
            run.write_text(usp(verb, str(plan), "--json").stdout)
            done = usp(*add, "--plan", str(plan))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("kernels of cpu: times x", done.stdout)
            self.assertIn("by 2 rows", done.stdout)
        done = usp(*add)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--plan", done.stderr)
        run.write_text(usp("run", str(plan), "--dry-run", "--json").stdout)
        done = usp(*add, "--plan", str(plan))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("dry_run", done.stderr)
        run.write_text(usp("run", str(plan), "--kernel", "reference", "--json").stdout)
        done = usp(*add, "--plan", str(plan))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("computed with reference", done.stderr)
        self.assertEqual(usp("plan", "attention", *CALL, "--ranks", "1", "--forward-only", "-o", str(plan)).returncode, 0)
        done = usp(*add, "--plan", str(plan))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("another plan", done.stderr)

    def test_another_number_of_ranks_than_were_started_is_refused(self):
        code, _, errors = self.launch("--ranks", "3")
        self.assertEqual(code, 2, errors)
        self.assertIn("--ranks 3", errors[0])

    def test_parts_of_another_machine_are_refused_on_all_ranks(self):
        partial = self.path / "host.json.partial"
        partial.write_text(json.dumps({"format": "usp.calibration_partial", "version": 2,
                                       "settings": {"hosts": "elsewhere"}, "parts": []}))
        code, _, errors = self.launch()
        self.assertEqual(code, 3, errors)
        self.assertIn("elsewhere", "".join(errors))
        self.assertIn("--restart", "".join(errors))
        self.assertTrue(partial.exists(), "what was measured elsewhere is kept")
        partial.write_text("{")
        self.assertEqual(self.launch()[0], 3)
        code, _, errors = self.launch("--restart")
        self.assertEqual(code, 0, errors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
