#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""processes_test.py USP LAUNCH_RANKS [MPIRUN...]: ranks that are processes and share the GPUs there are, each mesh
verified against fp64: copy engines by CUDA IPC, NCCL, and both in one mesh, started by mpirun and by torchrun's
variables. NCCL takes its network path: every rank says it is another host, with peer access and shared memory off.
Exit code 77 where there is no GPU, no mpirun or no NCCL to load.
"""
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
           "NCCL_NVLS_ENABLE": "0"}
OWN_HOST = "NCCL_HOSTID=host${OMPI_COMM_WORLD_RANK:-$RANK} exec \"$@\""
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


def main():
    usp, launch_ranks, *mpirun = sys.argv[1:]
    launchers = {"torchrun": launch_ranks, "mpirun": mpirun}
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
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
