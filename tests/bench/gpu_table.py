#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One table of everything that is measured on GPUs, each figure beside its peer's of the same run.

    cmake --build build --target benchmarks mma_attention_check
    tests/bench/gpu_table.py [--only attention ring ...] [--quick] [--json FILE] [--bin build/bin]

Runs the benchmarks of this folder one after another on the GPUs there are, and prints machine and versions, a row for
each figure (ours, the peer's, the ratio, above 1: ours is faster, the target and whether it is met), and what was not
run, and why. Needs Python 3.10 and, for the parts beside PyTorch, torch; CUDA's libraries are looked for beside torch.
Exits with 1 when something that could be run failed; a target that is missed does not count as a failure.

Parts: attention (cudnn backend beside SDPA's cuDNN), mma (beside SDPA's FLASH), packed (documents, beside
varlen_attn), ring (hops and waves of one rank, hopper's also in one launch, beside one full call, and that launch
behind gates), memory (merge, delta and others beside copies), exchange (Ulysses exchange beside peer copies, ranks as
threads and as processes), overlap (attention while copies fly between two GPUs), ranks (two GPUs beside PyTorch's
context parallel and beside one GPU).
"""
import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time

import gpu_rows
from gpu_rows import NotRun

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ABOUT_TORCH = """
import json, torch
there = torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                  "nccl": ".".join(map(str, torch.cuda.nccl.version())) if there else None,
                  "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}))
"""


class Fault(Exception):
    """A command that did not do its work: why, in one line, and what it had printed."""

    def __init__(self, why, output="", errors=""):
        super().__init__(why)
        self.output, self.errors = output, errors


def last_words(text):
    """The last line with a word in it."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalpha, line))]
    return lines[-1][:300] if lines else "it printed nothing"


def call(command, limit_s, environment=None):
    """What a command prints; Fault when it fails, does not start or does not end."""
    try:
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                               start_new_session=True)
    except OSError as error:
        raise Fault(f"{command[0]} does not start: {error}") from error
    try:
        output, errors = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Fault(f"not finished after {limit_s:g} s (--limit)", *end(job)) from error
    if job.returncode != 0:
        raise Fault(f"exit {job.returncode}: {last_words(errors or output)}", output, errors)
    return output


def end(job):
    """Ends a command and what it started, which torchrun does itself when asked; what it had printed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(job.pid, number)
            return job.communicate(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return "", ""


def probe(command):
    """The lines that a command prints, or none where there is no such command."""
    try:
        return call(command, 60).splitlines()
    except Fault:
        return []


def library_path():
    """Folders of the shared libraries that torch brings, found without loading it."""
    found = []
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        packages = pathlib.Path(spec.origin).parent.parent / "nvidia"
        names = ("libcudnn.so.9", "libcudart.so.13", "libnccl.so.2")
        found = sorted({str(p.parent) for name in names for p in packages.rglob(name)})
    return ":".join(found + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p])


def machine(revision):
    """What was measured on, and with which versions; None stands for unknown."""
    about = {"torch": None, "cuda": None, "cudnn": None, "nccl": None, "gpus": []}
    if importlib.util.find_spec("torch") is not None:
        lines = probe([sys.executable, "-c", ABOUT_TORCH])
        about |= json.loads(lines[-1]) if lines else {}
    cards = [line.rsplit(",", 1) for line in
             probe(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])]
    if not about["gpus"] and about["torch"] is None:
        about["gpus"] = [name.strip() for name, _ in cards]
    if revision is None:
        head = probe(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
        changed = probe(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
        revision = head[0] + (" with changes" if changed else "") if head else None
    return {"machine": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version(),
            "driver": cards[0][1].strip() if cards else None, **about, "revision": revision,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def heading(about):
    names = {}
    for name in about["gpus"]:
        names[name] = names.get(name, 0) + 1
    cards = ", ".join(f"{count} x {name}" for name, count in names.items()) or "no GPU"
    versions = ", ".join(f"{key} {about[key] or 'unknown'}" for key in
                         ("driver", "cuda", "torch", "cudnn", "nccl", "python", "revision"))
    return f"{cards}; {versions}\n{about['machine']}, {about['cpus']} CPUs, {about['started']}"


class Bench:
    """Runs benchmarks and keeps what they found: rows, what is missing, and the figures as they came."""

    def __init__(self, options, gpus):
        self.bin, self.quick, self.limit_s, self.gpus = options.bin, options.quick, options.limit, gpus
        self.rows, self.missing, self.figures, self.seconds = [], [], {}, {}
        self.environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}

    def take(self, items):
        for item in items:
            (self.missing if isinstance(item, NotRun) else self.rows).append(item)

    def fail(self, part, what, why):
        self.missing.append(NotRun(part, what, why, failed=True))

    def program(self, name):
        return str(self.bin / name)

    def run(self, part, what, command):
        """What a command prints, also before it failed; that it failed is noted."""
        print(f"{part}: {what} ...", file=sys.stderr, flush=True)
        try:
            return call(command, self.limit_s, self.environment)
        except Fault as fault:
            print(fault.errors[-3000:], file=sys.stderr)
            self.fail(part, what, str(fault))
            return fault.output

    def objects(self, part, what, command):
        """The figures that a command prints as JSON lines."""
        return self.read(part, what, lambda: self.run(part, what, command))

    def script_objects(self, part, what, command):
        """The figures that a script appends to the file of its --json."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "figures.json"

            def text():
                self.run(part, what, [*command, "--json", str(path)])
                return path.read_text(encoding="utf-8") if path.exists() else ""
            return self.read(part, what, text)

    def read(self, part, what, text):
        known = len(self.missing)
        try:
            # A last line that a failure cut short is none.
            found = gpu_rows.json_lines(text().rpartition("\n")[0])
        except ValueError as error:
            self.fail(part, what, f"its output is not understood: {error}")
            return []
        if not found and len(self.missing) == known:
            self.fail(part, what, "it ended well but gave no figure")
        self.figures.setdefault(part, []).extend(found)
        return found


