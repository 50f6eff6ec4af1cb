// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_environment.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "comm/error.hpp"
#include "comm/launch_guard.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handles.hpp"

namespace vsr::comm {
namespace {

// MPI_Abort talks to the launcher; should that hang, this process still ends.
void end_soon_without_mpi(int exit_code) noexcept {
  constexpr std::chrono::seconds kPatience(5);
  try {
    std::thread([exit_code, kPatience] {
      std::this_thread::sleep_for(kPatience);
      std::_Exit(exit_code);
    }).detach();
  } catch (const std::exception&) {
    // No thread to be had: MPI_Abort alone has to do.
  }
}

// A rank that was stopped after its last call holds the others up in MPI_Finalize.
void end_late_without_mpi(int rank, std::chrono::seconds limit) noexcept {
  try {
    std::thread([rank, limit] {
      std::this_thread::sleep_for(limit);
      std::fprintf(
          stderr,
          "error: rank %d waits since %lld s for the others to end (MPI_Finalize): its own "
          "work is done, and a rank was stopped or hangs after its last call\n",
          rank, static_cast<long long>(limit.count()));
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(ExitCode::communication));
    }).detach();
  } catch (const std::exception&) {
    // No thread to be had: it waits as long as it takes.
  }
}

}  // namespace

MpiEnvironment::MpiEnvironment(int& argc, char**& argv)
    : exceptions_at_start_(std::uncaught_exceptions()) {
  int ended = 0;
  MPI_Finalized(&ended);
  VSR_CHECK(ended == 0, "MPI was ended before; a process can start it once");
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) {
    int granted = MPI_THREAD_SINGLE;
    VSR_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &granted));
    owns_ = true;
    if (granted < MPI_THREAD_SERIALIZED) {
      MPI_Finalize();
      throw CommError("the MPI library grants thread level " + std::to_string(granted) +
                      ", needed is MPI_THREAD_SERIALIZED (" +
                      std::to_string(MPI_THREAD_SERIALIZED) + "); use a build with threads");
    }
  }
  int world = 1;
  VSR_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world));
  VSR_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  try {
    refuse_lone_ranks(world, [](const char* name) { return std::getenv(name); });
  } catch (const Error&) {
    if (owns_) MPI_Finalize();  // a world of one: nobody to wait for
    throw;
  }
}

MpiEnvironment::~MpiEnvironment() {
  if (owns_ && is_mpi_running() && std::uncaught_exceptions() <= exceptions_at_start_) {
    if (end_limit_.count() > 0) end_late_without_mpi(rank_, end_limit_);
    MPI_Finalize();
  }
}

void MpiEnvironment::abort(int exit_code) noexcept {
  std::fflush(nullptr);
  if (is_mpi_running()) {
    end_soon_without_mpi(exit_code);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

}  // namespace vsr::comm
