# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on the hosts of a network, as many on each, in order of host: by mpirun, or with the
variables that torchrun sets."""
import os
import pathlib
import shutil
import subprocess
import sys

import network

AGENT = pathlib.Path(__file__).resolve().parent / "enter_host.sh"
TOKEN = "5d0c6a1f0b7e4c2e9f3a8d1b6c4e7f20"
PORT = 29500
PATIENCE_S = 120


def of_mpi(hosts, per_host, command, timeout=PATIENCE_S):
    """mpirun on the first host. Returns (exit code, stdout, stderr)."""
    places = ",".join(f"{host.name}:{per_host}" for host in hosts)
    settings = {"plm_rsh_agent": AGENT, "btl": "self,vader,tcp", "btl_tcp_if_include": network.NIC,
                "oob_tcp_if_include": network.NIC}
    words = [word for name, value in settings.items() for word in ("--mca", name, value)]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = ["mpirun", *words, "--host", places, "--map-by", "slot", "--bind-to", "none", "-n",
              len(hosts) * per_host, *command]
    done = subprocess.run(hosts[0].enter(mpirun), env={**os.environ, **root}, capture_output=True, text=True,
                          timeout=timeout, check=False)
    return done.returncode, done.stdout, done.stderr


def of_tcp(hosts, per_host, command, timeout=PATIENCE_S):
    """The same: the exit code of the first that failed, what all ranks wrote."""
    processes = []
    for rank in range(len(hosts) * per_host):
        places = {"RANK": rank, "WORLD_SIZE": len(hosts) * per_host, "LOCAL_RANK": rank % per_host,
                  "LOCAL_WORLD_SIZE": per_host, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT,
                  "USP_JOB_TOKEN": TOKEN}
        env = {**os.environ, **{name: str(value) for name, value in places.items()}}
        processes.append(subprocess.Popen(hosts[rank // per_host].enter(command), env=env, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=timeout) for process in processes]
    code = next((process.returncode for process in processes if process.returncode), 0)
    return code, *("".join(texts) for texts in zip(*outputs))


# By the name of the communicator that the ranks then have.
LAUNCHERS = {"mpi": of_mpi, "sockets": of_tcp}


WITHOUT_MPI = "--without-mpi"  # of the tests: usp was built without it


def available():
    """Those that usp was built with and that are installed."""
    mpi = WITHOUT_MPI not in sys.argv and shutil.which("mpirun") is not None
    return {name: launch for name, launch in LAUNCHERS.items() if name != "mpi" or mpi}
