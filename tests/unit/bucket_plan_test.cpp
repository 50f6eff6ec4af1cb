// SPDX-License-Identifier: Apache-2.0
// How gradients are cut into buckets, and when those are complete.
#include "optim/bucket_plan.hpp"

#include <gtest/gtest.h>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Segments of 5 and 2 blocks.
FlatLayout small_layout() {
  return FlatLayout(
      {{"a", {1000}}, {"b", {3000}}, {"c", {1500}, Dtype::fp32}, {"d", {900}}, {"none", {0}}});
}

TEST(BucketPlan, TheDefaultIsAQuarterWithinBounds) {
  EXPECT_EQ(default_bucket_bytes(0), kMiB);
  EXPECT_EQ(default_bucket_bytes(3 * kMiB), kMiB);
  EXPECT_EQ(default_bucket_bytes(14 * kMiB), 14 * kMiB / 4);
  EXPECT_EQ(default_bucket_bytes(800 * kMiB), 25 * kMiB);
}

TEST(BucketPlan, GoesFromTheEndToTheStartInWholeBlocks) {
  const FlatLayout layout = small_layout();
  ASSERT_EQ(layout.segments()[0].elements, 5 * 1024);
  ASSERT_EQ(layout.segments()[1].elements, 2 * 1024);
  const auto buckets = plan_buckets(layout, 4096 + 100);  // 2 blocks of FP16, 1 of FP32
  const std::vector<std::pair<std::size_t, comm::Interval>> expected = {
      {1, {1024, 2048}}, {1, {0, 1024}}, {0, {3072, 5120}}, {0, {1024, 3072}}, {0, {0, 1024}}};
  ASSERT_EQ(buckets.size(), expected.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(buckets[i].segment, expected[i].first) << i;
    EXPECT_EQ(buckets[i].elements, expected[i].second) << i;
  }
  EXPECT_EQ(plan_buckets(layout, 1).size(), 7U);  // a block is the least
  EXPECT_EQ(plan_buckets(layout, kMiB).size(), 2U);
  EXPECT_THROW(plan_buckets(layout, 0), ArgumentError);
}

TEST(BucketProgress, ABucketIsReadyWhenItAndAllBeforeItAre) {
  const FlatLayout layout = small_layout();
  const auto buckets = plan_buckets(layout, 4096);
  BucketProgress progress(layout, buckets);
  const std::vector<std::uint8_t> all(5, 1);
  progress.start(all);
  EXPECT_EQ(progress.ready(), 0U);
  progress.complete(3);  // d: in the last FP16 blocks, behind c
  EXPECT_EQ(progress.ready(), 0U);
  progress.complete(2);  // c fills both FP32 buckets
  EXPECT_EQ(progress.ready(), 2U);
  progress.complete(4);  // in no bucket
  EXPECT_EQ(progress.ready(), 2U);
  progress.complete(1);  // b: all but the first FP16 bucket, which a shares
  EXPECT_EQ(progress.ready(), 4U);
  progress.complete(0);
  EXPECT_EQ(progress.ready(), 5U);
}

TEST(BucketProgress, FrozenParametersAreNotWaitedFor) {
  const FlatLayout layout = small_layout();
  const auto buckets = plan_buckets(layout, 4096);
  BucketProgress progress(layout, buckets);
  progress.start(std::vector<std::uint8_t>{1, 1, 0, 1, 1});
  progress.complete(3);
  // What lies before the first trainable one has only zeros, and is not counted before a gradient.
  EXPECT_EQ(progress.ready(), 2U);
  progress.start(std::vector<std::uint8_t>(5, 1));  // a new pass starts anew
  EXPECT_EQ(progress.ready(), 0U);
}

TEST(BucketProgress, ASecondGradientInAPassIsRefused) {
  const FlatLayout layout = small_layout();
  const auto buckets = plan_buckets(layout, 4096);
  BucketProgress progress(layout, buckets);
  progress.start(std::vector<std::uint8_t>(5, 1));
  progress.complete(2);
  EXPECT_THROW(progress.complete(2), ArgumentError);
}

}  // namespace
}  // namespace vsr::optim
