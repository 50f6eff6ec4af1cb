// SPDX-License-Identifier: Apache-2.0
// Owners of what the device kernels need from the CUDA runtime: memory and a stream.
// Free of CUDA headers, so that their users need none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "comm/device/cuda_check.hpp"
#include "comm/unique_handle.hpp"
#include "optim/cuda/device_kernels.hpp"

namespace vsr::optim {

using comm::check_cuda;

struct DeviceMemoryTraits {
  using Type = void*;
  static Type null() noexcept { return nullptr; }
  static void close(Type memory) noexcept;
};
struct CudaStreamTraits {
  using Type = CudaStream;
  static Type null() noexcept { return nullptr; }
  static void close(Type stream) noexcept;
};

/// A stream of the current device that does not wait for the default stream.
class OwnedStream {
 public:
  /// @throws CudaError
  OwnedStream();
  CudaStream get() const noexcept { return stream_.get(); }
  /// Wait until the device has done all that was put on the stream.
  /// @throws CudaError, also for a fault of a kernel that ran on it
  void synchronize() const;

 private:
  comm::UniqueHandle<CudaStreamTraits> stream_;
};

/// Copies between host and device, and zeroes; ordered on `stream`. Lengths in bytes are equal.
/// Pageable host memory must not be changed or freed before the stream has passed the copy.
/// @throws ArgumentError when lengths differ; CudaError
void enqueue_upload(std::span<const std::byte> host, std::span<std::byte> device,
                    CudaStream stream);
void enqueue_download(std::span<const std::byte> device, std::span<std::byte> host,
                      CudaStream stream);
void enqueue_zero(std::span<std::byte> device, CudaStream stream);

/// Memory of the current device; null for none.
/// @throws CudaError; ArgumentError when the size does not fit into 64 bits
void* allocate_device_memory(std::size_t elements, std::size_t element_bytes);

/// `elements` values of a plain type in the memory of the current device, not initialised.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  /// @throws CudaError, naming the size, when there is no room
  explicit DeviceArray(std::size_t elements)
      : memory_(allocate_device_memory(elements, sizeof(T))), elements_(elements) {}

  std::span<T> span() const noexcept { return {static_cast<T*>(memory_.get()), elements_}; }

 private:
  comm::UniqueHandle<DeviceMemoryTraits> memory_;
  std::size_t elements_ = 0;
};

}  // namespace vsr::optim
