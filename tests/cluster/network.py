# SPDX-License-Identifier: Apache-2.0
"""Hosts of a sandbox: each has its host name, its loopback and a NIC of a given rate, and a bridge joins the NICs."""
import dataclasses
import pathlib
import subprocess

import sandbox

HOSTS = sandbox.RUN / "usp-hosts"  # per host a folder with its namespaces, as enter_host.sh reads them
NIC = "eth0"
SWITCH = "switch"


@dataclasses.dataclass(frozen=True)
class Nic:
    """Rates of both directions, from host and to host; latency is added to both."""
    mbit: float
    down_mbit: float | None = None  # None: as mbit
    latency_ms: float = 0


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}: {done.stderr.strip()}")
    return done.stdout


def has_latency():
    """Whether the kernel delays packets (netem)."""
    run(["ip", "link", "add", "probe", "type", "veth", "peer", "name", "probed"])
    try:
        run(["tc", "qdisc", "add", "dev", "probe", "root", "netem", "delay", "1ms"])
        return True
    except RuntimeError:
        return False
    finally:
        run(["ip", "link", "del", "probe"])


def shape(prefix, device, mbit, latency_ms):
    """Limits what leaves a device. htb sends a packet of any size whole and waits for its tokens afterwards."""
    tc = [*prefix, "tc"]
    run([*tc, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1"])
    run([*tc, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", f"{mbit}mbit",
         "burst", "16k", "cburst", "16k", "quantum", "60000"])
    if latency_ms:
        run([*tc, "qdisc", "add", "dev", device, "parent", "1:1", "netem", "delay", f"{latency_ms}ms",
             "limit", "100000"])


class Host:
    def __init__(self, number, nic):
        self.number, self.nic = number, nic
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"
        self.folder = HOSTS / self.name

    def enter(self, command):
        """The command, run on this host."""
        return ["nsenter", f"--net={self.folder}/net", f"--uts={self.folder}/uts", "--", *map(str, command)]

    def start(self):
        self.folder.mkdir(parents=True)
        for kind in ("net", "uts"):
            (self.folder / kind).touch()
        run(["unshare", f"--net={self.folder}/net", f"--uts={self.folder}/uts", "hostname", self.name])
        port = f"port{self.number}"
        run(["ip", "link", "add", port, "type", "veth", "peer", "name", f"nic{self.number}"])
        # A file of a namespace has no name that ip knows; a process in it has a number.
        with subprocess.Popen(self.enter(["cat"]), stdin=subprocess.PIPE) as inside:
            self.await_entry(inside.pid)
            run(["ip", "link", "set", f"nic{self.number}", "netns", inside.pid])
            inside.stdin.close()
        for words in (["lo", "up"], [f"nic{self.number}", "name", NIC], [NIC, "up"]):
            run(self.enter(["ip", "link", "set", *words]))
        run(self.enter(["ip", "address", "add", f"{self.address}/24", "dev", NIC]))
        run(["ip", "link", "set", port, "master", SWITCH])
        run(["ip", "link", "set", port, "up"])
        shape(self.enter([]), NIC, self.nic.mbit, self.nic.latency_ms)
        shape([], port, self.nic.down_mbit or self.nic.mbit, self.nic.latency_ms)

    def stop(self):
        run(["ip", "link", "del", f"port{self.number}"])
        for kind in ("net", "uts"):
            run(["umount", self.folder / kind])
            (self.folder / kind).unlink()
        self.folder.rmdir()

    def await_entry(self, pid):
        own = pathlib.Path("/proc/self/ns/net").readlink()
        while pathlib.Path(f"/proc/{pid}/ns/net").readlink() == own:
            pass

    def sent_bytes(self):
        """What has left the NIC so far, headers included."""
        for line in run(self.enter(["cat", "/proc/net/dev"])).splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == NIC:
                return int(counts.split()[8])
        raise RuntimeError(f"{self.name} has no {NIC}")


class Network:
    """Hosts of these NICs, one network at a time in a sandbox; the end of the sandbox removes it."""

    def __init__(self, nics):
        self.hosts = [Host(number, nic) for number, nic in enumerate(nics)]
        run(["ip", "link", "add", SWITCH, "type", "bridge"])
        run(["ip", "link", "set", SWITCH, "up"])
        names = sandbox.RUN / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in self.hosts))
        run(["mount", "--bind", names, "/etc/hosts"])
        for host in self.hosts:
            host.start()

    def take_down(self):
        for host in self.hosts:
            host.stop()
        run(["ip", "link", "del", SWITCH])
        run(["umount", "/etc/hosts"])
