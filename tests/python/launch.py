# SPDX-License-Identifier: Apache-2.0
"""Processes of one host, started as torchrun starts them."""

import os
import pathlib
import socket
import subprocess
import sys
import time

WORKER = pathlib.Path(__file__).parent / "worker.py"


def start(ranks: int, check: str, *arguments: str, env=None) -> list[subprocess.Popen]:
    """Runs `check` of worker.py on so many processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
              "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": f"usp{port}", "OMP_NUM_THREADS": "1", **(env or {})}
    return [subprocess.Popen([sys.executable, str(WORKER), check, *arguments],
                             env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True) for rank in range(ranks)]


def finish(processes, timeout: float = 120) -> list[tuple[int, str]]:
    """(exit code, output) of each; ends what is left after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    try:
        return [(process.wait(max(deadline - time.monotonic(), 0.1)), process.stdout.read()) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        raise AssertionError("\n".join(f"rank {rank}: {process.stdout.read()}" for rank, process in
                                       enumerate(processes))) from None


def run(ranks: int, check: str, *arguments: str, timeout: float = 240) -> list[str]:
    """Output by rank; every process must end well."""
    results = finish(start(ranks, check, *arguments), timeout)
    for rank, (code, output) in enumerate(results):
        assert code == 0, f"rank {rank} exits {code}:\n" + "\n".join(text for _, text in results)
    return [output for _, output in results]
