// SPDX-License-Identifier: Apache-2.0
// The layout against a plain recount: alignment, padding, pieces of any rank, logical order.
#include "optim/flat_layout.hpp"

#include <gtest/gtest.h>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

std::vector<ParameterSpec> mixed() {
  return {{"a", {5}, Dtype::fp16, true},       {"b", {8, 8}, Dtype::fp16, true},
          {"norm", {3}, Dtype::fp32, true},    {"c", {30, 100}, Dtype::fp16, true},
          {"none", {0, 7}, Dtype::fp16, true}, {"d", {1}, Dtype::fp16, false},
          {"scalar", {}, Dtype::bf16, true}};
}

TEST(FlatLayout, StartsAreThoseOfMegatronForTheReferenceSizes) {
  const FlatLayout layout({{"p0", {5}}, {"p1", {64}}, {"p2", {3}}, {"p3", {100}}});
  const std::int64_t starts[] = {0, 64, 128, 192};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.places()[i].offset, starts[i]);
  EXPECT_EQ(layout.segments()[0].elements, 1024);
  EXPECT_EQ(layout.logical_elements(), 172);
}

TEST(FlatLayout, SegmentsFollowFirstUseAndArePaddedToBlocks) {
  const FlatLayout layout(mixed());
  ASSERT_EQ(layout.segments().size(), 3U);
  // fp16: a 0, b 64, c 128..3128, none 3136, d 3136..3137 → 4096 elements.
  EXPECT_EQ(layout.segments()[0].dtype, Dtype::fp16);
  EXPECT_EQ(layout.segments()[0].elements, 4096);
  EXPECT_EQ(layout.segments()[1].dtype, Dtype::fp32);
  EXPECT_EQ(layout.segments()[1].offset_bytes, 8192U);
  EXPECT_EQ(layout.segments()[1].first_block, 4);
  EXPECT_EQ(layout.segments()[2].dtype, Dtype::bf16);
  EXPECT_EQ(layout.segments()[2].offset_bytes, 8192U + 4096U);
  EXPECT_EQ(layout.total_bytes(), 8192U + 4096U + 2048U);
  EXPECT_EQ(layout.total_blocks(), 6);
  EXPECT_EQ(layout.places()[4].offset, 3136);
  EXPECT_EQ(layout.places()[4].numel, 0);
  EXPECT_EQ(layout.places()[6].numel, 1);
  EXPECT_EQ(layout.places()[6].logical_begin, 5 + 64 + 3 + 3000 + 0 + 1);
}

TEST(FlatLayout, PiecesOfAllRanksCoverEachLogicalElementOnce) {
  const FlatLayout layout(mixed());
  for (int world = 1; world <= 9; ++world) {
    std::vector<int> hits(static_cast<std::size_t>(layout.logical_elements()));
    for (int rank = 0; rank < world; ++rank) {
      std::int64_t last = -1;
      for (const Piece& piece : layout.pieces(rank, world)) {
        EXPECT_FALSE(piece.logical.is_empty());
        EXPECT_EQ(piece.logical.size(), piece.in_segment.size());
        EXPECT_EQ(piece.logical.size(), piece.in_parameter.size());
        EXPECT_GT(piece.logical.begin, last);
        last = piece.logical.begin;
        const ParameterPlace& place = layout.places()[piece.parameter];
        EXPECT_EQ(piece.in_segment.begin, place.offset + piece.in_parameter.begin);
        const comm::Interval shard =
            comm::shard_of(layout.segments()[place.segment].elements, rank, world);
        EXPECT_GE(piece.in_segment.begin, shard.begin);
        EXPECT_LE(piece.in_segment.end, shard.end);
        for (std::int64_t i = piece.logical.begin; i < piece.logical.end; ++i)
          ++hits[static_cast<std::size_t>(i)];
      }
    }
    for (const int hit : hits) ASSERT_EQ(hit, 1) << "world " << world;
  }
}

TEST(FlatLayout, MoreRanksThanBlocksLeavesSomeWithNothing) {
  const FlatLayout layout({{"only", {3}}});
  std::int64_t elements = 0;
  for (int rank = 0; rank < 4; ++rank) {
    elements += layout.shard_elements(rank, 4);
    EXPECT_EQ(layout.shard_blocks(rank, 4), layout.shard_elements(rank, 4) / 1024);
    EXPECT_EQ(layout.pieces(rank, 4).empty(), layout.shard_elements(rank, 4) == 0);
  }
  EXPECT_EQ(elements, 1024);
}

TEST(FlatLayout, ParameterAtKnowsPadding) {
  const FlatLayout layout(mixed());
  EXPECT_EQ(layout.parameter_at(0, 4), 0);
  EXPECT_EQ(layout.parameter_at(0, 5), -1);
  EXPECT_EQ(layout.parameter_at(0, 64), 1);
  EXPECT_EQ(layout.parameter_at(0, 3136), 5);
  EXPECT_EQ(layout.parameter_at(0, 4095), -1);
  EXPECT_EQ(layout.parameter_at(1, 2), 2);
}

TEST(FlatLayout, EmptyLayoutHasNoBytes) {
  const FlatLayout layout({});
  EXPECT_EQ(layout.total_bytes(), 0U);
  EXPECT_EQ(layout.shard_elements(0, 2), 0);
}

TEST(FlatLayout, RefusesBadSpecsByName) {
  try {
    const FlatLayout layout({{"w", {2}}, {"w", {3}}});
    FAIL() << "a name that occurs twice was accepted";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("called w"), std::string::npos);
  }
  EXPECT_THROW(FlatLayout({{"w", {-1}}}), ArgumentError);
}

// The network of the original video super-resolution program with three frames (T41).
TEST(FlatLayout, HoldsVsrNetAsItsProgramDid) {
  const FlatLayout vsrnet({{"conv1.weight", {64, 1, 9, 9}},
                           {"bn1.weight", {64}, Dtype::fp32},
                           {"bn1.bias", {64}, Dtype::fp32},
                           {"conv2.weight", {32, 192, 5, 5}},
                           {"bn2.weight", {32}, Dtype::fp32},
                           {"bn2.bias", {32}, Dtype::fp32},
                           {"conv3.weight", {1, 32, 5, 5}},
                           {"conv3.bias", {1}}});
  std::int64_t halves = 0;
  std::vector<std::int64_t> offsets;
  for (const ParameterPlace& place : vsrnet.places()) {
    if (place.segment != 0) continue;
    offsets.push_back(halves);
    halves += place.numel;
  }
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 5184, 158784, 159584}));
  EXPECT_EQ(halves, 159585);
  EXPECT_EQ(vsrnet.logical_elements(), 159777);
}

}  // namespace
}  // namespace vsr::optim
