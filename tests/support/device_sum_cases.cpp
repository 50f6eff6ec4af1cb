// SPDX-License-Identifier: Apache-2.0
// The first sweep and the conversions on a device against the kernels of the CPU: equal bits, for
// every element type and norm.
#include "tests/support/device_cases.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace vsr::optim::test {
namespace {

struct SumResult {
  std::vector<double> sums, norms;
  Census census;
};

// Field by field, because a NaN differs from itself and payloads are the device's.
void expect_equal(const Census& a, const Census& b) {
  EXPECT_EQ(a.inf_count, b.inf_count);
  EXPECT_EQ(a.nan_count, b.nan_count);
  EXPECT_EQ(a.first_element, b.first_element);
  EXPECT_EQ(a.first_slice, b.first_slice);
}

SumResult sum_on_cpu(SumLeaves sweep, std::size_t blocks, bool keeps_sums) {
  SumResult result = {
      std::vector<double>(keeps_sums ? 1024 * blocks : 0, 0.25), std::vector<double>(blocks), {}};
  sweep.accumulator = result.sums;
  sweep.block_norms = result.norms;
  result.census = optim::sum_leaves(sweep, active_isa());
  return result;
}

SumResult sum_on_device(const SumLeaves& like, const Slices& slices, std::size_t blocks,
                        bool keeps_sums) {
  const Buffer<double> sums(std::vector<double>(keeps_sums ? 1024 * blocks : 0, 0.25));
  const Buffer<double> norms(std::vector<double>(blocks, -1.0));
  const Buffer<CensusRecord> census(std::vector<CensusRecord>(1));
  device_under_test().sum_leaves({.dtype = like.dtype,
                                  .slices = slices,
                                  .accumulator = sums.span(),
                                  .accumulate = like.accumulate,
                                  .norm = like.norm,
                                  .power = like.power,
                                  .block_norms = norms.span(),
                                  .census = census.span().first<1>()});
  return {sums.values(), norms.values(), census_of(census.values()[0])};
}

TEST(DeviceConversions, EveryPatternOfSixteenBitsWidensAndRoundsAlike) {
  std::vector<std::uint16_t> patterns(65536 + 3);  // the last group is no whole one
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const Bytes bytes(std::as_bytes(std::span(patterns)).begin(),
                    std::as_bytes(std::span(patterns)).end());
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    std::vector<float> expected(patterns.size());
    widen(dtype, bytes, expected, active_isa());
    const Buffer<std::byte> input(bytes);
    const Buffer<float> widened(std::vector<float>(patterns.size(), -1.0F));
    device_under_test().widen(dtype, input.span(), widened.span());
    EXPECT_TRUE(same_bits(widened.values(), expected)) << dtype_name(dtype);

    Bytes rounded_on_cpu(bytes.size());
    round_to(dtype, expected, rounded_on_cpu, active_isa());
    const Buffer<std::byte> rounded(Bytes(bytes.size(), std::byte{0x5a}));
    device_under_test().round_to(dtype, widened.span(), rounded.span());
    EXPECT_TRUE(same_bits(rounded.values(), rounded_on_cpu)) << dtype_name(dtype);
  }
}

TEST(DeviceConversions, RandomBitsRoundAlike) {
  std::mt19937 random(7);
  std::vector<float> values(200001);
  for (float& value : values) value = float_of(static_cast<std::uint32_t>(random()));
  for (std::size_t i = 0; i < 100000; ++i)  // the range in which binary16 rounds
    values[i] = std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 64) - 8);
  const Buffer<float> input(values);
  for (const Dtype dtype : kTypes) {
    Bytes expected(values.size() * element_bytes(dtype));
    round_to(dtype, values, expected, active_isa());
    const Buffer<std::byte> rounded{Bytes(expected.size())};
    device_under_test().round_to(dtype, input.span(), rounded.span());
    EXPECT_TRUE(same_bits(rounded.values(), expected)) << dtype_name(dtype);
  }
}

