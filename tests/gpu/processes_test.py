#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""processes_test.py USP COPY_ENGINE_RANKS LAUNCH_RANKS [MPIRUN...]: ranks that are processes and share the GPUs there are, each mesh
verified against fp64: copy engines by CUDA IPC, NCCL, and both in one mesh, started by mpirun and by torchrun's
variables. NCCL takes its network path: every rank says it is another host, with peer access and shared memory off.
Then copy_engine_ranks (copy_engine_ranks.cpp): the contract of data planes, CUDA graphs, a killed rank, also with one
hardware queue. Exit code 77 where there is no GPU, no mpirun or no NCCL to load.
"""
import os
import socket
import subprocess
import sys
import tempfile

SKIPPED = 77
NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
           "NCCL_NVLS_ENABLE": "0"}
OWN_HOST = "NCCL_HOSTID=host${OMPI_COMM_WORLD_RANK:-$RANK} exec \"$@\""
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
NCCL = {"ulysses": ["--ulysses-transport", "nccl"], "ring": ["--ring-transport", "nccl"]}

# ring, ulysses, axes that NCCL carries, how ranks start
CASES = [(2, 1, [], "mpirun"), (1, 2, [], "mpirun"), (2, 2, [], "mpirun"), (2, 2, [], "torchrun"),
         (2, 1, ["ring"], "mpirun"), (1, 2, ["ulysses"], "mpirun"), (2, 2, ["ring"], "mpirun"),
         (2, 2, ["ulysses"], "mpirun"), (2, 2, ["ring", "ulysses"], "mpirun"), (2, 2, ["ring"], "torchrun")]


def start(case, launchers):
    ring, ulysses, _, by = case
    if by == "torchrun":
        return [sys.executable, launchers["torchrun"], str(ring * ulysses), "--"]
    return [*launchers["mpirun"], str(ring * ulysses)]


def run(usp, case, launchers, folder):
    ring, ulysses, by_nccl, by = case
    plan = os.path.join(folder, f"{ring}x{ulysses}.json")
    subprocess.run([usp, "plan", "attention", "--heads", "8", "--kv-heads", "4", "--head-dim", "64", "--seq", "600",
                    "--ranks", str(ring * ulysses), "--ring", str(ring), "--ulysses", str(ulysses), "--backend",
                    "mma", "-q", "-o", plan], check=True, stdout=subprocess.DEVNULL)
    flags = [flag for axis in by_nccl for flag in NCCL[axis]]
    command = [*start(case, launchers), "bash", "-c", OWN_HOST, "rank", usp, "run", plan, "--verify", "--watchdog", "30",
               *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **NETWORK})
    good = done.returncode == 0 and "as planned" in done.stdout
    print(f"{'ok' if good else 'FAILED'}  {ring} x {ulysses}, NCCL on {by_nccl or 'no axis'}, by {by}", flush=True)
    if not good:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return good


# ranks, arguments of copy_engine_ranks, environment
SCENARIOS = [(ranks, ["contract"], connections) for ranks in (2, 3, 4) for connections in ({}, ONE_QUEUE)]
SCENARIOS += [(2, ["graph", *mesh], {}) for mesh in (("2", "1"), ("1", "2"))] + [(4, ["graph", "2", "2"], ONE_QUEUE)]


def play(program, scenario, launchers):
    """A scenario that ends well."""
    ranks, arguments, environment = scenario
    command = [sys.executable, launchers["torchrun"], str(ranks), "--", program, str(ranks), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    good = done.returncode == 0
    print(f"{'ok' if good else 'FAILED'}  {ranks} ranks, {' '.join(arguments)} {environment or ''}", flush=True)
    print(done.stdout, end="", flush=True)
    if not good:
        print(done.stderr[-2000:], flush=True)
    return good


def lose(program, how, environment, launchers):
    """A rank is killed: the other ends with exit code 5 and a message, by itself. Without the launcher's help, which
    would end it too."""
    ranks = [subprocess.Popen([program, "2", "killed", how], stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **environment, **variables})
             for variables in launchers["variables"](2)]
    texts = [rank.communicate(timeout=90)[1] for rank in ranks]
    good = ranks[1].returncode == -9 and ranks[0].returncode == 5 and "rank 1" in texts[0]
    print(f"{'ok' if good else 'FAILED'}  a killed rank, {how} {environment or ''}: {texts[0].strip()[:300]}", flush=True)
    if not good:
        print([rank.returncode for rank in ranks], texts, flush=True)
    return good


def variables(ranks):
    """What torchrun sets for each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"killed{port}"}
            for rank in range(ranks)]


def main():
    usp, program, launch_ranks, *mpirun = sys.argv[1:]
    launchers = {"torchrun": launch_ranks, "mpirun": mpirun, "variables": variables}
    with tempfile.TemporaryDirectory() as folder:
        probe = os.path.join(folder, "probe.json")
        subprocess.run([usp, "plan", "attention", "--heads", "2", "--kv-heads", "2", "--head-dim", "64", "--seq", "64", "--ranks", "1",
                        "--backend", "mma", "-q", "-o", probe], check=True, stdout=subprocess.DEVNULL)
        if subprocess.run([usp, "run", probe], capture_output=True).returncode == 5:
            print("no GPU here")
            return SKIPPED
        if not mpirun:
            print("this build has no MPI")
            return SKIPPED
        results = [run(usp, case, launchers, folder) for case in CASES]
    results += [play(program, scenario, launchers) for scenario in SCENARIOS]
    results += [lose(program, how, environment, launchers)
                for how in ("eager", "replay") for environment in ({}, ONE_QUEUE)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
