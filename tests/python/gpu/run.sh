#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The package on GPUs: checks on one and on two, then the benchmarks beside PyTorch's and accelerate's context parallel.
# Needs a build with CUDA (build/runtime/python/usp_attention), torch, transformers, accelerate, and two GPUs.
#   tests/python/gpu/run.sh [--short] [PYTHON]   (default: build/python-env/bin/python3); results: build/python-gpu.jsonl
# --short: what changes most, in less than 8 minutes: attention, forward alone, memory and graphs, then 8 layers of Llama
# at 16K, 64K and 128K tokens beside accelerate, and packed documents, with few steps each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
short=0
if [[ "${1:-}" == --short ]]; then
  short=1
  shift
fi
python=${1:-build/python-env/bin/python3}
results=build/python-gpu.jsonl
export PYTHONPATH=$PWD/build/runtime/python:$PWD/tests/python

ranks() {
  local began=$SECONDS status=0
  "$python" -m torch.distributed.run --nproc-per-node "$1" "${@:2}" || status=$?
  printf 'run.sh: %s: %d s, status %d\n' "${*:2}" "$((SECONDS - began))" "$status" >&2
  return "$status"
}
bench() { ranks 2 "tests/bench/$1" "${@:2}" | tee -a "$results"; }

: >"$results"
if ((short)); then
  ranks 2 tests/python/gpu/worker_gpu.py attention forward_only memory graphs
  bench bench_llama.py --tokens 16384,65536 --steps 5
  bench bench_llama.py --tokens 131072 --steps 3 --kinds ring,ulysses,allgather
  bench bench_llama.py --tokens 65536 --documents 4096 --kinds ring,balanced,ulysses,alone --steps 4
  exit
fi
ranks 1 tests/python/gpu/worker_gpu.py libraries attention forward_only
ranks 2 tests/python/gpu/worker_gpu.py attention forward_only memory graphs allocator fsdp
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ranks 2 tests/python/gpu/worker_gpu.py memory allocator

ranks 1 tests/bench/bench_torch_overhead.py --device cuda | tee -a "$results"
bench bench_torch_attention.py --usp build/bin/usp
for layers in 1 8; do bench bench_llama.py --layers "$layers"; done
bench bench_llama.py --tokens 65536 --documents 4096 --kinds ring,balanced,ulysses,alone
echo "results are in $results"
