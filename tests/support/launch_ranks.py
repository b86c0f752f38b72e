#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launch_ranks.py RANKS [OPTION...] -- COMMAND...: starts the ranks of a job on this host with torchrun's variables,
and as torchrun does keeps MASTER_PORT to itself. Ends with the exit code of the first rank that failed (a signal
counts as 128 and more); ranks that then go on for long are killed. USP_ variables are those of --set alone.

  --set RANK:NAME=VALUE   another value of a variable for one rank
  --absent RANK           a rank that nobody starts
  --stranger              somebody else connects to rank 0, several times: says nothing, says something else, leaves
  --squatter              somebody else listens where rank 0 should
  --deaf RANK             a rank that does not end by itself: it is killed once the others have ended
  --network               MASTER_ADDR is no loopback (an address that is no host's), and each rank alone on its host
  --patience SECONDS      how long ranks may go on once one has failed (60)
"""
import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time

DISTANCE = 1000  # from MASTER_PORT to the port of rank 0
PATIENCE_S = 60
NO_HOST = "198.51.100.7"  # RFC 5737: for documentation


def listener(port):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def is_free(port):
    with contextlib.suppress(OSError), listener(port):
        return True
    return False


def take_port():
    """A listener at a port whose partner is free: below the ports that systems hand out to anybody."""
    for attempt in range(1000):
        port = 10000 + (os.getpid() * 37 + attempt * 101) % 20000
        with contextlib.suppress(OSError):
            server = listener(port)
            if is_free(port + DISTANCE):
                return server
            server.close()
    raise RuntimeError("no free ports")


def own_address():
    """An address of this host that is no loopback; None where there is none. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((NO_HOST, 9))
        address = probe.getsockname()[0]
        return None if address.startswith("127.") else address
    return None


def variables(rank, ranks, port, options):
    values = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
              "MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"test-{port}",
              "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if options.network:
        values.update(MASTER_ADDR=NO_HOST, LOCAL_WORLD_SIZE=1, LOCAL_RANK=0)
    values.update(change.split(":", 1)[1].split("=", 1) for change in options.set if int(change.split(":")[0]) == rank)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("USP_")}
    return {**inherited, **{name: str(value) for name, value in values.items()}}


def intrude(port):
    """Connections that are no rank's."""
    kept = []
    for attempt in range(200):
        try:
            kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            break
        except OSError:
            time.sleep(0.02)
    kept[0].sendall(b"GET / HTTP/1.1\r\nHost: rank.example\r\nAccept: */*\r\n\r\n")
    kept[1].close()
    return kept


def code_of(failed):
    """Of processes that were found to have failed together; the others may have failed because of a killed one."""
    codes = [process.returncode for process in failed]
    return next((128 - code for code in codes if code < 0), codes[0])


def wait_all(processes, patience_s=PATIENCE_S, deaf=None):
    """The exit code of the first that fails; `deaf` is killed once the others have ended."""
    first, deadline = 0, None
    while any(process.poll() is None for process in processes):
        failed = [process for process in processes if process.poll()]
        if failed and deadline is None:
            first, deadline = code_of(failed), time.monotonic() + patience_s
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.kill()
        if deaf and all(process is deaf or process.poll() is not None for process in processes):
            deaf.kill()
        time.sleep(0.005)
    failed = [process for process in processes if process.returncode]
    return first or (code_of(failed) if failed else 0)


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("ranks", type=int)
    made.add_argument("--set", action="append", default=[])
    made.add_argument("--absent", type=int, action="append", default=[])
    made.add_argument("--stranger", action="store_true")
    made.add_argument("--squatter", action="store_true")
    made.add_argument("--deaf", type=int)
    made.add_argument("--network", action="store_true")
    made.add_argument("--patience", type=float, default=PATIENCE_S)
    return made


def launch(ranks, command, options=None, **pipes):
    """Starts the ranks. Returns what wait_all does, and the processes."""
    options = options or parser().parse_args([str(ranks)])
    with take_port() as store:
        port = store.getsockname()[1]
        squatter = listener(port + DISTANCE) if options.squatter else None
        order = [rank for rank in range(ranks) if rank not in options.absent]
        processes, strangers = [], []
        for rank in order:
            if options.stranger and rank == 1:
                strangers = intrude(port + DISTANCE)
            processes.append(subprocess.Popen(command, env=variables(rank, ranks, port, options), **pipes))
        code = wait_all(processes, options.patience, None if options.deaf is None else processes[options.deaf])
        for each in strangers + ([squatter] if squatter else []):
            each.close()
        return code, processes


def main():
    at = sys.argv.index("--")
    options = parser().parse_args(sys.argv[1:at])
    return launch(options.ranks, sys.argv[at + 1:], options)[0]


if __name__ == "__main__":
    sys.exit(main())
