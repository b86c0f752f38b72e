#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gpu_table.py makes of made-up output of the benchmarks: rows, targets, and what was not run. Needs no GPU."""
import contextlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

import gpu_rows
import gpu_table
import mesh_table
from gpu_rows import NotRun, Row

RING = [{"rank": 3, "way": way, "pass": "forward", "ms": 1.5, "tflop_s": rate, "full_tflop_s": 600}
        for way, rate in (("one full call", 600), ("one call per hop", 486), ("in waves", 546), ("in one launch", 582))]
GATED = [{"rank": 3, "way": way, "pass": "forward", "ms": 1.5, "tflop_s": rate, "launch_tflop_s": 582,
          "copies": copies} for way, rate, copies in (("behind open gates", 581, "host"), ("behind copies", 560, "peer"),
                                                      ("behind copies", 200, "host"))]
MEMORY = [{"work": work, "microseconds": 10, "gb_s": rate, "copy_gb_s": 2000}
          for work, rate in (("merge bf16 into fp32", 1900), ("delta bf16 x bf16", 1700), ("cast bf16 to fp32", 1000))]
EXCHANGE = [{"mode": "threads", "ranks": 2, "gpus": gpus, "way": "there", "run_bytes": 256, "mib_per_peer": 64,
             "exchange_gb_s": 300, "plain_gb_s": 310, "rounds": 15, "late": late} for gpus, late in ((1, 0), (2, 8))]
