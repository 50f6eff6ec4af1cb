// SPDX-License-Identifier: Apache-2.0
// What device_sum_cases.cpp and device_rule_cases.cpp ask of a device: a GPU, or plain loops that
// play one. The same cases run on both, so what a GPU has to show is what CI already saw of the
// same source.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "optim/cuda/device_kernels.hpp"
#include "tests/support/gradient_bytes.hpp"

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

/// Gradients of many magnitudes, with zeros of both signs and the smallest values of their type.
inline Bytes leaf_of(Dtype dtype, std::size_t elements, unsigned seed) {
  Bytes leaf = gradients(dtype, elements, seed);
  const float smallest = dtype == Dtype::fp16 ? 0x1p-24F : 1e-40F;
  for (std::size_t i = seed % 7; i < elements; i += 37)
    put(dtype, leaf, i, i % 4 == 0 ? 0.0F : i % 4 == 1 ? -0.0F : i % 4 == 2 ? smallest : -smallest);
  return leaf;
}

/// Leaves on the host and on the device.
struct Leaves {
  Leaves(Dtype dtype, std::size_t elements, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      host.push_back(leaf_of(dtype, elements, static_cast<unsigned>(100 * count + i)));
    place();
  }
  // Once the leaves are as the case wants them.
  void place() {
    buffers.clear();
    slices.assign(host.begin(), host.end());
    on_device.clear();
    for (const Bytes& leaf : host) {
      buffers.emplace_back(leaf);
      on_device.push_back(buffers.back().span());
    }
  }
  std::vector<Bytes> host;
  Slices slices;
  std::vector<Buffer<std::byte>> buffers;
  Slices on_device;
};

}  // namespace vsr::optim::test
