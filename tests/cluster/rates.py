#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rates.py: what TCP moves between emulated hosts beside the rates that their NICs are set to: each way alone, both
ways at once, and within a host. A benchmark: prints, asserts nothing."""
import json
import subprocess
import sys

import cases
import network
import sandbox

PORT = 20000
SECONDS = 1.0

RECEIVE = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
link, _ = server.accept()
link.recv(1)
begin, count = time.monotonic(), 0
while data := link.recv(1 << 20):
    count += len(data)
print(json.dumps(count * 8e-6 / (time.monotonic() - begin)))
"""
SEND = """
import socket, sys, time
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
block, end = bytes(1 << 18), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    link.sendall(block)
"""


def python(host, code, *words, **options):
    return subprocess.Popen(host.enter([sys.executable, "-c", code, *words]), text=True, **options)


def measure(pairs):
    """Mbit/s of transfers that run at once, by pair of hosts."""
    receivers = []
    for port, (_, to) in enumerate(pairs, PORT):
        receivers.append(python(to, RECEIVE, to.address, port, stdout=subprocess.PIPE))
        receivers[-1].stdout.readline()
    senders = [python(source, SEND, to.address, port, SECONDS) for port, (source, to) in enumerate(pairs, PORT)]
    rates = [json.loads(receiver.communicate()[0]) for receiver in receivers]
    for sender in senders:
        sender.wait()
    return rates


def main():
    sandbox.enter()
    names = [*cases.NETWORKS, *(cases.DELAYED if network.has_latency() else [])]
    name = sys.argv[1] if len(sys.argv) > 1 else "slow"
    if name not in names:
        sys.exit(f"{name} is none of: {', '.join(names)}")
    first, second, *_ = network.Network({**cases.NETWORKS, **cases.DELAYED}[name].nics).hosts
    print(f"{name}: NICs of {first.nic.mbit:g} and {second.nic.mbit:g} Mbit/s")
    for text, pairs in (("one way", [(first, second)]), ("the other way", [(second, first)]),
                        ("both at once", [(first, second), (second, first)]),
                        ("two one way", [(first, second), (first, second)]), ("within a host", [(first, first)])):
        print(f"{text:14}", *(f"{rate:9.1f} Mbit/s" for rate in measure(pairs)))


if __name__ == "__main__":
    main()
