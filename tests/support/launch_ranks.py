#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launch_ranks.py RANKS [OPTION...] -- COMMAND...: starts the ranks of a job on this host with torchrun's variables,
and as torchrun does keeps MASTER_PORT to itself. Ends with the exit code of the first rank that failed (a signal
counts as 128 and more); ranks that then go on for long are killed.

  --set RANK:NAME=VALUE   another value of a variable for one rank
  --absent RANK           a rank that nobody starts
  --stranger              somebody else connects to rank 0, several times: says nothing, says something else, leaves
  --squatter              somebody else listens where rank 0 should
"""
import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time

DISTANCE = 1000  # from MASTER_PORT to the port of rank 0
PATIENCE_S = 8


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


def variables(rank, ranks, port, changes):
    values = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
              "MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"test-{port}",
              "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    values.update(change.split(":", 1)[1].split("=", 1) for change in changes if int(change.split(":")[0]) == rank)
    return {**os.environ, **{name: str(value) for name, value in values.items()}}


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


def wait_all(processes):
    """The exit code of the first that fails."""
    first, deadline = 0, None
    while any(process.poll() is None for process in processes):
        for process in processes:
            if process.poll() and not first:
                first, deadline = process.returncode, time.monotonic() + PATIENCE_S
        if deadline and time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.005)
    first = first or next((process.returncode for process in processes if process.returncode), 0)
    return first if first >= 0 else 128 - first


def launch(ranks, command, options=None, **pipes):
    """Starts the ranks. Returns what wait_all does, and the processes."""
    options = options or argparse.Namespace(set=[], absent=[], stranger=False, squatter=False)
    with take_port() as store:
        port = store.getsockname()[1]
        squatter = listener(port + DISTANCE) if options.squatter else None
        order = [rank for rank in range(ranks) if rank not in options.absent]
        processes, strangers = [], []
        for rank in order:
            if options.stranger and rank == 1:
                strangers = intrude(port + DISTANCE)
            processes.append(subprocess.Popen(command, env=variables(rank, ranks, port, options.set), **pipes))
        code = wait_all(processes)
        for each in strangers + ([squatter] if squatter else []):
            each.close()
        return code, processes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--absent", type=int, action="append", default=[])
    parser.add_argument("--stranger", action="store_true")
    parser.add_argument("--squatter", action="store_true")
    at = sys.argv.index("--")
    options = parser.parse_args(sys.argv[1:at])
    return launch(options.ranks, sys.argv[at + 1:], options)[0]


if __name__ == "__main__":
    sys.exit(main())
