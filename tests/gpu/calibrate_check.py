#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""calibrate_check.py [--bin build/bin] [--out DIR] [--mpirun PROGRAM] [--seconds S]: `usp calibrate` on the GPUs of this host.

Ranks as threads, as processes of torchrun's variables and, where it is there, of mpirun; every backend, copy engines and
NCCL: --quick first, then whole on threads. Each calibration has to fit the schema (where Python has jsonschema) and to
be read by `usp validate`; on two GPUs calls that were measured on two H200 are priced by it. A line per run with its
time, kernels, transports and MAPE; files and outputs stay in DIR. Takes at most eight minutes. Exits with 1 when
something failed, with 77 where there is no GPU.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SKIPPED = 77
ALL_SECONDS = 460
MOST_MAPE = 0.08  # of calls of 32K and more on the card that they were measured on, by a whole calibration
ROWS = ROOT / "tests" / "data" / "measurements" / "usp_attention_2xh200.csv"
SCHEMA = ROOT / "configs" / "schema" / "calibration.v2.schema.json"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Check:
    def __init__(self, options, gpus):
        self.options, self.gpus, self.failed = options, gpus, 0
        self.usp = str(options.bin / "usp")
        self.end = time.monotonic() + ALL_SECONDS

    def call(self, name, command):
        """Exit code, output and seconds of a command within the time; its texts are kept."""
        begin = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | AS_ROOT,
                                  timeout=max(1, self.end - begin))
            code, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, output = "none: the time was up", (late.stdout or b"").decode(errors="replace")
            errors = (late.stderr or b"").decode(errors="replace")
        (self.options.out / f"{name}.out").write_text(output, encoding="utf-8")
        (self.options.out / f"{name}.err").write_text(errors, encoding="utf-8")
        return code, output, errors, time.monotonic() - begin

    def fail(self, name, why):
        self.failed += 1
        print(f"FAILED  {name}: {why}", flush=True)

    def calibrate(self, name, start, flags):
        """Measures and checks what was written."""
        file, cluster = self.options.out / f"{name}.json", self.options.out / f"{name}-cluster.json"
        code, _, errors, seconds = self.call(name, [*start, self.usp, "calibrate", "--device", "cuda", *flags, "--restart",
                                                    "--name", name, "-o", str(file), "--write-cluster", str(cluster)])
        if code != 0:
            self.fail(name, f"exit code {code}: {errors.strip()[-1500:]}")
            return
        content = json.loads(file.read_text(encoding="utf-8"))
        faults = [*self.schema_faults(content), *self.content_faults(content)]
        for other in (file, cluster):
            code, _, errors, _ = self.call(f"{name}-validate-{other.stem}", [self.usp, "validate", str(other)])
            if code != 0:
                faults.append(f"usp validate {other.name}: {errors.strip()[-500:]}")
        for fault in faults:
            self.fail(name, fault)
        if not faults:
            print(f"ok      {name}, {seconds:.0f} s: {self.summary(content)}{self.score(name, cluster, content)}", flush=True)

    @staticmethod
    def schema_faults(content):
        try:
            import jsonschema
        except ImportError:
            return []
        schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
        return [f"schema: {fault.json_path}: {fault.message[:300]}"
                for fault in jsonschema.Draft7Validator(schema).iter_errors(content)]

    def content_faults(self, content):
        """What every calibration of several GPUs of one host has."""
        if self.gpus > 1 and not content["point_to_point"]:
            yield "no hop was measured"
        if content["device"]["bf16_flop_per_s"] <= 0 or not content["attention"].get("backend"):
            yield "the card or the backend is not named"
        for surface in [content["attention"], *content.get("other_attention", [])]:
            for fit in surface["head_dims"]:
                if fit["peak_flop_per_s"] > content["device"]["bf16_flop_per_s"] > 0:
                    yield f"{surface['backend']} at head dim {fit['head_dim']} is faster than the card's peak"

    @staticmethod
    def summary(content):
        kernels = []
        for surface in [content["attention"], *content.get("other_attention", [])]:
            library = surface.get("library", {})
            rates = ", ".join(f"{fit['head_dim']}: {fit['peak_flop_per_s'] * 1e-12:.0f} TF/s ({100 * fit['mape']:.1f}%)"
                              for fit in surface["head_dims"])
            kernels.append(f"{surface['backend']} {library.get('version', '')} {rates}")
        hops = ", ".join(f"{curve['transport']} {max(p['bytes_per_s'] for p in curve['points']) * 1e-9:.0f} GB/s"
                         for curve in content["point_to_point"])
        products = content.get("products")
        share = f"; products {100 * products['share']:.0f}% of the peak ({products['library']})" if products else ""
        beside = ", ".join(f"{row['transport']} {row['ratio']:.2f} and {1e6 * row.get('tick_s', 0):.0f} us a tick"
                           for row in content["interference"])
        return f"{'; '.join(kernels)}; hops {hops or 'none'}; beside kernels {beside}{share}"

    def score(self, name, cluster, content):
        """MAPE and regret of measured calls; empty where they are of another machine."""
        if self.gpus < 2:
            return ""
        code, output, errors, _ = self.call(f"{name}-score", [self.usp, "score", str(ROWS), "--cluster", str(cluster), "--json"])
        if code != 0:
            self.fail(name, f"usp score: {errors.strip()[-500:]}")
            return ""
        report = json.loads(output)
        ours = next(method for method in report["gated"] if method["method"] == "usp")
        if name == "threads" and content["device"]["name"] == "NVIDIA H200" and ours["mape"] > MOST_MAPE:
            self.fail(name, f"MAPE {100 * ours['mape']:.1f}% of {ROWS.name}, more than {100 * MOST_MAPE:.0f}%")
        def of(part):
            ours = next((method for method in report[part] if method["method"] == "usp"), None)
            return "none" if ours is None or ours["mape"] is None else (
                f"{100 * ours['mape']:.1f}% of {ours['rows']} rows, regret {100 * ours['mean_regret']:.2f}%")
        return f"; MAPE {of('gated')} (32K and more), {of('shorter')} (shorter)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "bin", metavar="DIR")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "calibrate-check")), metavar="DIR")
    parser.add_argument("--mpirun", default=shutil.which("mpirun"), help="(that of PATH; '' for none)")
    parser.add_argument("--seconds", type=int, default=150, help="of the whole calibration (150); 0 leaves it out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    asked = subprocess.run([str(options.bin / "gpu_ranks"), "1", "devices"], capture_output=True, text=True, check=False)
    if asked.returncode == SKIPPED:
        print("no GPU here")
        return SKIPPED
    gpus = int(asked.stdout)
    check = Check(options, gpus)
    launch = [sys.executable, str(HERE.parent / "support" / "launch_ranks.py"), str(gpus), "--"]
    quick = ["--quick", "--max-seconds", "20"]
    check.calibrate("threads-quick", [], quick)
    if gpus > 1:
        check.calibrate("processes-quick", launch, quick)
        for transport in ("copy_engine", "nccl"):
            check.calibrate(f"threads-{transport}", [], [*quick, "--transport", transport, "--backend", "mma"])
        if options.mpirun:
            check.calibrate("mpirun-quick", [options.mpirun, "--oversubscribe", "-n", str(gpus)], quick)
    if options.seconds > 0:
        check.calibrate("threads", [], ["--max-seconds", str(options.seconds)])
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
