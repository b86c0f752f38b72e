# SPDX-License-Identifier: Apache-2.0
"""What `usp calibrate` finds on the hosts of a network: a calibration and a cluster that names it, as the planner and
paced_calls read them."""
import json

import launchers

PATIENCE_S = 900


def calibrate(hosts, per_host, launcher, command, folder):
    """Runs `command`, a `usp calibrate` without its files, as the ranks of all hosts: (cluster, calibration)."""
    calibration, cluster = folder / "calibration.json", folder / "cluster.json"
    code, _, errors = launchers.LAUNCHERS[launcher](
        hosts, per_host, [*command, "-o", calibration, "--write-cluster", cluster], PATIENCE_S)
    if code != 0:
        raise RuntimeError(errors)
    return cluster, calibration


def rates(calibration):
    """Bytes per second of the fastest hop inside a host, and of a host's line."""
    content = json.loads(calibration.read_text())
    inside = max(point["bytes_per_s"] for curve in content["point_to_point"] for point in curve["points"])
    return inside, content["network"]["bytes_per_s"]


def for_paced_kernels(calibration, alone):
    """Each rank of emulated hosts has a core of its own: its kernels are those of one rank alone on this machine, as
    another calibration has them, and a transfer beside them, which sleep, does not slow them down."""
    content = json.loads(calibration.read_text())
    content["attention"] = json.loads(alone.read_text())["attention"]
    for row in content["interference"]:
        row.update(ratio=0, min_ratio=0, tick_s=None, source="kernels that sleep")
    content["network"]["interference"] = {"ratio": 0, "min_ratio": 0, "max_ratio": 1}
    calibration.write_text(json.dumps(content))
