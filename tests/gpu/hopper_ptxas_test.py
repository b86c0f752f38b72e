#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ptxas says of the hopper kernels: no register is spilled, no product of a warpgroup is serialized.

    hopper_ptxas_test.py NVCC FOLDER INCLUDES    compiles every .cu of the folder; INCLUDES: folders, a colon between them
"""
import pathlib
import re
import subprocess
import sys

ARCHITECTURE = "arch=compute_90a,code=sm_90a"
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
WARNING = re.compile(r"\(C75\d\d\)")


def faults(text):
    """Lines of ptxas that tell of lost speed, each behind the kernel that it is about."""
    found, kernel = [], ""
    for line in text.splitlines():
        if named := re.search(r"Compiling entry function '(\S+)'", line):
            kernel = named.group(1)
        if WARNING.search(line):
            found.append(line.strip())
        elif (spill := SPILL.search(line)) and any(int(n) for n in spill.groups()):
            found.append(f"{kernel}: {line.strip()}")
    return found


def check_reader():
    clean = "Compiling entry function 'k' for 'sm_90a'\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert not faults(clean), faults(clean)
    assert faults(clean.replace("0 bytes spill loads", "4 bytes spill loads")) == [
        "k: 0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads"]
    assert len(faults("ptxas info : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized")) == 1


def main():
    nvcc, folder, includes = sys.argv[1:]
    check_reader()
    sources = sorted(pathlib.Path(folder).glob("*.cu"))
    assert sources, f"{folder} holds no .cu"
    wrong = kernels = 0
    for source in sources:
        command = [nvcc, "-std=c++17", "-O3", "-gencode", ARCHITECTURE, "-Xptxas", "-v", "-cubin", "-o", "/dev/null",
                   *(f"-I{i}" for i in includes.split(":") if i), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        assert done.returncode == 0, text
        kernels += len(SPILL.findall(text))
        for fault in faults(text):
            print(f"{source.name}: {fault}")
            wrong += 1
    print(f"{kernels} kernels in {len(sources)} files, {wrong} faults")
    assert kernels >= 2 * len(sources), "ptxas says nothing of some kernels"
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
