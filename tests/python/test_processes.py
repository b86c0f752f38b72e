# SPDX-License-Identifier: Apache-2.0
"""Meshes of processes: bootstrap, losses beside one process, and faults. A process starts in seconds, so few starts
check much."""

import time

import pytest
from launch import finish, run, start


def test_meshes_and_losses():
    run(4, "meshes,losses,no_labels")


def test_from_env():
    run(2, "from_env")


def test_forked_child_and_exit_without_close():
    run(2, "fault", "fork")


@pytest.mark.parametrize("kind,text", [("interrupt", "interrupted"), ("error", "rank 1"), ("kill", "rank 1")])
def test_faults(kind, text):
    """Everyone ends soon, and whoever waited names the rank."""
    processes = start(3, "fault", kind)
    for process in processes:
        while process.stdout.readline() not in ("ready\n", ""):
            pass
    began = time.monotonic()
    codes = []
    for rank in (0, 2):
        codes.append(processes[rank].wait(30))
    waited = time.monotonic() - began
    processes[1].kill()
    outputs = [output for _, output in finish(processes)]
    assert codes == [9, 9], outputs
    assert waited < 15, (waited, outputs)
    for rank in (0, 2):
        if kind == "interrupt" and rank == 0:
            assert "KeyboardInterrupt" in outputs[0] and "the mesh stays unusable" in outputs[0], outputs
        else:
            assert "CommunicationError" in outputs[rank] and text in outputs[rank], outputs
