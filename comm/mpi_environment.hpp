// SPDX-License-Identifier: Apache-2.0
// Who starts and ends MPI. The library works under an MPI_Init of the caller too.
#pragma once

#include <chrono>

namespace vsr::comm {

/// Starts MPI (thread level serialized) unless the caller did, and ends what it started.
/// Not copyable, not movable: one object in `main`, older than every Communicator.
/// A caller that started MPI itself answers for the thread level it asked for: all calls of this
/// library come from one thread at a time.
/// The destructor does not finalize while an exception unwinds: peers may wait in a collective, and
/// finalizing would wait for them for ever; use `abort` then.
/// @throws CommError when MPI cannot be started or grants too low a thread level
/// @throws ConfigurationError when a launcher started several processes but MPI sees a world of one
///         (srun without --mpi=pmix): the message says how to start it
class MpiEnvironment {
 public:
  MpiEnvironment(int& argc, char**& argv);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// How long the destructor may wait for ranks that do not come to the end, before this process
  /// ends with exit code 75 and says so; 0, the default: for ever, as others may work on for long.
  void limit_end(std::chrono::seconds limit) noexcept { end_limit_ = limit; }

  /// End the whole job now with this exit code. For a rank that fails alone.
  [[noreturn]] static void abort(int exit_code) noexcept;

 private:
  bool owns_ = false;
  int exceptions_at_start_ = 0;
  int rank_ = 0;
  std::chrono::seconds end_limit_{0};
};

}  // namespace vsr::comm
