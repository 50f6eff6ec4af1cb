// SPDX-License-Identifier: Apache-2.0
#include "comm/bulk_memory.hpp"

#include <utility>

#include "comm/communicator.hpp"
#include "comm/device/device.hpp"

namespace vsr::comm {

BulkMemory::BulkMemory(const Communicator& world, std::size_t bytes)
    : device_(world.bulk_device()) {
  if (bytes == 0) return;
  if (device_ != nullptr) {
    bytes_ = {device_->allocate(bytes), bytes};
    return;
  }
  host_.resize(bytes);
  bytes_ = host_;
}

BulkMemory::~BulkMemory() {
  if (device_ != nullptr && !bytes_.empty()) device_->free(bytes_.data());
}

BulkMemory::BulkMemory(BulkMemory&& other) noexcept
    : device_(other.device_),
      host_(std::move(other.host_)),
      bytes_(std::exchange(other.bytes_, {})) {}

BulkMemory& BulkMemory::operator=(BulkMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(host_, other.host_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace vsr::comm
