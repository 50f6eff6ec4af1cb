// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>

#include "comm/device/cuda_check.hpp"
#include "comm/device/device.hpp"
#include "comm/error.hpp"

namespace vsr::comm {
namespace {

const char* advice_for(cudaError_t error) noexcept {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; use a smaller batch, more ranks, or end what else uses the device (nvidia-smi)";
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "; a GPU and a driver for CUDA 13 are needed (nvidia-smi), or train on the CPU";
    case cudaErrorNoKernelImageForDevice:
      return "; build with -DCMAKE_CUDA_ARCHITECTURES naming this device";
    default:
      return "";
  }
}

cudaStream_t cuda(DeviceStream stream) noexcept {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t cuda(DeviceEvent event) noexcept {
  return reinterpret_cast<cudaEvent_t>(event);
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    VSR_CUDA(cudaGetDeviceProperties(&properties_, index));
  }

  std::string name() const override {
    return std::string(properties_.name) + " (device " + std::to_string(index_) + ")";
  }
  std::string uuid() const override {
    std::string text = "GPU-";
    for (const char byte : properties_.uuid.bytes) {
      std::array<char, 3> digits{};
      std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(byte));
      text += digits.data();
    }
    return text;
  }
  // What cudaMalloc gives is the GPU's alone, also where the GPU reads the host's page tables.
  bool is_host_accessible() const noexcept override { return false; }
  void make_current() override { VSR_CUDA(cudaSetDevice(index_)); }

  std::byte* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
    check_cuda(cudaMemset(memory, 0, bytes), "cudaMemset of " + std::to_string(bytes) + " bytes");
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) noexcept override { cudaFree(memory); }

  DeviceStream work_stream() const noexcept override {
    return reinterpret_cast<DeviceStream>(cudaStreamPerThread);
  }
  DeviceStream make_stream() override {
    cudaStream_t stream = nullptr;
    VSR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return reinterpret_cast<DeviceStream>(stream);
  }
  void destroy(DeviceStream stream) noexcept override { cudaStreamDestroy(cuda(stream)); }
  DeviceEvent make_event() override {
    cudaEvent_t event = nullptr;
    VSR_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return reinterpret_cast<DeviceEvent>(event);
  }
  void destroy(DeviceEvent event) noexcept override { cudaEventDestroy(cuda(event)); }
  void record(DeviceEvent event, DeviceStream stream) override {
    VSR_CUDA(cudaEventRecord(cuda(event), cuda(stream)));
  }
  void wait(DeviceStream stream, DeviceEvent event) override {
    VSR_CUDA(cudaStreamWaitEvent(cuda(stream), cuda(event), 0));
  }
  bool is_done(DeviceEvent event) override {
    const cudaError_t state = cudaEventQuery(cuda(event));
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "work on the stream of the collectives");
    return true;
  }
  void copy(std::span<const std::byte> from, std::span<std::byte> to,
            DeviceStream stream) override {
    VSR_CHECK(from.size() == to.size(), "a copy between spans of different lengths");
    VSR_CUDA(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice,
                             cuda(stream)));
  }

 private:
  int index_;
  cudaDeviceProp properties_{};
};

}  // namespace

void check_cuda(int code, const std::string& what, std::source_location where) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  int device = -1;
  const bool has_device = cudaGetDevice(&device) == cudaSuccess;
  cudaGetLastError();  // reported here; the next call starts clean
  throw CudaError(what + " failed" +
                      (has_device ? " on CUDA device " + std::to_string(device) : std::string()) +
                      ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")" +
                      advice_for(error),
                  where);
}

VisibleDevices find_devices() {
  VisibleDevices devices;
  const cudaError_t error = cudaGetDeviceCount(&devices.count);
  if (error == cudaSuccess && devices.count > 0) return devices;
  cudaGetLastError();
  devices.count = 0;
  devices.reason = error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
  return devices;
}

std::unique_ptr<Device> open_device(int index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace vsr::comm
