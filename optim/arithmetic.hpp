// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the step, written once. CPU loops apply it to scalars and to vectors of eight,
// a CUDA kernel applies the same source, and all of them give the same bits: every operation is an
// IEEE operation of its own (no contraction, no reciprocals). C++17, because nvcc reads it too.
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

/// Functions that differ in form between a scalar and a vector of them.
struct ScalarMath {
  VSR_HOST_DEVICE float square_root(float value) { return std::sqrt(value); }
};

/// The mean gradient that Adam sees: FP64 sum of leaves times (clip factor / (scale × leaves)),
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

/// How weight decay enters Adam.
enum class WeightDecay : std::uint8_t { none, into_gradient /*Adam*/, decoupled /*AdamW*/ };

/// Adam's constants for one parameter and one step, as the FP32 loop uses them.
struct AdamCoefficients {
  float beta1 = 0.9F;
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.999F;
  float one_minus_beta2 = 0.001F;
  float negative_step_size = 0.0F;     ///< -lr / (1 - beta1^t)
  float sqrt_bias_correction2 = 1.0F;  ///< sqrt(1 - beta2^t)
  float eps = 1e-8F;
  float weight_decay = 0.0F;  ///< into_gradient: the decay; decoupled: 1 - lr × decay
};

/// One Adam step on an element or a vector of them, operation by operation in the order of
/// torch::optim::Adam and AdamW.
template <WeightDecay kDecay, typename Math, typename F>
VSR_HOST_DEVICE void adam_step(F& master, F& exp_avg, F& exp_avg_sq, F gradient,
                               const AdamCoefficients& c) {
  if constexpr (kDecay == WeightDecay::into_gradient) gradient = gradient + master * c.weight_decay;
  if constexpr (kDecay == WeightDecay::decoupled) master = master * c.weight_decay;
  exp_avg = exp_avg * c.beta1 + gradient * c.one_minus_beta1;
  exp_avg_sq = exp_avg_sq * c.beta2 + (gradient * c.one_minus_beta2) * gradient;
  const F denominator = Math::square_root(exp_avg_sq) / c.sqrt_bias_correction2 + c.eps;
  master = master + (exp_avg * c.negative_step_size) / denominator;
}

/// Adam's options in the precision users give them in.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = false;
};

/// Bias corrections in FP64 from the running products beta^t, each constant then rounded to FP32.
VSR_HOST_DEVICE AdamCoefficients adam_coefficients(const AdamOptions& o, double beta1_power,
                                                   double beta2_power) {
  AdamCoefficients c;
  c.beta1 = static_cast<float>(o.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - o.beta2);
  c.negative_step_size = static_cast<float>(-(o.lr / (1.0 - beta1_power)));
  c.sqrt_bias_correction2 = static_cast<float>(std::sqrt(1.0 - beta2_power));
  c.eps = static_cast<float>(o.eps);
  c.weight_decay = static_cast<float>(o.decoupled ? 1.0 - o.lr * o.weight_decay : o.weight_decay);
  return c;
}

VSR_HOST_DEVICE WeightDecay weight_decay_of(const AdamOptions& o) {
  if (o.weight_decay == 0.0) return WeightDecay::none;
  return o.decoupled ? WeightDecay::decoupled : WeightDecay::into_gradient;
}

}  // namespace vsr::optim
