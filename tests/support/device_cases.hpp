// SPDX-License-Identifier: Apache-2.0
// What the cases of device_cases.cpp ask of a device: a GPU, or plain loops that play one. The same
// cases run on both, so what a GPU has to show is what CI already saw of the same source.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "optim/cuda/device_kernels.hpp"

namespace vsr::optim::test {

class Device {
 public:
  virtual ~Device() = default;

  /// Memory that lives as long as the pointer, at a multiple of 16 bytes.
  virtual std::shared_ptr<std::byte> allocate(std::size_t size_bytes) = 0;
  virtual void upload(std::span<const std::byte> host, std::span<std::byte> device) = 0;
  /// After all work before it is done.
  virtual void download(std::span<const std::byte> device, std::span<std::byte> host) = 0;

  virtual void sum_leaves(const DeviceSum& sweep) = 0;
  virtual void adam(const DeviceShard& shard, std::span<const AdamPiece> pieces) = 0;
  virtual void sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces) = 0;
  virtual void lamb_moments(const DeviceShard& shard, std::span<const LambPiece> pieces,
                            std::span<LambBlock> blocks) = 0;
  virtual void lamb_apply(const DeviceShard& shard, std::span<const LambPiece> pieces) = 0;
  virtual void mean_gradient(const DeviceShard& shard, std::span<const comm::Interval> pieces,
                             std::span<float> gradient) = 0;
  virtual void ema(std::span<const float> master, std::span<float> ema, double decay) = 0;
  virtual void round_to(Dtype dtype, std::span<const float> values,
                        std::span<std::byte> rounded) = 0;
  virtual void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened) = 0;
};

/// The device of this test program.
Device& device_under_test();

/// Values on the device under test.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::span<const T> values) : elements_(values.size()) {
    memory_ = device_under_test().allocate(values.size_bytes());
    device_under_test().upload(std::as_bytes(values), std::as_writable_bytes(span()));
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(std::span<const T>(values)) {}

  std::span<T> span() const { return {reinterpret_cast<T*>(memory_.get()), elements_}; }
  std::vector<T> values() const {
    std::vector<T> host(elements_);
    device_under_test().download(std::as_bytes(span()), std::as_writable_bytes(std::span(host)));
    return host;
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t elements_;
};

/// Equal as bytes: zeros have signs, and a NaN equals itself.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace vsr::optim::test