TEST(DeviceSums, SumsAndNormsEqualThoseOfTheCpu) {
  for (const Dtype dtype : kTypes) {
    for (const std::size_t blocks : {1U, 4U, 9U}) {
      for (const std::size_t count : {0U, 1U, 2U, 5U, 8U}) {
        const Leaves leaves(dtype, 1024 * blocks, count);
        for (const Norm norm : {Norm::one, Norm::two, Norm::infinity}) {
          for (const int sums : {0, 1, 2}) {  // none, stored, added to
            const SumLeaves sweep = {
                .dtype = dtype, .slices = leaves.slices, .accumulate = sums == 2, .norm = norm};
            const SumResult expected = sum_on_cpu(sweep, blocks, sums > 0);
            const SumResult got = sum_on_device(sweep, leaves.on_device, blocks, sums > 0);
            ASSERT_TRUE(same_bits(got.sums, expected.sums)) << dtype_name(dtype) << ' ' << count;
            ASSERT_TRUE(same_bits(got.norms, expected.norms)) << dtype_name(dtype) << ' ' << count;
            ASSERT_EQ(got.census.first_element, -1);
          }
        }
      }
    }
  }
}

// The bits of a p-norm depend on the pow of the machine; a few units in the last place is what
// such functions promise.
TEST(DeviceSums, APNormIsCloseToThatOfTheCpu) {
  for (const Dtype dtype : kTypes) {
    const Leaves leaves(dtype, 2048, 2);
    for (const double power : {0.5, 3.0}) {
      const SumLeaves sweep = {
          .dtype = dtype, .slices = leaves.slices, .norm = Norm::power, .power = power};
      const SumResult expected = sum_on_cpu(sweep, 2, false);
      const SumResult got = sum_on_device(sweep, leaves.on_device, 2, false);
      for (std::size_t block = 0; block < 2; ++block)
        EXPECT_NEAR(got.norms[block] / expected.norms[block], 1.0, 1e-14);
    }
  }
}

TEST(DeviceSums, MoreSlicesThanAKernelTakesGiveTheSumOfAll) {
  for (const Dtype dtype : kTypes) {
    Leaves leaves(dtype, 2048, 130);
    put(dtype, leaves.host[77], 1030, std::numeric_limits<float>::infinity());
    put(dtype, leaves.host[129], 1030, std::nanf(""));
    leaves.place();
    const SumLeaves sweep = {.dtype = dtype, .slices = leaves.slices};
    const SumResult expected = sum_on_cpu(sweep, 2, true);
    const SumResult got = sum_on_device(sweep, leaves.on_device, 2, true);
    EXPECT_EQ(got.norms[0], expected.norms[0]);
    EXPECT_TRUE(std::isnan(got.norms[1]));
    std::vector<double> sums = got.sums;
    sums[1030] = expected.sums[1030];  // NaN on both, with payloads of their own
    EXPECT_TRUE(std::isnan(got.sums[1030]));
    EXPECT_TRUE(same_bits(sums, expected.sums)) << dtype_name(dtype);
    expect_equal(got.census, {1, 1, 1030, 77});
  }
}

TEST(DeviceSums, TheCensusCountsInputsAsTheCpuDoes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Dtype dtype : kTypes) {
    for (const Norm norm : {Norm::one, Norm::two, Norm::infinity}) {
      Leaves leaves(dtype, 6 * 1024, 2);
      put(dtype, leaves.host[0], 1500, kInf);
      put(dtype, leaves.host[1], 1500, -kInf);  // the sum is NaN, the inputs are two infinities
      put(dtype, leaves.host[1], 1401, std::nanf(""));
      put(dtype, leaves.host[0], 6143, -kInf);
      for (std::size_t i = 4096; i < 5120; ++i) put(dtype, leaves.host[0], i, std::nanf(""));
      leaves.place();
      const SumLeaves sweep = {.dtype = dtype, .slices = leaves.slices, .norm = norm};
      const SumResult expected = sum_on_cpu(sweep, 6, false);
      const SumResult got = sum_on_device(sweep, leaves.on_device, 6, false);
      expect_equal(got.census, expected.census);
      expect_equal(got.census, {3, 1025, 1401, 1});
      EXPECT_EQ(got.norms[0], expected.norms[0]);
    }
  }
}

}  // namespace
}  // namespace vsr::optim::test
