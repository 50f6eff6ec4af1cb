// SPDX-License-Identifier: Apache-2.0
// Counter-based randomness: published answers, permutations by enumeration, and the sampler on top.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "comm/error.hpp"
#include "runtime/video/random.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::runtime {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The three known answers that the authors publish for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t all = 0xffffffff;
  EXPECT_EQ(philox4x32({all, all, all, all}, {all, all}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, SeedStreamAndCounterAllMatter) {
  const auto base = RandomStream(1, 2).words(3);
  EXPECT_EQ(base, RandomStream(1, 2).words(3));
  EXPECT_NE(base, RandomStream(2, 2).words(3));
  EXPECT_NE(base, RandomStream(1, 3).words(3));
  EXPECT_NE(base, RandomStream(1, 2).words(4));
  const std::uint64_t high = std::uint64_t{1} << 32;
  EXPECT_NE(base, RandomStream(1 + high, 2).words(3));
  EXPECT_NE(base, RandomStream(1, 2 + high).words(3));
  EXPECT_NE(base, RandomStream(1, 2).words(3 + high));
}

TEST(RandomStream, UniformHasMeanOneHalf) {
  const RandomStream stream(5, 0);
  double sum = 0.0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double value = stream.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  // Five standard deviations of the mean of uniform numbers.
  EXPECT_NEAR(sum / kDraws, 0.5, 5.0 / std::sqrt(12.0 * kDraws));
}

TEST(RandomStream, IndexBelowCoversTheRange) {
  EXPECT_EQ(index_below(0, 10), 0);
  EXPECT_EQ(index_below(0xffffffff, 10), 9);
  EXPECT_EQ(index_below(0x80000000, 10), 5);
  EXPECT_EQ(index_below(0xffffffff, 1), 0);
}

TEST(Permute, IsAPermutationForEverySmallSize) {
  for (std::int64_t n = 1; n <= 300; ++n) {
    std::vector<bool> seen(static_cast<std::size_t>(n), false);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t to = permute(99, n, i);
      ASSERT_GE(to, 0);
      ASSERT_LT(to, n);
      ASSERT_FALSE(seen[static_cast<std::size_t>(to)]) << "n " << n << ", twice " << to;
      seen[static_cast<std::size_t>(to)] = true;
    }
  }
}

TEST(Permute, IsAPermutationAtPowersOfTwoAndBesides) {
  for (const std::int64_t n : {1023, 1024, 1025, 4095, 4097, 10007}) {
    std::vector<std::int64_t> to(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) to[static_cast<std::size_t>(i)] = permute(7, n, i);
    std::sort(to.begin(), to.end());
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(to[static_cast<std::size_t>(i)], i);
  }
}

TEST(Permute, StaysInsideVeryLargeRanges) {
  const std::int64_t n = (std::int64_t{1} << 61) + 12345;
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 100; ++i) {
    const std::int64_t to = permute(3, n, n - 1 - i);
    EXPECT_GE(to, 0);
    EXPECT_LT(to, n);
    seen.insert(to);
  }
  EXPECT_EQ(seen.size(), 100U);
}

TEST(Permute, KeysChooseDifferentOrdersWithoutBias) {
  // Where element 0 of 8 goes, over many keys: each place 1/8 of the time.
  std::array<int, 8> counts{};
  constexpr int kKeys = 8000;
  for (int key = 0; key < kKeys; ++key) {
    ++counts[static_cast<std::size_t>(
        permute(derive_key(0, static_cast<std::uint64_t>(key)), 8, 0))];
  }
  const double sigma = std::sqrt(kKeys / 8.0 * (7.0 / 8.0));
  for (const int count : counts) EXPECT_NEAR(count, kKeys / 8.0, 5.0 * sigma);
}

TEST(Permute, RefusesWhatIsOutside) {
  EXPECT_THROW(permute(1, 10, 10), ArgumentError);
  EXPECT_THROW(permute(1, 10, -1), ArgumentError);
  EXPECT_THROW(permute(1, 0, 0), ArgumentError);
}

SamplerOptions small_sampler() {
  return {.seed = 4, .window_count = 10, .batch = 3, .leaves = 2};
}

