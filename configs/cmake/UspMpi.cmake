# SPDX-License-Identifier: Apache-2.0
# MPI is optional: USP_MPI is AUTO (used when found), ON (must be found) or OFF.
set(USP_MPI "AUTO" CACHE STRING "Build with MPI: AUTO, ON or OFF")
set_property(CACHE USP_MPI PROPERTY STRINGS AUTO ON OFF)

# Sets USP_HAS_MPI in the caller, and MPIEXEC_EXECUTABLE for tests.
macro(usp_find_mpi)
  set(USP_HAS_MPI FALSE)
  if(USP_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS C)
  elseif(USP_MPI)
    find_package(MPI REQUIRED COMPONENTS C)
  endif()
  if(USP_MPI AND MPI_C_FOUND)
    set(USP_HAS_MPI TRUE)
  endif()
  # For tests. The kernel of a container may refuse to read another process's memory. On a busy machine each yield costs
  # a round of the scheduler, and Open MPI yields in every call that finds nothing; ranks here sleep between calls.
  set(USP_MPIRUN ${MPIEXEC_EXECUTABLE} --oversubscribe --mca btl_vader_single_copy_mechanism none
                 --mca mpi_yield_when_idle 0 -n)
  set(USP_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
endmacro()

# The files of the library are linked, not MPI::MPI_C: a consumer in C++ alone could not find that target again.
function(usp_link_mpi target)
  target_include_directories(${target} SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${MPI_C_LIBRARIES})
endfunction()

# usp_add_mpi_test(<name> <ranks> PROGRAM [ARG...]): what mpirun starts on so many ranks of this machine. Call after
# usp_find_mpi.
function(usp_add_mpi_test name ranks)
  add_test(NAME mpi.${name} COMMAND ${USP_MPIRUN} ${ranks} ${ARGN})
  set_tests_properties(mpi.${name} PROPERTIES LABELS mpi TIMEOUT 300 PROCESSORS 2 ENVIRONMENT "${USP_MPI_ENVIRONMENT}")
endfunction()
