#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans whose meshes are edited to the longest rings and signed anew: every verb that reads them ends, with a result
or with a refusal that names count, limit and remedy. Ended by the processor's clock where it does not.

usage: long_rings_test.py USP [SANITIZERS]: a build with sanitizers gets shorter rings and no limit of memory."""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

MOST_CPU_S = 120  # far beyond what any of them takes
GIB = 1 << 20  # in the KiB of ru_maxrss
DIGEST = re.compile(r"its digest is ([0-9a-f]+)")
CALL = ["plan", "attention", "--heads=8", "--kv-heads=4", "--head-dim=64", "--seq=1M", "--ranks=4", "--ring=4",
        "--ulysses=1", "-q"]
TOO_LONG = r"\d{9,} sends and receives; the limit is \d+.*smaller ring"
FORGED = "is not what follows from the recipe"


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))


def run(usp, words):
    """(exit code, stdout, stderr, greatest resident memory in KiB)"""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([usp] + words, stdout=out, stderr=err, preexec_fn=limited)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read().decode(), err.read().decode(), usage.ru_maxrss


def signed(usp, path, planned, mesh, **changes):
    """Writes a plan with another mesh, of what is planned with this method."""
    subprocess.run([usp, *CALL, f"--method={planned}", "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
    plan = json.loads(path.read_text())
    plan["mesh"].update(mesh)
    plan["layers"][0].update(changes)
    path.write_text(json.dumps(plan))
    plan["digest"] = DIGEST.search(run(usp, ["validate", str(path)])[2]).group(1)
    path.write_text(json.dumps(plan))
    return str(path)


def ring(degree):
    return {"ring": degree, "ring_inner": degree}


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    sanitized = len(sys.argv) > 2
    played = 64 if sanitized else 1024
    faults = []
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "plan.json"
        meshes = [
            ("ring", ring(32767), {}),
            ("ring", ring(32767), {"dkv_return": "direct"}),
            ("ring", {"ring": 32764, "ring_outer": 8191, "ring_inner": 4}, {"method": "double_ring"}),
            ("ring_direct", ring(32767), {}),
            ("all_gather_kv", ring(4096), {}),
            ("all_gather_kv", ring(32767), {})]
        for method, mesh, changes in meshes[4:5] if sanitized else meshes:
            plan = signed(usp, path, method, mesh, **changes)
            for words, code, text in [
                    (["validate", plan], 3, FORGED),
                    (["explain", plan, "--rank", "5"], 0, r"(?s)schedule of rank 5, forward: .*tick 1\n"),
                    (["explain", plan, "--rank", "5", "--pass", "backward", "--json"], 0, r'"workspace_bytes": \d+'),
                    (["run", plan, "--dry-run"], 4, f"(?s){TOO_LONG}")]:
                got, out, err, kib = run(usp, words)
                if got != code or not re.search(text, out if code == 0 else err):
                    faults.append(f"{method} {mesh} {changes}: {words[0]}: exit {got}, {err[-300:]!r}")
                if kib > 2 * GIB and not sanitized:
                    faults.append(f"{method} {mesh} {changes}: {words[0]}: {kib / GIB:.2f} GiB")
        plan = signed(usp, path, "ring", ring(played))
        code, out, err, _ = run(usp, ["run", plan, "--dry-run"])
        if code != 0 or f"{played} ranks (dry_run)" not in out:
            faults.append(f"ring {played}: run --dry-run: exit {code}, {err[-300:]!r}")
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
