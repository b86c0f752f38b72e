# SPDX-License-Identifier: Apache-2.0
# CUDA is optional: USP_CUDA is AUTO (used when nvcc is found), ON (must be found) or OFF. No GPU is needed to build.
set(USP_CUDA "AUTO" CACHE STRING "Build with CUDA: AUTO, ON or OFF")
set_property(CACHE USP_CUDA PROPERTY STRINGS AUTO ON OFF)

set(USP_HAS_CUDA FALSE)
if(USP_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPU architectures to build for")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(USP_HAS_CUDA TRUE)
  elseif(NOT USP_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "USP_CUDA=ON, but there is no nvcc; put it on PATH or set CMAKE_CUDA_COMPILER, or use USP_CUDA=OFF")
  endif()
endif()
find_package(NCCL QUIET)
find_package(CuDNN QUIET)

# Links the CUDA runtime statically, so that a program starts where there is no driver. The files are linked, not
# CUDA::cudart_static: a consumer in C++ alone could not find that target again.
function(usp_link_cuda target)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${CUDA_cudart_static_LIBRARY} ${CMAKE_DL_LIBS} pthread rt)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY None)
endfunction()
