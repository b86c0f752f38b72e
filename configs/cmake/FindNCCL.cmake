# SPDX-License-Identifier: Apache-2.0
# Headers of NCCL: NCCL_FOUND, NCCL_INCLUDE_DIR. The library itself is loaded at run time. Looks beside the CUDA
# toolkit, in NCCL_ROOT and in the PyPI package nvidia-nccl (its folder nvidia/nccl).
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_ROOT} ENV NCCL_ROOT PATH_SUFFIXES include)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" nccl_numbers "${nccl_lines}")
  list(JOIN nccl_numbers "." NCCL_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR)
