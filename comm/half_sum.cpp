// SPDX-License-Identifier: Apache-2.0
#include "comm/half_sum.hpp"

#include <atomic>
#include <bit>
#include <limits>
#include <string>

#include "comm/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define VSR_HAS_AVX2_LOOP 1
#endif

namespace vsr::comm {
namespace {

constexpr std::uint16_t kFp16Nan = 0x7e00;
constexpr std::uint16_t kBf16Nan = 0x7fc0;
constexpr std::uint32_t kFloatInf = 0x7f800000;
constexpr std::uint32_t kFloatMagnitude = 0x7fffffff;

std::uint16_t add_one_fp16(std::uint16_t a, std::uint16_t b) noexcept {
  return float_to_fp16(fp16_to_float(a) + fp16_to_float(b));
}

std::uint16_t add_one_bf16(std::uint16_t a, std::uint16_t b) noexcept {
  return float_to_bf16(bf16_to_float(a) + bf16_to_float(b));
}

using AddLoop = void (*)(std::span<const std::uint16_t>, std::span<std::uint16_t>);

void add_fp16_scalar(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = add_one_fp16(sum[i], values[i]);
}

void add_bf16_scalar(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = add_one_bf16(sum[i], values[i]);
}

#ifdef VSR_HAS_AVX2_LOOP
constexpr std::size_t kLanes = 8;

__attribute__((target("avx2,f16c"))) __m128i load_lanes(const std::uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

__attribute__((target("avx2,f16c"))) void store_lanes(std::uint16_t* to, __m128i bits) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
}

__attribute__((target("avx2,f16c"))) void add_fp16_avx2(std::span<const std::uint16_t> values,
                                                        std::span<std::uint16_t> sum) {
  const __m256 nan = _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN());
  std::size_t i = 0;
  for (; i + kLanes <= sum.size(); i += kLanes) {
    const __m256 a = _mm256_cvtph_ps(load_lanes(&sum[i]));
    const __m256 b = _mm256_cvtph_ps(load_lanes(&values[i]));
    const __m256 total = _mm256_add_ps(a, b);
    const __m256 is_nan = _mm256_cmp_ps(total, total, _CMP_UNORD_Q);
    const __m256 clean = _mm256_blendv_ps(total, nan, is_nan);
    store_lanes(&sum[i], _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  add_fp16_scalar(values.subspan(i), sum.subspan(i));
}

__attribute__((target("avx2,f16c"))) __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

__attribute__((target("avx2,f16c"))) void add_bf16_avx2(std::span<const std::uint16_t> values,
                                                        std::span<std::uint16_t> sum) {
  const __m256i just_below_half = _mm256_set1_epi32(0x7fff);
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i nan = _mm256_set1_epi32(kBf16Nan);
  std::size_t i = 0;
  for (; i + kLanes <= sum.size(); i += kLanes) {
    const __m256 total =
        _mm256_add_ps(widen_bf16(load_lanes(&sum[i])), widen_bf16(load_lanes(&values[i])));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(total, total, _CMP_UNORD_Q));
    const __m256i bits = _mm256_castps_si256(total);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(just_below_half, is_odd));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), nan, is_nan);
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);  // within each half
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0b1000);
    store_lanes(&sum[i], _mm256_castsi256_si128(ordered));
  }
  add_bf16_scalar(values.subspan(i), sum.subspan(i));
}

bool has_avx2_loop() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}
#else
constexpr AddLoop add_fp16_avx2 = add_fp16_scalar;
constexpr AddLoop add_bf16_avx2 = add_bf16_scalar;

bool has_avx2_loop() {
  return false;
}
#endif

std::atomic<bool>& is_avx2_chosen() {
  static std::atomic<bool> chosen(has_avx2_loop());
  return chosen;
}

void check_sizes(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum) {
  VSR_CHECK(values.size() == sum.size(), "got " + std::to_string(values.size()) + " values for " +
                                             std::to_string(sum.size()) + " sums");
}

}  // namespace

float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) {
    const std::uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | kFloatInf | (magnitude & 0x3ffu) << 13 | quiet);
  }
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  // Subnormal: a whole number of 2^-24, exact in FP32 however small.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

std::uint16_t float_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & kFloatMagnitude;
  if (magnitude > kFloatInf) return kFp16Nan;
  // From 65520 on, half way between the largest finite value and 2^16, everything rounds to inf.
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {
    const std::uint32_t is_odd = magnitude >> 13 & 1u;
    const std::uint32_t rounded = magnitude - (112u << 23) + 0xfffu + is_odd;
    return static_cast<std::uint16_t>(sign | rounded >> 13);
  }
  // Subnormal: the unit in the last place of 0.5 is 2^-24, so this addition rounds as FP16 does.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
}

float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kFloatMagnitude) > kFloatInf) return kBf16Nan;
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void add_fp16(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum) {
  check_sizes(values, sum);
  const AddLoop loop = is_avx2_chosen() ? add_fp16_avx2 : add_fp16_scalar;
  loop(values, sum);
}

void add_bf16(std::span<const std::uint16_t> values, std::span<std::uint16_t> sum) {
  check_sizes(values, sum);
  const AddLoop loop = is_avx2_chosen() ? add_bf16_avx2 : add_bf16_scalar;
  loop(values, sum);
}

void choose_half_loop(HalfLoop loop) {
  if (loop == HalfLoop::avx2 && !has_avx2_loop()) {
    throw ConfigurationError("this processor lacks AVX2 or F16C; use the scalar loop");
  }
  is_avx2_chosen() = loop != HalfLoop::scalar && has_avx2_loop();
}

std::string_view half_loop() noexcept {
  return is_avx2_chosen() ? "avx2" : "scalar";
}

}  // namespace vsr::comm