ATTENTION = {"seq": 16384, "heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True, "order": "bshd", "ms": 2.0}
PACKED = """\
packed_mha_64k                     fwd    1.234 ms  420.0  bwd    4.321 ms  300.0 TF/s
packed_gqa_64k                     fwd    1.234 ms  400.0  bwd    4.321 ms  300.0 TF/s

NVIDIA H100 80GB HBM3 torch 2.11.0
packed_mha_64k                 FLASH fwd  400.0 bwd  320.0  ratio fwd 1.050 bwd 0.938
packed_gqa_64k: no varlen_attn here
"""


def lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def mesh(by, seq, rate, gpus=2, **fields):
    return {"gpus": gpus, "heads": 16, "kv_heads": 16, "head_dim": 128, "seq": seq, "name": f"{by} {rate}", "by": by,
            "both_tflop_s": rate, **fields}


class Rows(unittest.TestCase):
    def test_times_and_rates_both_count_above_one_when_ours_is_faster(self):
        self.assertEqual(Row("p", "w", "s", 2.0, 3.0, "ms").ratio, 1.5)
        self.assertEqual(Row("p", "w", "s", 3.0, 2.0, "TF/s").ratio, 1.5)

    def test_a_target_is_met_from_its_value_on(self):
        self.assertTrue(Row("p", "w", "s", 90, 100, "GB/s", 0.9).met)
        self.assertFalse(Row("p", "w", "s", 89.99, 100, "GB/s", 0.9).met)
        self.assertIsNone(Row("p", "w", "s", 1, 100, "GB/s").met)

    def test_attention_has_the_targets_of_its_backend_and_pass(self):
        found = [{**ATTENTION, "pass": name, "peer_ms": 1.92} for name in ("forward", "backward")]
        self.assertEqual([r.met for r in gpu_rows.attention_rows("mma", found)], [False, True])
        rows = list(gpu_rows.attention_rows("attention", found))
        self.assertEqual([(r.target, r.met) for r in rows], [(0.99, False)] * 2)
        self.assertEqual(rows[0].shape, "16K causal 32/8 hd128 bshd")

    def test_packed_pairs_figures_by_name_and_says_what_the_peer_refused(self):
        forward, backward = (r for r in gpu_rows.packed_rows(PACKED) if isinstance(r, Row))
        self.assertEqual((forward.ours, forward.peer, forward.target, forward.met), (420, 400, 1.0, True))
        self.assertEqual((backward.ours, backward.peer, backward.target, backward.met), (300, 320, 0.95, False))
        self.assertIn(NotRun("packed", "packed_gqa_64k", "no varlen_attn here"), gpu_rows.packed_rows(PACKED))

    def test_packed_without_our_figure_is_a_failure(self):
        text = PACKED.replace("packed_mha_64k                     fwd", "other fwd")
        self.assertIn("packed_mha_64k", [m.what for m in gpu_rows.packed_rows(text)
                                         if isinstance(m, NotRun) and m.failed])

    def test_ring_leaves_the_peer_out_and_aims_at_each_way(self):
        rows = gpu_rows.ring_rows(RING, "8 blocks")
        self.assertEqual([(r.target, r.met) for r in rows], [(0.82, False), (0.9, True), (0.96, True)])

    def test_ring_holds_gates_to_the_launch_without_them(self):
        rows = gpu_rows.ring_rows(GATED, "8 blocks")
        self.assertEqual([(r.peer, r.target, r.met) for r in rows], [(582, 0.997, True), (582, 0.98, False), (582, None, None)])

    def test_memory_aims_at_merge_and_delta_only(self):
        self.assertEqual([r.met for r in gpu_rows.memory_rows(MEMORY, "s")], [True, False, None])

    def test_exchange_on_a_shared_gpu_says_so_and_has_no_target(self):
        shared, own = gpu_rows.exchange_rows(EXCHANGE)
        self.assertIn("sharing 1 GPU", shared.shape)
        self.assertEqual((shared.met, own.met), (None, True))
        self.assertNotIn("late", shared.shape)
        self.assertIn("host late in 8 of 15 rounds", own.shape)

    def test_ranks_are_the_fastest_of_each_mesh_beside_the_fastest_peer_and_one_gpu(self):
        found = [mesh("torch", 65536, 500), mesh("torch", 65536, 400),
                 {"gpus": 2, "seq": 65536, "name": "torch refused", "by": "torch", "fault": "RuntimeError: no"},
                 mesh("usp", 65536, 530, ring=2, ulysses=1), mesh("usp", 65536, 560, ring=1, ulysses=2),
                 mesh("usp", 65536, 300, ring=1, ulysses=2)]
        alone = [mesh("usp", 65536, 580, gpus=1, ring=1, ulysses=1)]
        items = list(gpu_rows.ranks_rows(found, alone))
        figures = [(r.what.split(",")[0], r.ours, r.peer, r.target, r.met) for r in items if isinstance(r, Row)]
        self.assertEqual(figures, [("ulysses beside context parallel", 560, 500, 1.10, True),
                                   ("ulysses beside one GPU", 560, 580, 0.96, True),
                                   ("ring beside context parallel", 530, 500, 1.07, False),
                                   ("ring beside one GPU", 530, 580, 0.94, False)])
        self.assertEqual([m.why for m in items if isinstance(m, NotRun)], ["RuntimeError: no"])

    def test_a_mesh_without_a_peer_is_not_run(self):
        items = list(gpu_rows.ranks_rows([mesh("usp", 16384, 530, ring=2, ulysses=1)], []))
        self.assertEqual([m.why for m in items], ["no figure of ours", "no figure of the peer"])


class Table(unittest.TestCase):
    """The whole script over programs that print made-up figures."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, text, after="sys.exit(0)"):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\nimport sys, time\nprint({text!r}, end='', flush=True)\n{after}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def table(self, *arguments, gpus=1, torch=None):
        about = {"machine": "a machine", "cpus": 2, "python": "3", "driver": "600.1", "cuda": "13.0", "torch": torch,
                 "cudnn": 92000, "nccl": "2.28", "gpus": ["NVIDIA H100"] * gpus, "revision": None, "started": "now"}
        out = self.folder / "table.json"
        with mock.patch.object(gpu_table, "machine", lambda revision: about), \
                contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(io.StringIO()):
            code = gpu_table.main(["--bin", str(self.folder), "--json", str(out), *arguments])
        return code, text.getvalue(), json.loads(out.read_text())

    def test_every_part_is_in_the_table_or_said_not_to_be_run(self):
        self.program("bench_cuda_ring", lines(RING))
        code, text, result = self.table("--only", "attention", "ring", "memory", "ranks")
        self.assertEqual(code, 0)
        self.assertIn("1 x NVIDIA H100; driver 600.1, cuda 13.0, torch unknown", text)
        self.assertEqual([(r["part"], r["ratio"], r["target"], r["met"]) for r in result["rows"]],
                         [("ring", 0.81, 0.82, False), ("ring", 0.91, 0.90, True),
                          ("ring", 0.97, 0.96, True)])
        self.assertIn("3 rows; 2 of 3 targets met", text)
        why = {m["part"]: m["why"] for m in result["not_run"]}
        self.assertEqual(set(why), set(gpu_table.PARTS) - {"ring"})
        self.assertIn("no torch", why["attention"])
        self.assertIn("bench_cuda_memory", why["memory"])
        self.assertEqual(why["ranks"], "needs 2 GPUs, 1 here")
        self.assertEqual(why["mma"], "left out by --only")
        for part, reason in why.items():
            self.assertIn(f"not run: {part}: all of it: {reason}", text)
        self.assertEqual(result["figures"]["ring"], RING)

    def test_what_was_printed_before_a_failure_counts(self):
        self.program("bench_cuda_memory", "a library's word\n" + lines(MEMORY) + '{"work": "cut sh',
                     "print('no memory left', file=sys.stderr); sys.exit(3)")
        code, text, result = self.table("--only", "memory")
        self.assertEqual((code, len(result["rows"])), (1, 3))
        self.assertIn("not run: memory: kernels beside copies: exit 3: no memory left", text)

    def test_a_benchmark_that_does_not_end_is_ended(self):
        self.program("bench_cuda_memory", lines(MEMORY), "time.sleep(60)")
        code, text, result = self.table("--only", "memory", "--limit", "1")
        self.assertEqual((code, len(result["rows"])), (1, 3))
        self.assertIn("not finished after 1 s", text)

    def test_output_that_is_not_understood_is_a_failure(self):
        for text, why in (('{"work": }\n', "a broken line"), ('{"other": 1}\n', "KeyError"), ("", "no figure")):
            self.program("bench_cuda_memory", text)
            code, printed, result = self.table("--only", "memory")
            self.assertEqual((code, result["rows"]), (1, []))
            self.assertIn(why, printed)

    def scripts(self, found):
        """Stands for the scripts that need torch: appends figures to the file of --json."""
        path = self.folder / "script.py"
        path.write_text(f"import sys\nwith open(sys.argv[sys.argv.index('--json') + 1], 'a') as file:\n"
                        f"    file.write({lines(found)!r})\n")
        return mock.patch.object(gpu_table, "script", lambda name: [sys.executable, str(path)])

    def test_figures_of_scripts_come_by_their_file(self):
        self.program("bench_cuda_attention", "")
        with self.scripts([{**ATTENTION, "pass": "forward", "peer_ms": 2.1}]):
            code, _, result = self.table("--only", "attention", "mma", torch="2.11")
        self.assertEqual((code, [(r["part"], r["target"]) for r in result["rows"]]),
                         (0, [("attention", 0.99), ("mma", 1.0)]))

    def test_ranks_are_compared_over_both_runs(self):
        self.program("bench_gpu_ranks", "")
        with self.scripts([mesh("torch", 65536, 500), mesh("usp", 65536, 560, ring=1, ulysses=2)]):
            code, _, result = self.table("--only", "ranks", gpus=2, torch="2.11")
        self.assertEqual((code, [r["target"] for r in result["rows"]]), (0, [1.10, 0.96]))
        self.assertEqual(sum(m["part"] == "ranks" for m in result["not_run"]), 2)

    def test_the_exchange_between_processes_is_named_where_nothing_starts_them(self):
        self.program("bench_cuda_exchange", lines(EXCHANGE))
        with mock.patch.object(gpu_table.importlib.util, "find_spec", lambda name: None):
            code, text, result = self.table("--only", "exchange", gpus=2)
        self.assertEqual((code, len(result["rows"])), (0, 2))
        self.assertIn("2 ranks, processes: torchrun starts them", text)


class TwoGpus(unittest.TestCase):
    """Rows that only machines with several GPUs make."""

    def test_attention_beside_copies_has_its_target(self):
        figure = {"local": 8192, "mib": 64, "pass": "forward", "alone_ms": 1.0, "beside_ms": 1.02, "rounds": 15,
                  "uncovered": 2}
        (row,) = gpu_rows.overlap_rows([figure])
        self.assertTrue(row.met)
        self.assertIn("uncovered in 2 of 15", row.shape)
        (row,) = gpu_rows.overlap_rows([figure | {"beside_ms": 1.04}])
        self.assertFalse(row.met)
        (row,) = gpu_rows.overlap_rows([figure | {"local": 4096}])
        self.assertIsNone(row.target)

    def test_exchange_meets_its_peer_of_the_same_size(self):
        peer = {"ranks": 2, "run_bytes": 256, "mib_per_peer": 64, "torch_gb_s": 140}
        (row,) = gpu_rows.torch_exchange_rows(EXCHANGE, [peer, peer | {"run_bytes": 512}])
        self.assertAlmostEqual(row.ratio, 300 / 140)
        self.assertTrue(row.met)


class Meshes(unittest.TestCase):
    """What mesh_table.py makes of made-up figures."""

    @staticmethod
    def timed(gpus, ms, rate, **fields):
        return {"gpus": gpus, "heads": 32, "kv_heads": 8, "documents": 0, "seq": 65536, "name": "a mesh",
                "both_ms": ms, "both_tflop_s": rate, **fields}

    def found(self):
        ours = {"by": "usp", "waited_ms": 0.5}
        return {"predictions": [{"tokens": 65536, "heads": 32, "kv_heads": 8, "ring": 4, "ulysses": 1, "chosen": True}],
                "measured": [self.timed(4, 10, 500, ring=1, ulysses=4, **ours),
                             self.timed(4, 11, 455, ring=4, ulysses=1, **ours),
                             self.timed(4, 12.5, 400, by="torch"), self.timed(1, 38, 520, ring=1, ulysses=1, **ours),
                             {"gpus": 4, "heads": 32, "kv_heads": 8, "documents": 0, "seq": 65536, "by": "torch",
                              "name": "refused", "fault": "no"}]}

    def test_ratios_beside_their_targets(self):
        (row,) = mesh_table.summary(self.found(), 4)
        self.assertAlmostEqual(row["linear"], 500 / 520)
        self.assertEqual(row["linear_target"], 0.93)
        self.assertAlmostEqual(row["beside_pytorch"], 1.25)
        self.assertAlmostEqual(row["waiting"], 0.05)
        self.assertEqual(row["chosen"], "4 x 1")
        self.assertAlmostEqual(row["choice"], 10 / 11)

    def test_what_was_not_measured_is_absent(self):
        found = self.found()
        found["measured"] = found["measured"][:2]
        (row,) = mesh_table.summary(found, 4)
        self.assertNotIn("linear", row)
        self.assertNotIn("beside_pytorch", row)

    def test_every_factorisation_is_a_mesh(self):
        self.assertEqual(mesh_table.meshes(6), [(6, 1), (3, 2), (2, 3), (1, 6)])


if __name__ == "__main__":
    unittest.main()
