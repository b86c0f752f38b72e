// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C interface alone: the C++ classes that some mpi.h add need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
