// SPDX-License-Identifier: Apache-2.0
// NCCL over MPI and host memory, for tests on machines without a GPU. Ranks of one mpirun are its
// ranks. It refuses what NCCL forbids and the real one would hang in or corrupt memory by: memory
// that is not the device's, calls that differ between ranks, groups that do not close. It never
// blocks, says `in_progress` where the real one may, and fails when it is told to. Sums are those
// of the MPI backend: all-reduce in MPI's own order, the others in rank order.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/device/nccl_functions.hpp"
#include "tests/support/fake_device.hpp"

namespace vsr::test {

/// What goes wrong on one rank.
struct NcclFault {
  enum class Kind {
    none,
    init_hangs,   ///< the rank never answers the others
    init_fails,   ///< its init reports a system error
    async_error,  ///< operation `operation` turns into an error that is reported later
    hangs         ///< operation `operation` never starts
  };
  Kind kind = Kind::none;
  int operation = 0;         ///< counted from 0, from now on; a group is one
  bool abort_hangs = false;  ///< the end of the communicator takes a second
};

class FakeNccl {
 public:
  /// Collective; one per process at a time, as its functions have no other way to it.
  explicit FakeNccl(FakeDevice& device);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const comm::NcclFunctions& functions() const noexcept;
  /// On this rank, from now on.
  void inject(NcclFault fault);
  /// How often a function of the table was called.
  int calls(const std::string& function) const;
  /// Communicators that were neither destroyed nor aborted.
  int live_communicators() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vsr::test
