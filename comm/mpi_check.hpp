// SPDX-License-Identifier: Apache-2.0
// Turns the return code of an MPI call into an exception that names the rank, the host and the
// call. Free of mpi.h: success is zero in the MPI standard.
#pragma once

#include <source_location>

namespace vsr::comm {

/// Local. @param code what the MPI call returned
/// @param call its source text; the message names what stands before the bracket
/// @throws CommError "rank r/N on HOST: MPI_Xxx failed: text of the MPI library"
[[noreturn]] void throw_mpi_error(int code, const char* call, std::source_location where);

/// Throw when `code` is not success; see throw_mpi_error.
inline void check_mpi(int code, const char* call,
                      std::source_location where = std::source_location::current()) {
  if (code != 0) throw_mpi_error(code, call, where);
}

}  // namespace vsr::comm

/// Always on: run an MPI call on a communicator that returns errors; throws CommError if it fails.
#define VSR_MPI(call) ::vsr::comm::check_mpi((call), #call)
