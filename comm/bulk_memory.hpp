// SPDX-License-Identifier: Apache-2.0
// Memory for what the bulk calls move, beside the PeerBuffers: host memory, or that of the rank's
// GPU where the backend is NCCL.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace vsr::comm {

class Communicator;
class Device;

/// `bytes` zeroed bytes of bulk memory.
class BulkMemory {
 public:
  BulkMemory() = default;
  /// Local. `world` outlives this object.
  /// @throws std::bad_alloc; CudaError when the device has no room
  BulkMemory(const Communicator& world, std::size_t bytes);
  ~BulkMemory();
  BulkMemory(BulkMemory&& other) noexcept;
  BulkMemory& operator=(BulkMemory&& other) noexcept;

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  Device* device_ = nullptr;     // null: host memory
  std::vector<std::byte> host_;  // its owner there
  std::span<std::byte> bytes_;
};

}  // namespace vsr::comm
