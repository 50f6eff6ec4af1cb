// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the first sweep and of conversions, written once. CPU loops apply it to scalars
// and to vectors of eight, a CUDA kernel applies the same source, and all of them give the same
// bits: every operation is an IEEE operation of its own (no contraction, no reciprocals). C++17,
// because nvcc reads it too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define VSR_HOST_DEVICE __host__ __device__ static inline
#else
// Internal linkage and forced inlining: a copy compiled for AVX-512 must never be the one that the
// linker picks for code that runs on an older machine.
#define VSR_HOST_DEVICE [[maybe_unused]] static inline __attribute__((always_inline))
#endif

namespace vsr::optim {

VSR_HOST_DEVICE std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

VSR_HOST_DEVICE float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// IEEE binary16 → binary32, exact; a NaN keeps sign and payload and becomes quiet.
VSR_HOST_DEVICE float fp16_to_float(std::uint16_t half) {
  const std::uint32_t sign = (static_cast<std::uint32_t>(half) & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  std::uint32_t bits = (magnitude << 13) + (112U << 23);
  if (magnitude < 0x0400U) bits = bits_of(static_cast<float>(magnitude) * 0x1p-24F);
  if (magnitude >= 0x7c00U) bits = 0x7f800000U | (magnitude << 13);
  if (magnitude > 0x7c00U) bits |= 0x00400000U;
  return float_of(bits | sign);
}

/// binary32 → IEEE binary16, to nearest even; 65520 and above become infinite; a NaN keeps sign and
/// the upper bits of its payload and becomes quiet.
VSR_HOST_DEVICE std::uint16_t float_to_fp16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = (magnitude - (112U << 23) + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  // Adding 0.5 puts the bits below 2^-14 at the end of the mantissa, rounded by the addition.
  if (magnitude < 0x38800000U) half = bits_of(float_of(magnitude) + 0.5F) - 0x3f000000U;
  if (magnitude >= 0x47800000U) half = 0x7c00U;
  if (magnitude > 0x7f800000U) half = 0x7e00U | ((magnitude >> 13) & 0x01ffU);
  return static_cast<std::uint16_t>(half | sign);
}

/// bfloat16 → binary32, exact.
VSR_HOST_DEVICE float bf16_to_float(std::uint16_t value) {
  return float_of(static_cast<std::uint32_t>(value) << 16);
}

/// Bits of binary32 → bits of bfloat16 in the low half, to nearest even; a NaN becomes quiet.
/// `U` is std::uint32_t or a vector of it.
template <typename U>
VSR_HOST_DEVICE U bf16_bits(const U& bits) {
  const U rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const U quiet = (bits >> 16) | 0x40U;
  return (bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded;
}

VSR_HOST_DEVICE std::uint16_t float_to_bf16(float value) {
  return static_cast<std::uint16_t>(bf16_bits(bits_of(value)));
}

/// The mean gradient that a rule sees: FP64 sum of leaves times (clip factor / (scale × leaves)),
/// rounded once.
VSR_HOST_DEVICE float unscaled(double sum, double factor) {
  return static_cast<float>(sum * factor);
}

/// What one gradient adds to a lane of its norm block.
template <typename D>
VSR_HOST_DEVICE D add_square(const D& lane, const D& sum) {
  return lane + sum * sum;
}
template <typename D>
VSR_HOST_DEVICE D add_magnitude(const D& lane, const D& sum) {
  return lane + (sum < 0.0 ? -sum : sum);
}
template <typename D>
VSR_HOST_DEVICE D max_magnitude(const D& lane, const D& sum) {
  const D magnitude = sum < 0.0 ? -sum : sum;
  return magnitude > lane ? magnitude : lane;
}

}  // namespace vsr::optim
