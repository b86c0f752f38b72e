#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""processes_test.py USP GPU_RANKS LAUNCH_RANKS [MPIRUN...]: ranks that are processes on all GPUs there are, which more ranks
than GPUs share, each mesh verified against fp64: copy engines by CUDA IPC, NCCL, and both in one mesh, started by
mpirun (where it is given) and by torchrun's variables. NCCL takes its network path: every rank says it is another host,
with peer access and shared memory off; where each rank has a GPU of its own, also its own way between them. Then
gpu_ranks (gpu_ranks.cpp): the contract of data planes, CUDA graphs, a rank that is killed and one that never calls
again, also with one hardware queue. Exit code 77 where there is no GPU; a way that does not work is a failure.
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


def cases_of(gpus):
    """Those of all machines, and every rank on a GPU of its own where there are more than the others take."""
    own = [] if gpus <= 4 else [(gpus, 1, [], "torchrun"), (1, gpus, [], "torchrun"), (gpus // 2, 2, [], "torchrun")]
    return CASES + own


def start(case, launchers):
    ring, ulysses, _, by = case
    if by == "torchrun" or not launchers["mpirun"]:
        return [sys.executable, launchers["torchrun"], str(ring * ulysses), "--"]
    return [*launchers["mpirun"], str(ring * ulysses)]


def run(usp, case, launchers, folder, environment=NETWORK, own_host=OWN_HOST):
    ring, ulysses, by_nccl, by = case
    plan = os.path.join(folder, f"{ring}x{ulysses}.json")
    subprocess.run([usp, "plan", "attention", "--heads", "8", "--kv-heads", "4", "--head-dim", "64", "--seq", "600",
                    "--ranks", str(ring * ulysses), "--ring", str(ring), "--ulysses", str(ulysses), "--backend",
                    "mma", "-q", "-o", plan], check=True, stdout=subprocess.DEVNULL)
    flags = [flag for axis in by_nccl for flag in NCCL[axis]]
    command = [*start(case, launchers), "bash", "-c", own_host, "rank", usp, "run", plan, "--verify", "--watchdog", "30",
               *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    good = done.returncode == 0 and "as planned" in done.stdout
    print(f"{'ok' if good else 'FAILED'}  {ring} x {ulysses}, NCCL on {by_nccl or 'no axis'}, by {by} {'' if environment is NETWORK else environment}",
          flush=True)
    if not good:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return good


# ranks, arguments of copy_engine_ranks, environment
SCENARIOS = [(ranks, ["contract"], connections) for ranks in (2, 3, 4) for connections in ({}, ONE_QUEUE)]
SCENARIOS += [(2, ["graph", *mesh], {}) for mesh in (("2", "1"), ("1", "2"), ("2", "1", "gated"))]
SCENARIOS += [(4, ["graph", "2", "2"], ONE_QUEUE)]


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


# What becomes of a rank, transport, how steps run, environment. A graph over NCCL is not watched.
LOSSES = [(fate, "copy_engine", how, environment) for fate in ("killed", "late") for how in ("eager", "replay")
          for environment in ({}, ONE_QUEUE)]
LOSSES += [(fate, "copy_engine", "gated", environment) for fate in ("killed", "late")
           for environment in ({}, ONE_QUEUE)]
LOSSES += [(fate, "nccl", "eager", {}) for fate in ("killed", "late")]


def lose(program, loss, launchers):
    """A rank is killed, or never calls again: the other ends with exit code 5 and a message, by itself. Without the
    launcher's help, which would end it too."""
    fate, transport, how, environment = loss
    ranks = [subprocess.Popen([program, "2", fate, transport, how], stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **environment, **variables})
             for variables in launchers["variables"](2)]
    try:
        text = ranks[0].communicate(timeout=60)[1]
        good = ranks[0].returncode == 5 and "rank 1" in text
    except subprocess.TimeoutExpired:
        good, text = False, "it did not end"
    for rank in ranks:
        rank.kill()
        rank.communicate()
    print(f"{'ok' if good else 'FAILED'}  {fate} rank, {transport}, {how} {environment or ''}: "
          f"exit code {ranks[0].returncode}: {text.strip()[:300]}", flush=True)
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
    asked = subprocess.run([program, "1", "devices"], capture_output=True, text=True)
    if asked.returncode == SKIPPED:
        print("no GPU here")
        return SKIPPED
    gpus = int(asked.stdout)
    with tempfile.TemporaryDirectory() as folder:
        results = [run(usp, case, launchers, folder) for case in cases_of(gpus)]
        if gpus > 1:
            reverse = {"CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in reversed(range(gpus)))}
            own_way = 'exec "$@"'
            for axes, environment in [(["ring"], {}), (["ulysses"], {}), ([], reverse)]:
                ulysses = gpus if axes == ["ulysses"] else 1
                case = (gpus // ulysses, ulysses, axes, "torchrun")
                results.append(run(usp, case, launchers, folder, {"NCCL_NVLS_ENABLE": "0", **environment}, own_way))
    results += [play(program, scenario, launchers) for scenario in SCENARIOS]
    results += [lose(program, loss, launchers) for loss in LOSSES if loss[1] == "copy_engine" or gpus > 1]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
