// SPDX-License-Identifier: Apache-2.0
// Conversions against formulas that share nothing with them (ldexp, nearest neighbour search), and
// the worked numbers of the reference.
#include "optim/arithmetic.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace vsr::optim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of binary16 bits by its definition.
double fp16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31U);
  const int mantissa = static_cast<int>(bits & 1023U);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

TEST(Fp16, EveryPatternWidensToItsDefinition) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = fp16_to_float(static_cast<std::uint16_t>(bits));
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude > 0x7c00U) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else if (magnitude == 0x7c00U) {
      ASSERT_EQ(value, (bits & 0x8000U) != 0 ? -kInf : kInf);
    } else {
      ASSERT_EQ(static_cast<double>(value), fp16_value(bits)) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
    }
  }
}

TEST(Fp16, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint16_t back = float_to_fp16(fp16_to_float(static_cast<std::uint16_t>(bits)));
    const bool is_signalling = (bits & 0x7c00U) == 0x7c00U && (bits & 0x03ffU) != 0;
    ASSERT_EQ(back, is_signalling ? (bits | 0x0200U) : bits);
  }
}

// Between each pair of neighbours: the midpoint goes to the even one, one step off to the nearer.
TEST(Fp16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (std::uint16_t low = 0; low < 0x7bffU; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const auto middle = static_cast<float>((fp16_value(low) + fp16_value(high)) / 2);
    ASSERT_EQ(float_to_fp16(middle), (low & 1U) == 0 ? low : high) << low;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, 0.0F)), low) << low;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, kInf)), high) << low;
    ASSERT_EQ(float_to_fp16(-middle), (0x8000U | ((low & 1U) == 0 ? low : high)));
  }
}

TEST(Fp16, EdgesOfTheReference) {
  EXPECT_EQ(fp16_to_float(float_to_fp16(65519.99F)), 65504.0F);
  EXPECT_EQ(fp16_to_float(float_to_fp16(65520.0F)), kInf);
  EXPECT_EQ(fp16_to_float(float_to_fp16(5.960464477539063e-08F)), 5.960464477539063e-08F);
  EXPECT_EQ(fp16_to_float(float_to_fp16(2.9802322387695312e-08F)), 0.0F);
  EXPECT_EQ(fp16_to_float(float_to_fp16(2.980530261993408e-08F)), 5.960464477539063e-08F);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::max()), 0x7c00U);
  EXPECT_EQ(float_to_fp16(-kInf), 0xfc00U);
  EXPECT_EQ(float_to_fp16(-0.0F), 0x8000U);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::denorm_min()), 0U);
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(std::nanf("")))));
}

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  for (std::uint32_t bits = 0; bits < 0x7f80U; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_float(low);
    ASSERT_EQ(float_to_bf16(value), low);
    const float middle = float_of((bits << 16) | 0x8000U);
    ASSERT_EQ(float_to_bf16(middle), (low & 1U) == 0 ? low : low + 1);
    ASSERT_EQ(float_to_bf16(float_of((bits << 16) | 0x7fffU)), low);
    ASSERT_EQ(float_to_bf16(float_of((bits << 16) | 0x8001U)), low + 1);
  }
  EXPECT_EQ(float_to_bf16(kInf), 0x7f80U);
  EXPECT_EQ(float_to_bf16(-kInf), 0xff80U);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(float_of(0x7f800001U)))));
}

TEST(Arithmetic, MastersKeepWhatFp16WeightsLose) {
  const float increment = 0.000244140625F;
  const float masters[] = {1.000244140625F, 1.00048828125F, 1.000732421875F, 1.0009765625F};
  const float views[] = {1.0F, 1.0F, 1.0009765625F, 1.0009765625F};
  float master = 1.0F;
  float weight = 1.0F;
  for (int i = 0; i < 4; ++i) {
    master += increment;
    weight = fp16_to_float(float_to_fp16(weight + increment));
    EXPECT_EQ(master, masters[i]);
    EXPECT_EQ(fp16_to_float(float_to_fp16(master)), views[i]);
    EXPECT_EQ(weight, 1.0F);
  }
}

TEST(Arithmetic, ClipAndUnscaleAreOneFactor) {
  const double norm = 5.0;
  const double coefficient = 1.0 / (norm + 1e-6);
  EXPECT_NEAR(coefficient, 0.19999996, 1e-9);
  EXPECT_NEAR(unscaled(3.0 * 1024.0, coefficient / 1024.0), 0.59999988F, 1e-7);
  EXPECT_NEAR(unscaled(4.0 * 1024.0, coefficient / 1024.0), 0.79999984F, 1e-7);
}

TEST(Arithmetic, NormTermsAreSquareMagnitudeAndMaximum) {
  EXPECT_EQ(add_square(1.0, -3.0), 10.0);
  EXPECT_EQ(add_magnitude(1.0, -3.0), 4.0);
  EXPECT_EQ(max_magnitude(1.0, -3.0), 3.0);
  EXPECT_EQ(max_magnitude(4.0, -3.0), 4.0);
}

}  // namespace
}  // namespace vsr::optim
