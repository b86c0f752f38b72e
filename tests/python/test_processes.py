# SPDX-License-Identifier: Apache-2.0
"""Meshes of processes: bootstrap, losses beside one process, and faults. A process starts in seconds, so few starts
check much."""

import signal
import time

import pytest
from launch import finish, run, start


def test_meshes_and_losses():
    run(4, "meshes,losses,no_labels,workers")


def test_from_env():
    run(2, "from_env")


def test_interrupted_meeting():
    """Ctrl-C ends the wait for a rank that never starts, long before the watchdog's minute."""
    process, absent = start(2, "from_env")
    absent.kill()
    absent.wait()
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    [(code, output), _] = finish([process, absent], 30)
    assert code != 0 and "KeyboardInterrupt" in output, output


def test_forked_child_and_exit_without_close():
    run(2, "fault", "fork")


@pytest.mark.parametrize("kind,ranks,text", [("interrupt", 3, "interrupted"), ("error", 2, "rank 1"), ("kill", 2, "rank 1")])
def test_faults(kind, ranks, text):
    """Everyone ends soon, and whoever waited names the rank."""
    processes = start(ranks, "fault", kind)
    waiting = [rank for rank in range(ranks) if rank != 1]
    for process in processes:
        while process.stdout.readline() not in ("ready\n", ""):
            pass
    codes = []
    for rank in waiting:
        codes.append(processes[rank].wait(45))  # less than the watchdog's minute
    processes[1].kill()
    outputs = [output for _, output in finish(processes)]
    assert codes == [9] * len(waiting), outputs
    for rank in waiting:
        if kind == "interrupt" and rank == 0:
            assert "KeyboardInterrupt" in outputs[0] and "the mesh stays unusable" in outputs[0], outputs
        else:
            assert "CommunicationError" in outputs[rank] and text in outputs[rank], outputs
