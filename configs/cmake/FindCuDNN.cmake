# SPDX-License-Identifier: Apache-2.0
# Headers of cuDNN and of its C++ frontend: CuDNN_FOUND, CuDNN_INCLUDE_DIRS. The library itself is loaded at run time.
# Looks beside the CUDA toolkit, in CUDNN_ROOT and CUDNN_FRONTEND_ROOT (the folder `include` of the PyPI package
# nvidia-cudnn-frontend, say).
find_path(CuDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES include)
find_path(CuDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${PROJECT_SOURCE_DIR}/build/python PATH_SUFFIXES include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CuDNN REQUIRED_VARS CuDNN_INCLUDE_DIR CuDNN_FRONTEND_INCLUDE_DIR)
set(CuDNN_INCLUDE_DIRS ${CuDNN_INCLUDE_DIR} ${CuDNN_FRONTEND_INCLUDE_DIR})
mark_as_advanced(CuDNN_INCLUDE_DIR CuDNN_FRONTEND_INCLUDE_DIR)
