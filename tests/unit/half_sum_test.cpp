// SPDX-License-Identifier: Apache-2.0
// Conversions and additions against an oracle that knows nothing of bit tricks: the sorted table of
// all values and a search for the nearest one.
#include "comm/half_sum.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

// A 16-bit format by its definition: sign, exponent, fraction.
struct Format {
  int fraction_bits;
  int exponent_bits;
  std::uint16_t nan;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double value(std::uint32_t bits) const {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
    if (exponent == (1 << exponent_bits) - 1) {
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    }
    const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    return sign * std::ldexp(whole, std::max(exponent, 1) - bias() - fraction_bits);
  }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1u << exponent_bits) - 1) << fraction_bits);
  }
};

constexpr Format kFp16{10, 5, 0x7e00};
constexpr Format kBf16{7, 8, 0x7fc0};

// Nearest value, ties to the even pattern. Patterns of one sign are sorted by value; inf stands for
// the value that would follow the largest finite one.
std::uint16_t nearest(const Format& format, double exact) {
  if (std::isnan(exact)) return format.nan;
  const std::uint16_t sign = std::signbit(exact) ? 0x8000 : 0;
  const double magnitude = std::fabs(exact);
  const std::uint16_t inf = format.infinity();
  if (std::isinf(exact)) return sign | inf;
  const auto at = [&](std::uint16_t bits) {
    return bits < inf
               ? format.value(bits)
               : 2 * format.value(static_cast<std::uint16_t>(inf - (1 << format.fraction_bits)));
  };
  std::uint16_t low = 0;
  std::uint16_t high = inf;
  if (magnitude >= at(inf)) return sign | inf;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (at(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - at(low);
  const double above = at(high) - magnitude;
  const bool takes_low = below < above || (below == above && low % 2 == 0);
  return static_cast<std::uint16_t>(sign | (takes_low ? low : high));
}

bool same_value(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

TEST(HalfConversion, AllPatternsHaveTheirValueAndComeBack) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    ASSERT_TRUE(same_value(fp16_to_float(bits), kFp16.value(bits))) << std::hex << pattern;
    ASSERT_TRUE(same_value(bf16_to_float(bits), kBf16.value(bits))) << std::hex << pattern;
    const bool is_fp16_nan = std::isnan(kFp16.value(bits));
    const bool is_bf16_nan = std::isnan(kBf16.value(bits));
    ASSERT_EQ(float_to_fp16(fp16_to_float(bits)), is_fp16_nan ? 0x7e00 : bits);
    ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), is_bf16_nan ? 0x7fc0 : bits);
  }
}

TEST(HalfConversion, RoundsBetweenAllNeighboursToNearestEven) {
  for (std::uint32_t pattern = 0; pattern < 0x7c00; ++pattern) {
    const float low = fp16_to_float(static_cast<std::uint16_t>(pattern));
    const float high =
        pattern == 0x7bff ? 65536.0f : fp16_to_float(static_cast<std::uint16_t>(pattern + 1));
    const float half_way = (low + high) / 2;
    for (const float value :
         {half_way, std::nextafterf(half_way, 0.0f), std::nextafterf(half_way, 1e9f)}) {
      ASSERT_EQ(float_to_fp16(value), nearest(kFp16, value)) << value;
      ASSERT_EQ(float_to_fp16(-value), nearest(kFp16, -value)) << -value;
    }
  }
  for (std::uint32_t pattern = 0; pattern < 0x7f7f; ++pattern) {
    const std::uint32_t half_way = (pattern << 16) + 0x8000u;
    for (const std::uint32_t bits : {half_way - 1, half_way, half_way + 1}) {
      const auto value = std::bit_cast<float>(bits);
      ASSERT_EQ(float_to_bf16(value), nearest(kBf16, value)) << value;
    }
  }
}