def script(name):
    return [sys.executable, str(ROOT / "tests" / name)]


def attention(bench, part="attention", backend="cudnn", peer="cudnn"):
    command = [*script("bench/bench_cuda_attention_torch.py"), bench.program("bench_cuda_attention"), "--backend",
               backend, "--peer", peer]
    if bench.quick:
        command += ["--turns", "3", "--seq", "16384", "--orders", "bshd"]
    bench.take(gpu_rows.attention_rows(part, bench.script_objects(part, f"{backend} beside SDPA's {peer}", command)))


def mma(bench):
    attention(bench, "mma", "mma", "flash")


def hopper(bench):
    attention(bench, "hopper", "hopper", "cudnn")
    ring_of(bench, "hopper", "hopper")


def packed(bench):
    what, known = "mma beside varlen_attn", len(bench.missing)
    items = list(gpu_rows.packed_rows(bench.run(
        "packed", what,
        [*script("gpu/mma_attention_peer.py"), bench.program("mma_attention_check"), "packed"])))
    bench.take(items)
    if not items and len(bench.missing) == known:
        bench.fail("packed", what, "no figure is found in its output")


def ring(bench):
    ring_of(bench, "ring", "cudnn")


def ring_of(bench, part, backend):
    local, degree, heads, rounds = "8192", "8", "16", "3" if bench.quick else "15"
    found = bench.objects(part, f"{backend}: the blocks of a ring beside one full call of cuDNN",
                          [bench.program("bench_cuda_ring"), backend, local, degree, heads, heads, rounds, "--json"])
    bench.take(gpu_rows.ring_rows(found, f"{degree} blocks of 8K causal zigzag {heads}/{heads} hd128", part))


def memory(bench):
    rows, heads, width, rounds = "16384", "16", "128", "3" if bench.quick else "15"
    found = bench.objects("memory", "kernels beside copies",
                          [bench.program("bench_cuda_memory"), rows, heads, width, rounds, "--json"])
    bench.take(gpu_rows.memory_rows(found, f"{rows} x {heads} x {width}"))


def exchange(bench):
    sizes = ["16", "64"] if bench.quick else ["4", "16", "64", "256"]
    for count in sorted({2, max(2, bench.gpus)}):
        command = [bench.program("bench_cuda_exchange"), str(count), "5" if bench.quick else "15", *sizes, "--json"]
        found = bench.objects("exchange", f"{count} ranks, threads", command)
        bench.take(gpu_rows.exchange_rows(found))
        beside_torch(bench, count, sizes, found)
        what = f"{count} ranks, processes"
        if importlib.util.find_spec("torch") is None:
            bench.take([NotRun("exchange", what, f"torchrun starts them, and {sys.executable} has no torch")])
            continue
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1", "--master-port",
                    "29541", "--nproc-per-node", str(count), "--no-python"]
        bench.take(gpu_rows.exchange_rows(bench.objects("exchange", what, torchrun + command)))


