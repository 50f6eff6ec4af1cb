// SPDX-License-Identifier: Apache-2.0
// Both sweeps on every instruction set of this machine against a plain loop: equal bits.
#include "optim/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "comm/error.hpp"
#include "optim/hash.hpp"
#include "tests/support/gradient_bytes.hpp"

namespace vsr::optim {
namespace {

using test::Bytes;
using test::gradients;
using test::isas;
using test::kTypes;
using test::put;
using test::Slices;
using test::value_at;

double block_norm(Norm norm, std::span<const double> sums) {
  std::array<double, 8> lane = {};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double magnitude = std::fabs(sums[i]);
    if (norm == Norm::two) lane[i % 8] += sums[i] * sums[i];
    if (norm == Norm::one) lane[i % 8] += magnitude;
    if (norm == Norm::infinity) lane[i % 8] = std::max(lane[i % 8], magnitude);
  }
  if (norm == Norm::infinity) return *std::max_element(lane.begin(), lane.end());
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

TEST(Kernels, EveryFp16PatternWidensAndRoundsAlike) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const Isa isa : isas()) {
    for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
      std::vector<float> widened(patterns.size());
      widen(dtype, std::as_bytes(std::span(patterns)), widened, isa);
      std::vector<std::uint16_t> rounded(patterns.size());
      round_to(dtype, widened, std::as_writable_bytes(std::span(rounded)), isa);
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        const float expected =
            dtype == Dtype::fp16 ? fp16_to_float(patterns[i]) : bf16_to_float(patterns[i]);
        ASSERT_EQ(bits_of(widened[i]), bits_of(expected)) << isa_name(isa) << ' ' << i;
        ASSERT_EQ(rounded[i],
                  dtype == Dtype::fp16 ? float_to_fp16(expected) : float_to_bf16(expected));
      }
    }
  }
}

TEST(Kernels, RandomBitsRoundAlike) {
  std::mt19937 random(7);
  std::vector<float> values(200003);
  for (float& value : values) value = float_of(static_cast<std::uint32_t>(random()));
  for (std::size_t i = 0; i < 100000; ++i)  // the range in which binary16 rounds
    values[i] = std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 64) - 8);
  for (const Isa isa : isas()) {
    for (const Dtype dtype : kTypes) {
      Bytes rounded(values.size() * element_bytes(dtype));
      round_to(dtype, values, rounded, isa);
      Bytes expected(rounded.size());
      for (std::size_t i = 0; i < values.size(); ++i) put(dtype, expected, i, values[i]);
      ASSERT_EQ(rounded, expected) << isa_name(isa) << ' ' << dtype_name(dtype);
    }
  }
}

TEST(Kernels, SumsAndNormsEqualThePlainLoop) {
  constexpr std::size_t kElements = 3 * 1024;
  for (const Dtype dtype : kTypes) {
    for (std::size_t count = 1; count <= 5; ++count) {
      std::vector<Bytes> leaves;
      for (std::size_t i = 0; i < count; ++i)
        leaves.push_back(gradients(dtype, kElements, static_cast<unsigned>(10 * count + i)));
      const Slices slices(leaves.begin(), leaves.end());
      std::vector<double> expected(kElements, 0.0);
      for (const Bytes& leaf : leaves)
        for (std::size_t i = 0; i < kElements; ++i) expected[i] += value_at(dtype, leaf, i);
      for (const Norm norm : {Norm::one, Norm::two, Norm::infinity}) {
        for (const Isa isa : isas()) {
          std::vector<double> sums(kElements, -1.0);
          std::vector<double> norms(3);
          const Census census = sum_leaves({.dtype = dtype,
                                            .slices = slices,
                                            .accumulator = sums,
                                            .norm = norm,
                                            .block_norms = norms},
                                           isa);
          EXPECT_EQ(census.first_element, -1);
          ASSERT_EQ(sums, expected);
          for (std::size_t block = 0; block < 3; ++block)
            ASSERT_EQ(norms[block],
                      block_norm(norm, std::span(expected).subspan(1024 * block, 1024)))
                << isa_name(isa) << ' ' << dtype_name(dtype) << ' ' << count;
        }
      }
    }
  }
}

TEST(Kernels, APNormIsTheRootOfTheSumOfPowers) {
  constexpr std::size_t kElements = 2 * 1024;
  for (const Dtype dtype : kTypes) {
    const Bytes leaf = gradients(dtype, kElements, 21);
    const Slices slices = {leaf};
    for (const double power : {0.5, 3.0}) {
      std::vector<double> first;
      for (const Isa isa : isas()) {
        std::vector<double> norms(2);
        sum_leaves({.dtype = dtype,
                    .slices = slices,
                    .norm = Norm::power,
                    .power = power,
                    .block_norms = norms},
                   isa);
        double sum = 0.0;
        for (std::size_t i = 0; i < kElements; ++i)
          sum += std::pow(std::fabs(static_cast<double>(value_at(dtype, leaf, i))), power);
        EXPECT_NEAR(fold_blocks(Norm::power, power, norms) / std::pow(sum, 1 / power), 1.0, 1e-12);
        if (first.empty()) first = norms;
        EXPECT_EQ(norms, first) << isa_name(isa);
      }
    }
  }
}