TEST(HalfConversion, KnownValues) {
  EXPECT_EQ(float_to_fp16(1.0f), 0x3c00);
  EXPECT_EQ(float_to_fp16(-2.0f), 0xc000);
  EXPECT_EQ(float_to_fp16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_fp16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_fp16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(float_to_fp16(-0x1p-30f), 0x8000);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

// Parameter: the loop that adds.
class HalfAdditionTest : public testing::TestWithParam<HalfLoop> {
 protected:
  void SetUp() override {
    try {
      choose_half_loop(GetParam());
    } catch (const ConfigurationError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override { choose_half_loop(HalfLoop::automatic); }
};

INSTANTIATE_TEST_SUITE_P(Loops, HalfAdditionTest, testing::Values(HalfLoop::scalar, HalfLoop::avx2),
                         [](const auto& instance) {
                           return instance.param == HalfLoop::scalar ? std::string("scalar")
                                                                     : std::string("avx2");
                         });

// All 65536 patterns plus one partner each; the sum of two values is exact in double.
void add_all_patterns(const Format& format, std::uint16_t partner,
                      void (*add)(std::span<const std::uint16_t>, std::span<std::uint16_t>)) {
  std::vector<std::uint16_t> sums(65536 + 3);  // the last three run through the rest of the loop
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<std::uint16_t>(i);
  const std::vector<std::uint16_t> partners(sums.size(), partner);
  add(partners, sums);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double a = format.value(static_cast<std::uint16_t>(i));
    const double b = format.value(partner);
    // BF16 spans more than a double holds: only the FP32 addition is exact by definition.
    const double exact = &format == &kFp16 ? a + b : static_cast<float>(a) + static_cast<float>(b);
    ASSERT_EQ(sums[i], nearest(format, exact)) << std::hex << i << " + " << partner;
  }
}

TEST_P(HalfAdditionTest, AllFp16PatternsWithChosenPartners) {
  for (const std::uint16_t partner : {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc01,
                                      0x1234, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe00}) {
    add_all_patterns(kFp16, partner, add_fp16);
  }
}

TEST_P(HalfAdditionTest, AllBf16PatternsWithChosenPartners) {
  for (const std::uint16_t partner : {0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x3f80, 0xbf81,
                                      0x1234, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffc0}) {
    add_all_patterns(kBf16, partner, add_bf16);
  }
}

TEST_P(HalfAdditionTest, OrderOfOperandsDoesNotShow) {
  std::vector<std::uint16_t> a, b;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    a.push_back(static_cast<std::uint16_t>(i));
    b.push_back(static_cast<std::uint16_t>(i * 40503u + 12345u));
  }
  std::vector<std::uint16_t> ab = a, ba = b;
  add_fp16(b, ab);
  add_fp16(a, ba);
  EXPECT_EQ(ab, ba);
  ab = a;
  ba = b;
  add_bf16(b, ab);
  add_bf16(a, ba);
  EXPECT_EQ(ab, ba);
}

TEST_P(HalfAdditionTest, EverySizeUpToAFewLanes) {
  for (std::size_t size = 0; size <= 35; ++size) {
    std::vector<std::uint16_t> sums(size + 1, 0x3c00);
    const std::vector<std::uint16_t> ones(size, 0x3c00);
    add_fp16(ones, std::span<std::uint16_t>(sums).first(size));
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(sums[i], 0x4000);
    ASSERT_EQ(sums[size], 0x3c00) << "wrote behind the end";
  }
}

TEST_P(HalfAdditionTest, NamesItselfAndRefusesDifferentSizes) {
  EXPECT_EQ(half_loop(), GetParam() == HalfLoop::scalar ? "scalar" : "avx2");
  std::vector<std::uint16_t> three(3), four(4);
  EXPECT_THROW(add_fp16(three, four), ArgumentError);
  EXPECT_THROW(add_bf16(four, three), ArgumentError);
}

}  // namespace
}  // namespace vsr::comm
