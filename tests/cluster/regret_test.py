#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""regret_test.py: what regret.py makes of measured plans."""
import unittest

import regret


def plan(ulysses, forward, backward=None, executed=8):
    def one(seconds):
        return {"predicted_s": seconds[0], "measured_s": seconds, "planned_bytes": 8, "executed_bytes": executed}

    return {"description": f"ulysses {ulysses}", "mesh": {"ring": 4 // ulysses, "ulysses": ulysses},
            "forward": one(forward), "backward": one(backward) if backward else None}


class Regret(unittest.TestCase):
    def test_later_sweeps_count_and_only_plans_that_have_them(self):
        row = regret.summary([plan(2, [9, 3, 2.2]), plan(1, [1, 4, 6]), plan(2, [0.1]), plan(4, [1, 2, 2])])
        self.assertEqual((row["plans"], row["finalists"], row["best"]), (4, 3, "ulysses 4"))
        self.assertAlmostEqual(row["regret"]["choice"], 0.1)
        self.assertAlmostEqual(row["timed_again"], (1.5 + 1.1) / 2 - 1)
        self.assertAlmostEqual(row["regret"]["always_ring"], 1)
        self.assertEqual(row["regret"]["most_ulysses"], 0)

    def test_the_best_plan_of_a_sweep_is_timed_by_another(self):
        """Each of both is the fastest of one sweep, and the slower one of the sweep that times it."""
        row = regret.summary([plan(1, [1, 10, 11]), plan(2, [1, 11, 10])])
        self.assertAlmostEqual(row["timed_again"], (10 / 11 + 11 / 11) / 2 - 1)

    def test_noise_is_how_far_the_same_plans_lie_apart(self):
        row = regret.summary([plan(2, [9, 3, 2]), plan(1, [1, 4, 5]), plan(4, [1, 2, 2])])
        self.assertAlmostEqual(row["noise"], 0.25)
        self.assertAlmostEqual(row["worst_noise"], 0.5)

    def test_both_passes_add_up(self):
        row = regret.summary([plan(1, [1, 2, 3], [1, 5, 4]), plan(2, [1, 1, 1], [1, 4, 4])])
        self.assertEqual((row["choice_s"], row["best_s"], row["predicted_s"]), (7, 5, 2))

    def test_bytes_of_every_plan_are_compared(self):
        equal = [plan(1, [1, 2, 3]), plan(2, [1, 2, 3])]
        self.assertTrue(regret.summary(equal)["bytes_equal"])
        self.assertFalse(regret.summary([*equal, plan(2, [1], executed=7)])["bytes_equal"])


if __name__ == "__main__":
    unittest.main()
