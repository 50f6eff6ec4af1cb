// SPDX-License-Identifier: Apache-2.0
// One equally large buffer per rank that ranks of the same node can reach in each other's memory.
// The flat gradients and the replica live in such buffers: an owner reads the gradients of its
// peers and writes their replicas in place, without a copy.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace vsr::comm {

class Communicator;

/// In the memory of a GPU (the NCCL backend) every rank reaches the others by messages. Host memory
/// is shared between ranks of a node through anonymous shared memory (memfd), which needs no room
/// in /dev/shm, leaves no file behind after SIGKILL, and is reserved when created, so that running
/// out of memory is an error here and not a SIGBUS later. Freed locally: no collective in the
/// destructor.
class PeerBuffer {
 public:
  /// Collective: make a zeroed buffer of `bytes` (the same on all ranks) on each rank and map those
  /// of the other ranks of this node. Where mapping fails on any rank of a node, all ranks of that
  /// node agree to keep private memory and exchange messages; `notice()` then says why. The
  /// environment variable VSR_COMM_SHARED=0 asks for private memory (for tests).
  /// @throws AgreedError (exit 75) on all ranks when the buffers of a node do not fit into its free
  /// memory, or a rank cannot even get private memory; ArgumentError on all ranks when sizes differ
  PeerBuffer(Communicator& world, std::size_t bytes);
  ~PeerBuffer();
  PeerBuffer(PeerBuffer&&) noexcept;
  PeerBuffer& operator=(PeerBuffer&&) noexcept;

  /// My buffer; bulk memory, page aligned.
  std::span<std::byte> mine() const noexcept;
  /// The buffer of `rank`, or an empty span when it can only be reached by messages.
  std::span<std::byte> of(int rank) const noexcept;
  bool is_shared_with(int rank) const noexcept { return !of(rank).empty(); }
  /// True when all ranks of the world can be reached in memory.
  bool is_shared_with_all() const noexcept;
  /// Why ranks of this node exchange messages, or empty.
  const std::string& notice() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vsr::comm
