// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_check.hpp"

#include <unistd.h>

#include <array>
#include <string>

#include "comm/error.hpp"
#include "comm/mpi_handles.hpp"
#include "comm/processes.hpp"

namespace vsr::comm {
namespace {

std::string who() {
  if (!is_mpi_running()) return "process " + std::to_string(getpid()) + " on " + host_name();
  int rank = 0;
  int world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  return "rank " + std::to_string(rank) + "/" + std::to_string(world) + " on " + host_name();
}

std::string text_of(int code) {
  if (is_mpi_running()) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int size = 0;
    if (MPI_Error_string(code, text.data(), &size) == MPI_SUCCESS) {
      return {text.data(), static_cast<std::size_t>(size)};
    }
  }
  return "error code " + std::to_string(code);
}

}  // namespace

void throw_mpi_error(int code, const char* call, std::source_location where) {
  const std::string text(call);
  throw CommError(who() + ": " + text.substr(0, text.find('(')) + " failed: " + text_of(code),
                  where);
}

}  // namespace vsr::comm
