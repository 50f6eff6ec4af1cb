// SPDX-License-Identifier: Apache-2.0
#include "optim/cuda/device_memory.hpp"

#include <cuda_runtime_api.h>

#include <limits>

#include "comm/error.hpp"

namespace vsr::optim {
// A fault of an earlier kernel shows up here too; a checked call has reported it, or will.
void DeviceMemoryTraits::close(Type memory) noexcept {
  cudaFree(memory);
}

void CudaStreamTraits::close(Type stream) noexcept {
  cudaStreamDestroy(stream);
}

OwnedStream::OwnedStream() {
  CudaStream stream = nullptr;
  VSR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_ = comm::UniqueHandle<CudaStreamTraits>(stream);
}

void OwnedStream::synchronize() const {
  VSR_CUDA(cudaStreamSynchronize(get()));
}

void enqueue_upload(std::span<const std::byte> host, std::span<std::byte> device,
                    CudaStream stream) {
  VSR_CHECK(host.size() == device.size(), "host and device spans have different lengths");
  if (host.empty()) return;
  VSR_CUDA(
      cudaMemcpyAsync(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice, stream));
}

void enqueue_download(std::span<const std::byte> device, std::span<std::byte> host,
                      CudaStream stream) {
  VSR_CHECK(host.size() == device.size(), "host and device spans have different lengths");
  if (host.empty()) return;
  VSR_CUDA(
      cudaMemcpyAsync(host.data(), device.data(), host.size(), cudaMemcpyDeviceToHost, stream));
}

void enqueue_zero(std::span<std::byte> device, CudaStream stream) {
  if (device.empty()) return;
  VSR_CUDA(cudaMemsetAsync(device.data(), 0, device.size(), stream));
}

void* allocate_device_memory(std::size_t elements, std::size_t element_bytes) {
  VSR_CHECK(
      element_bytes == 0 || elements <= std::numeric_limits<std::size_t>::max() / element_bytes,
      "got " + std::to_string(elements) + " elements, more bytes than 64 bits count");
  if (elements == 0) return nullptr;
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, elements * element_bytes),
             "cudaMalloc of " + std::to_string(elements * element_bytes) + " bytes");
  return memory;
}

}  // namespace vsr::optim
