#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that is tested on GPUs, on all that this machine has, in one command:

    ./usp.sh test-gpu                                 builds, then this
    tests/gpu/gpu_suite.py [--bin build/bin] [--logs DIR] [--only NAME ...]

Every suite as it is; with several GPUs also with their numbers reversed, since ranks, contexts and peer access must not
follow the order; what streams wait for also with one hardware queue; ranks as processes (processes_test.py); a small set
under compute-sanitizer where it is installed. Prints a line for each and exits with 1 when one failed, with 77 where
there is no GPU.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
SUITES = ["copy_engine", "cuda_graph", "device_memory", "device_scope", "c_gpu", "regions_cuda", "attention_gpu",
          "cudnn_kernel", "hopper_units", "hopper_jitter", "hopper_runs", "hopper_errors", "attention_kernel_cuda", "gates",
          "early_transfers"]
# A transfer that waits holds up all others of one hardware queue, which these tests forbid.
ONE_QUEUE_FILTER = "-*AWaitIsForItsOwnTransfer*:*WhileTheCallsOfBothEndsGoOn*:*CallsThatAnnounceNothing*"


def runs(options, gpus):
    """Name, command, environment and limit in seconds of each run."""
    def program(name):
        return str(options.bin / name)

    def suite(name, *flags):
        return [program(f"test_{name}"), *([] if name == "c_gpu" else flags)]

    for name in SUITES:
        yield name, suite(name), {}, 300
    if gpus > 1:
        reverse = {"CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in reversed(range(gpus)))}
        for name in ("copy_engine", "cuda_graph", "device_scope", "c_gpu", "attention_gpu"):
            yield f"{name}, GPUs reversed", suite(name), reverse, 300
    for name in ("copy_engine", "cuda_graph", "gates", "early_transfers"):
        yield f"{name}, one queue", suite(name, f"--gtest_filter={ONE_QUEUE_FILTER}"), {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, 300
    yield "attention_gpu, one queue", suite("attention_gpu", "--gtest_filter=*Gated*:*UnderAGate*"), {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1"}, 300
    mpirun = [options.mpirun, "--oversubscribe", "-n"] if options.mpirun else []
    yield "processes", [sys.executable, str(HERE / "processes_test.py"), program("usp"), program("gpu_ranks"),
                        str(HERE.parent / "support" / "launch_ranks.py"), *mpirun], {}, 900
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        # Peer access that is already there is an error of the call that asks for it, and no fault.
        check = [sanitizer, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9",
                 "--target-processes", "all"]
        yield "c_gpu, memcheck", [*check, *suite("c_gpu")], {}, 300
        yield "copy_engine, memcheck", [*check, *suite("copy_engine", "--gtest_filter=*KeepsTheContract/1:*OtherSizes*")], {}, 300
        yield "processes, memcheck", [*check, sys.executable, str(HERE.parent / "support" / "launch_ranks.py"), "2", "--",
                                      program("gpu_ranks"), "2", "contract"], {}, 300
    else:
        print("not run: memcheck: compute-sanitizer is not on the PATH", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent.parent / "build" / "bin", metavar="DIR")
    parser.add_argument("--logs", type=pathlib.Path, metavar="DIR", help="keep the output of every run there")
    parser.add_argument("--mpirun", default=shutil.which("mpirun"), help="(that of PATH; '' for none)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs whose names hold one of these")
    options = parser.parse_args()
    asked = subprocess.run([str(options.bin / "gpu_ranks"), "1", "devices"], capture_output=True, text=True, check=False)
    if asked.returncode == SKIPPED:
        print("no GPU here")
        return SKIPPED
    gpus = int(asked.stdout)
    print(f"{gpus} GPU{'s' if gpus > 1 else ''}", flush=True)
    failed = 0
    for name, command, environment, limit_s in runs(options, gpus):
        if options.only and not any(word in name for word in options.only):
            continue
        begin = time.monotonic()
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
                                  env={**os.environ, **environment}, check=False)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, output = "none, it did not end", (late.stdout or b"").decode(errors="replace")
        good = code == 0
        failed += not good
        print(f"{'ok' if good else 'FAILED':6}  {name}, {time.monotonic() - begin:.0f} s"
              + ("" if good else f", exit code {code}"), flush=True)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            (options.logs / (name.replace(" ", "_").replace(",", "") + ".log")).write_text(output, encoding="utf-8")
        if not good:
            print(output[-3000:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