def beside_torch(bench, count, sizes, found):
    what = f"{count} ranks beside permute, all_to_all_single, permute"
    if bench.gpus < count or importlib.util.find_spec("torch") is None:
        bench.take([NotRun("exchange", what, f"needs torch and {count} GPUs, {bench.gpus} here")])
        return
    peer = bench.script_objects("exchange", what, [*script("bench/bench_exchange_torch.py"), "--gpus", str(count),
                                                   "--mib", *sizes])
    bench.take(gpu_rows.torch_exchange_rows(found, peer))


def overlap(bench):
    for local in ["8192"] if bench.quick else ["8192", "16384"]:
        for mib in ["64", "256"]:
            command = [bench.program("bench_cuda_overlap"), local, mib, "5" if bench.quick else "15", "--json"]
            bench.take(gpu_rows.overlap_rows(bench.objects("overlap", f"{local} tokens, {mib} MiB", command)))


def ranks(bench):
    command = [*script("bench/bench_gpu_ranks_torch.py"), bench.program("bench_gpu_ranks")]
    command += ["--rounds", "3" if bench.quick else "7"]
    alone = str(gpu_rows.ALONE_SEQ)
    lengths = ["16384", alone] if bench.quick else ["16384", alone, "131072"]
    pair = bench.script_objects("ranks", "two GPUs beside context parallel",
                                [*command, "--gpus", "2", "--seq", *lengths])
    single = bench.script_objects("ranks", "one GPU", [*command, "--gpus", "1", "--no-torch", "--seq", alone])
    bench.take(gpu_rows.ranks_rows(pair, single))


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the table and what it needs."""
    run: object
    program: str
    gpus: int = 1
    torch: bool = False


PARTS = {
    "attention": Part(attention, "bench_cuda_attention", torch=True),
    "mma": Part(mma, "bench_cuda_attention", torch=True),
    "hopper": Part(hopper, "bench_cuda_attention", torch=True),
    "packed": Part(packed, "mma_attention_check", torch=True),
    "ring": Part(ring, "bench_cuda_ring"),
    "memory": Part(memory, "bench_cuda_memory"),
    "exchange": Part(exchange, "bench_cuda_exchange"),
    "overlap": Part(overlap, "bench_cuda_overlap", gpus=2),
    "ranks": Part(ranks, "bench_gpu_ranks", gpus=2, torch=True),
}


def obstacle(part, bin_folder, gpus, torch):
    """Why a part cannot be run here, or None."""
    if gpus < part.gpus:
        return f"needs {part.gpus} GPU{'s' if part.gpus > 1 else ''}, {gpus} here"
    if part.torch and not torch:
        return f"no torch in {sys.executable}"
    if not (bin_folder / part.program).is_file():
        return f"no {bin_folder / part.program} (cmake --build build --target {part.program})"
    return None


def measure(bench, names, torch):
    for name, part in PARTS.items():
        if name not in names:
            bench.missing.append(NotRun(name, "all of it", "left out by --only"))
            continue
        why = obstacle(part, bench.bin, bench.gpus, torch)
        if why is not None:
            bench.missing.append(NotRun(name, "all of it", why))
            continue
        begin = time.monotonic()
        try:
            part.run(bench)
        except (KeyError, ValueError, ZeroDivisionError) as error:
            bench.fail(name, "a part of it", f"its figures are not understood: {type(error).__name__}: {error}")
        bench.seconds[name] = round(time.monotonic() - begin, 1)


def write(path, about, bench):
    """The whole result as JSON: machine, rows, what was not run, and the figures as the benchmarks gave them."""
    result = {**about, "quick": bench.quick, "seconds": bench.seconds, "rows": [r.as_dict() for r in bench.rows],
              "not_run": [dataclasses.asdict(m) for m in bench.missing], "figures": bench.figures}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART",
                        help="parts to run, of " + ", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, lengths and sizes")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "bin", metavar="DIR",
                        help="where the benchmarks lie (default build/bin)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write everything there too")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS",
                        help="for one benchmark; what it had found by then counts (default 300)")
    parser.add_argument("--revision", help="what to print where git does not know it")
    options = parser.parse_args(arguments)
    options.bin = options.bin.resolve()
    return options


def main(arguments=None):
    options = parse(arguments)
    about = machine(options.revision)
    bench = Bench(options, len(about["gpus"]))
    print(heading(about), flush=True)
    try:
        measure(bench, options.only, about["torch"] is not None)
    finally:
        print(gpu_rows.table(bench.rows, bench.missing), flush=True)
        if options.json:
            write(options.json, about, bench)
    return 1 if any(m.failed for m in bench.missing) else 0


if __name__ == "__main__":
    sys.exit(main())
