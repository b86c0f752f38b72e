#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The package on GPUs: checks on one and on two, then the benchmarks beside PyTorch's and accelerate's context parallel.
# Needs a build with CUDA (build/runtime/python/usp_attention), torch, transformers, accelerate, and two GPUs.
#   tests/python/gpu/run.sh [PYTHON]      (default: build/python-env/bin/python3); results: build/python-gpu.jsonl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
python=${1:-build/python-env/bin/python3}
results=build/python-gpu.jsonl
export PYTHONPATH=$PWD/build/runtime/python:$PWD/tests/python

ranks() { "$python" -m torch.distributed.run --nproc-per-node "$1" "${@:2}"; }

ranks 1 tests/python/gpu/worker_gpu.py libraries attention
ranks 2 tests/python/gpu/worker_gpu.py attention graphs allocator fsdp
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ranks 2 tests/python/gpu/worker_gpu.py allocator

: >"$results"
ranks 1 tests/bench/bench_torch_overhead.py --device cuda | tee -a "$results"
ranks 2 tests/bench/bench_torch_attention.py | tee -a "$results"
for layers in 1 8; do ranks 2 tests/bench/bench_llama.py --layers "$layers" | tee -a "$results"; done
ranks 2 tests/bench/bench_llama.py --tokens 65536 --documents 4096 --kinds ring,ulysses,alone | tee -a "$results"
echo "results are in $results"