TEST(Sampler, EveryEpochShowsEachWindowOnce) {
  const Sampler sampler(small_sampler());
  std::vector<std::int64_t> first_order;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < 10; ++i) {
      const SampleDraw draw = sampler.draw(epoch * 10 + i);
      EXPECT_EQ(draw.epoch, epoch);
      windows.push_back(draw.window);
    }
    if (epoch == 0) {
      first_order = windows;
    } else {
      EXPECT_NE(windows, first_order);
    }
    std::sort(windows.begin(), windows.end());
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(windows[static_cast<std::size_t>(i)], i);
  }
}

// 10 windows, 6 samples a step: the second step ends in the second epoch.
TEST(Sampler, StepsCarryOverIntoTheNextEpoch) {
  const Sampler sampler(small_sampler());
  std::vector<SampleDraw> draws;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (std::int64_t leaf = 0; leaf < 2; ++leaf) {
      const auto drawn = sampler.leaf(step, leaf);
      ASSERT_EQ(drawn.size(), 3U);
      draws.insert(draws.end(), drawn.begin(), drawn.end());
    }
  }
  ASSERT_EQ(draws.size(), 30U);
  for (std::size_t s = 0; s < draws.size(); ++s) {
    EXPECT_EQ(draws[s], sampler.draw(static_cast<std::int64_t>(s)));
    EXPECT_EQ(draws[s].epoch, static_cast<std::int64_t>(s) / 10);
  }
  EXPECT_EQ(sampler.leaf(1, 0).back().epoch, 0);
  EXPECT_EQ(sampler.leaf(1, 1).front().epoch, 0);
  EXPECT_EQ(sampler.leaf(1, 1).back().epoch, 1);
  EXPECT_DOUBLE_EQ(sampler.steps_per_epoch(), 10.0 / 6.0);
}

// The same positions whatever the shape of a step is: what a step takes depends on B * V alone.
TEST(Sampler, PositionFollowsTheFormula) {
  const Sampler sampler(small_sampler());
  EXPECT_EQ(sampler.position(7, 1, 2), (7 * 2 + 1) * 3 + 2);
  EXPECT_THROW(sampler.position(0, 2, 0), ArgumentError);
  EXPECT_THROW(sampler.position(0, 0, 3), ArgumentError);
  EXPECT_THROW(sampler.position(-1, 0, 0), ArgumentError);
}

TEST(Sampler, CropAndFlipsAreFreshInEachEpoch) {
  const Sampler sampler(small_sampler());
  std::set<std::uint32_t> crops;
  for (std::int64_t s = 0; s < 50; ++s) crops.insert(sampler.draw(s).crop_y);
  EXPECT_EQ(crops.size(), 50U);
}

TEST(Sampler, FlipsHappenHalfOfTheTimeAndCanBeSwitchedOff) {
  SamplerOptions options{.seed = 1, .window_count = 4000, .batch = 1, .leaves = 1};
  const Sampler on(options);
  options.augment = Augment::off;
  const Sampler off(options);
  std::array<int, 8> counts{};
  for (std::int64_t s = 0; s < 4000; ++s) {
    const SampleDraw draw = on.draw(s);
    ++counts[static_cast<std::size_t>(draw.flip_horizontal + 2 * draw.flip_vertical +
                                      4 * draw.transpose)];
    const SampleDraw plain = off.draw(s);
    EXPECT_FALSE(plain.flip_horizontal || plain.flip_vertical || plain.transpose);
    EXPECT_EQ(plain.window, draw.window);
    EXPECT_EQ(plain.crop_x, draw.crop_x);
  }
  const double sigma = std::sqrt(4000.0 / 8.0 * (7.0 / 8.0));
  for (const int count : counts) EXPECT_NEAR(count, 500.0, 5.0 * sigma);
}

// Resuming is a lookup: a position far away needs none of those before it.
TEST(Sampler, FarPositionsNeedNoHistory) {
  const Sampler sampler({.seed = 9, .window_count = 1'000'003, .batch = 2, .leaves = 8});
  const std::int64_t far = std::int64_t{1} << 50;
  EXPECT_EQ(sampler.draw(far), sampler.draw(far));
  EXPECT_EQ(sampler.draw(far).epoch, far / 1'000'003);
}

TEST(Sampler, RefusesEmptyShapes) {
  EXPECT_THROW(Sampler({.seed = 0, .window_count = 0, .batch = 1, .leaves = 1}), ArgumentError);
  EXPECT_THROW(Sampler({.seed = 0, .window_count = 5, .batch = 0, .leaves = 1}), ArgumentError);
  EXPECT_THROW(Sampler(small_sampler()).draw(-1), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