TEST(Kernels, RoundsOfLeavesGiveTheSumOfAllOfThem) {
  const Bytes first = gradients(Dtype::fp32, 1024, 1);
  const Bytes second = gradients(Dtype::fp32, 1024, 2);
  for (const Isa isa : isas()) {
    std::vector<double> together(1024), apart(1024);
    std::vector<double> norm(1), norm_apart(1);
    const Slices both = {first, second};
    sum_leaves({.dtype = Dtype::fp32, .slices = both, .accumulator = together, .block_norms = norm},
               isa);
    for (std::size_t round = 0; round < 2; ++round)
      sum_leaves({.dtype = Dtype::fp32,
                  .slices = std::span(both).subspan(round, 1),
                  .accumulator = apart,
                  .accumulate = round > 0,
                  .block_norms = norm_apart},
                 isa);
    EXPECT_EQ(together, apart);
    EXPECT_EQ(norm, norm_apart);
  }
}

TEST(Kernels, CensusCountsInputsEvenWhereTheirSumIsNoInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Dtype dtype : kTypes) {
    for (const Isa isa : isas()) {
      Bytes a = gradients(dtype, 2048, 3);
      Bytes b = gradients(dtype, 2048, 4);
      put(dtype, a, 1500, kInf);
      put(dtype, b, 1500, -kInf);  // the sum is NaN, the inputs are two infinities
      put(dtype, b, 1401, std::nanf(""));
      put(dtype, a, 2000, -kInf);
      const Slices slices = {a, b};
      std::vector<double> norms(2);
      const Census census =
          sum_leaves({.dtype = dtype, .slices = slices, .block_norms = norms}, isa);
      EXPECT_EQ(census.inf_count, 3);
      EXPECT_EQ(census.nan_count, 1);
      EXPECT_EQ(census.first_element, 1401);
      EXPECT_EQ(census.first_slice, 1);
    }
  }
}

TEST(Kernels, LargestFiniteGradientsAreNoOverflow) {
  for (const Dtype dtype : kTypes) {
    Bytes leaf(1024 * element_bytes(dtype));
    const float largest = dtype == Dtype::fp16   ? 65504.0F
                          : dtype == Dtype::bf16 ? bf16_to_float(0x7f7fU)
                                                 : std::numeric_limits<float>::max();
    for (std::size_t i = 0; i < 1024; ++i) put(dtype, leaf, i, largest);
    const Slices slices(7, leaf);
    for (const Isa isa : isas()) {
      std::vector<double> norms(1);
      const Census census =
          sum_leaves({.dtype = dtype, .slices = slices, .block_norms = norms}, isa);
      EXPECT_EQ(census.inf_count + census.nan_count, 0);
      // 128 additions a lane, each off by at most half a unit in the last place.
      const double expected = std::sqrt(1024.0 * 49.0) * largest;
      EXPECT_NEAR(fold_blocks(Norm::two, 2.0, norms), expected, expected * 64 * 0x1p-52);
    }
  }
}

TEST(Kernels, RoundedSumsRoundAtEachAddition) {
  constexpr std::size_t kElements = 1029;
  for (const Dtype dtype : kTypes) {
    const std::vector<Bytes> leaves = {gradients(dtype, kElements, 1),
                                       gradients(dtype, kElements, 2),
                                       gradients(dtype, kElements, 3)};
    Bytes expected = leaves[0];
    for (std::size_t leaf = 1; leaf < 3; ++leaf)
      for (std::size_t i = 0; i < kElements; ++i)
        put(dtype, expected, i, value_at(dtype, expected, i) + value_at(dtype, leaves[leaf], i));
    const Slices slices(leaves.begin(), leaves.end());
    for (const Isa isa : isas()) {
      Bytes sum(expected.size());
      add_rounded(dtype, slices, sum, isa);
      EXPECT_EQ(sum, expected) << isa_name(isa);
    }
  }
}

TEST(Kernels, FoldsBlocksInOrder) {
  const std::vector<double> blocks = {9.0, 16.0, 0.0};
  EXPECT_EQ(fold_blocks(Norm::two, 2.0, blocks), 5.0);
  EXPECT_EQ(fold_blocks(Norm::one, 2.0, blocks), 25.0);
  EXPECT_EQ(fold_blocks(Norm::infinity, 2.0, blocks), 16.0);
  EXPECT_EQ(fold_blocks(Norm::two, 2.0, {}), 0.0);
}

TEST(Kernels, LengthsThatDoNotMatchAreRefused) {
  Bytes leaf(1024 * 2 - 2);
  const Slices slices = {leaf};
  std::vector<double> norms(1);
  EXPECT_THROW(sum_leaves({.slices = slices, .block_norms = norms}, Isa::scalar), ArgumentError);
  std::vector<float> values(8);
  EXPECT_THROW(round_to(Dtype::fp16, values, leaf, Isa::scalar), ArgumentError);
  EXPECT_THROW(add_rounded(Dtype::fp16, {}, leaf, Isa::scalar), ArgumentError);
}

TEST(Hash, Xxh3OfTheEmptyInputAndOfPartsIsTheOneOfTheWhole) {
  // Published test values of XXH3 with seed 0 for an empty input.
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2U);
  EXPECT_EQ(Xxh3Stream().hex(), "99aa06d3014798d86001c324468d497f");
  const Bytes data = gradients(Dtype::fp32, 777, 5);
  Xxh3Stream whole, parts;
  whole.update(data);
  parts.update(std::span(data).first(100));
  parts.update(std::span(data).subspan(100));
  EXPECT_EQ(whole.hex(), parts.hex());
  EXPECT_EQ(whole.hex().size(), 32U);
}

}  // namespace
}  // namespace vsr::optim
