# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a byte-level model on meshes beside one process. loss_curves.py runs all 200 steps and draws them."""

from loss_curves import curves, greatest_difference


def test_same_losses_at_every_step():
    found = curves(steps=40)
    assert greatest_difference(found) < 1e-5
    assert all(len(losses) == 40 and losses[-1] < 0.97 * losses[0] for losses in found.values()), found
