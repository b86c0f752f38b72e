#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cleanup_test.py: a run of emulated hosts that is killed leaves nothing, whatever ran on its hosts."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import network
import sandbox

HOLD = "--hold"
PATIENCE_S = 30


def hold():
    """Hosts with a process on each; says their namespaces and waits to be killed."""
    sandbox.enter()
    hosts = network.Network([network.Nic(100), network.Nic(100)]).hosts
    sleepers = [subprocess.Popen(host.enter(["sleep", "1000"])) for host in hosts]
    for host in hosts:
        print(network.run(host.enter(["readlink", "/proc/self/ns/net"])).strip(), flush=True)
    for sleeper in sleepers:
        sleeper.wait()


def processes_in(namespaces):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str((entry / "ns/net").readlink()) in namespaces:
                found.append(entry.name)
        except OSError:
            pass  # ended meanwhile, or another user's
    return found


def links():
    return sorted(os.listdir("/sys/class/net"))


class Cleanup(unittest.TestCase):
    def test_a_killed_run_leaves_nothing(self):
        before = links()
        with subprocess.Popen([sys.executable, __file__, HOLD], stdout=subprocess.PIPE, text=True) as run:
            namespaces = {run.stdout.readline().strip() for _ in range(2)}
            self.assertEqual(len(processes_in(namespaces)), 2)
            run.send_signal(signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while processes_in(namespaces) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(processes_in(namespaces), [])
        self.assertEqual(links(), before)
        self.assertFalse(network.HOSTS.exists())
        self.assertNotIn(str(network.HOSTS), pathlib.Path("/proc/mounts").read_text(encoding="utf-8"))


if __name__ == "__main__":
    if HOLD in sys.argv:
        hold()
    elif sandbox.missing() is not None:
        print(f"skipped: {sandbox.missing()}")
        sys.exit(sandbox.SKIPPED)
    else:
        unittest.main(argv=sys.argv[:1])
