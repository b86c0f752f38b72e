# SPDX-License-Identifier: Apache-2.0
"""The examples of the package run and print what they promise."""

import os
import runpy
import socket
import subprocess
import sys

import pytest
from paths import REPOSITORY

EXAMPLES = REPOSITORY / "runtime/python/examples"


@pytest.mark.parametrize("name,text", [("planning", "sp.loader(loader)"), ("diffusion_attention", "greatest difference")])
def test_in_one_process(name, text, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("name,arguments,text", [
    ("fsdp2_loop", ["--ring", "2", "--ulysses", "1", "--steps", "2", "--tokens", "64"], "loss "),
    ("trainer_packed", [], "losses ["),
])
def test_in_two_processes(name, arguments, text):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                            str(port), str(EXAMPLES / f"{name}.py"), *arguments], capture_output=True, text=True,
                           env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert found.returncode == 0, found.stdout + found.stderr
    assert text in found.stdout
