// SPDX-License-Identifier: Apache-2.0
// Owners of the MPI handles that this project makes. Internal to comm: it is one of the few headers
// that pull in mpi.h.
#pragma once

// The C interface only: the C++ one was removed from MPI 3.0 and needs a library of its own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "comm/unique_handle.hpp"

namespace vsr::comm {

/// True between MPI_Init and MPI_Finalize; freeing a handle is an error outside of it.
inline bool is_mpi_running() noexcept {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

struct MpiCommTraits {
  using Type = MPI_Comm;
  static Type null() noexcept { return MPI_COMM_NULL; }
  // MPI_Comm_free is collective by the letter of the standard. Ranks end in the same order or the
  // process is about to leave; libraries free such handles without waiting for their peers.
  static void close(Type handle) noexcept {
    if (is_mpi_running()) MPI_Comm_free(&handle);
  }
};

struct MpiOpTraits {
  using Type = MPI_Op;
  static Type null() noexcept { return MPI_OP_NULL; }
  static void close(Type handle) noexcept {
    if (is_mpi_running()) MPI_Op_free(&handle);
  }
};

struct MpiDatatypeTraits {
  using Type = MPI_Datatype;
  static Type null() noexcept { return MPI_DATATYPE_NULL; }
  static void close(Type handle) noexcept {
    if (is_mpi_running()) MPI_Type_free(&handle);
  }
};

using MpiComm = UniqueHandle<MpiCommTraits>;
using MpiOp = UniqueHandle<MpiOpTraits>;
using MpiDatatype = UniqueHandle<MpiDatatypeTraits>;

}  // namespace vsr::comm
