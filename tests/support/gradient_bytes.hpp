// SPDX-License-Identifier: Apache-2.0
// Gradients as the kernels get them: bytes of any element type, with values over many magnitudes,
// and their elements one by one.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "optim/kernels.hpp"

namespace vsr::optim::test {

using Bytes = std::vector<std::byte>;
using Slices = std::vector<std::span<const std::byte>>;
inline constexpr std::array kTypes = {Dtype::fp16, Dtype::bf16, Dtype::fp32};

/// What this machine can run.
inline std::vector<Isa> isas() {
  std::vector<Isa> supported;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (is_supported(isa)) supported.push_back(isa);
  return supported;
}

inline float value_at(Dtype dtype, std::span<const std::byte> bytes, std::size_t i) {
  std::uint16_t half = 0;
  float single = 0;
  if (dtype == Dtype::fp32) {
    std::memcpy(&single, bytes.data() + 4 * i, 4);
    return single;
  }
  std::memcpy(&half, bytes.data() + 2 * i, 2);
  return dtype == Dtype::fp16 ? fp16_to_float(half) : bf16_to_float(half);
}

inline void put(Dtype dtype, std::span<std::byte> bytes, std::size_t i, float value) {
  const std::uint16_t half = dtype == Dtype::fp16 ? float_to_fp16(value) : float_to_bf16(value);
  if (dtype == Dtype::fp32)
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  else
    std::memcpy(bytes.data() + 2 * i, &half, 2);
}

// Values over many magnitudes, as gradients are.
inline Bytes gradients(Dtype dtype, std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-20.0F, 12.0F);
  Bytes bytes(elements * element_bytes(dtype));
  for (std::size_t i = 0; i < elements; ++i)
    put(dtype, bytes, i, ((random() & 1U) != 0 ? 1.0F : -1.0F) * std::exp2(exponent(random)));
  return bytes;
}

/// Masters and moments of a shard.
struct ShardState {
  std::vector<float> master, moment1, moment2;
  friend bool operator==(const ShardState&, const ShardState&) = default;
};

/// Values in closed form, denormal second moments among them.
inline ShardState initial_state(std::size_t elements) {
  ShardState state;
  for (std::size_t i = 0; i < elements; ++i) {
    const auto x = static_cast<float>(i % 1000);
    state.master.push_back(x / 512.0F - 1.0F);
    state.moment1.push_back(1e-3F * (x - 300.0F));
    state.moment2.push_back(i % 41 == 0 ? 1e-41F : 1e-6F * x * x);
  }
  return state;
}

}  // namespace vsr::optim::test
