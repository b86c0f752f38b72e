# SPDX-License-Identifier: Apache-2.0
"""Namespaces of its own for a script. Everything that it makes in them, processes, links and mounts, ends with it,
however it ends: the kernel kills a PID namespace with its first process, and frees namespaces without processes."""
import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77  # the exit code that ctest takes for a skipped test
INSIDE = "USP_TEST_SANDBOX"
RUN = pathlib.Path("/run")  # a tmpfs of the sandbox
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2", "mount": "mount"}
NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--net", "--uts", "--ipc")
PROBE = f"""mount -t tmpfs tmpfs {RUN} && ip link add name near type veth peer name far &&
            ip link add name switch type bridge && tc qdisc add dev near root handle 1: htb"""


def unshare():
    """The command that makes the namespaces; of other users than root in a user namespace, where the host allows it."""
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *NAMESPACES]


def missing():
    """Why this machine has no sandbox; None where it has."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    probe = subprocess.run([*unshare(), "sh", "-c", PROBE], capture_output=True, text=True, check=False)
    if probe.returncode == 0:
        return None
    words = " ".join(probe.stderr.split()) or f"exit code {probe.returncode}"
    return f"no network namespaces with veth, bridge and htb here: {words}"


def enter():
    """Goes on in a sandbox: the script starts again there, as its first process. Ends it where there is none."""
    if os.environ.pop(INSIDE, None):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(RUN)], check=True)
        return
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    os.execvpe("unshare", [*unshare(), sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
