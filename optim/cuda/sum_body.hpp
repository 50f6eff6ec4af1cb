// SPDX-License-Identifier: Apache-2.0
// The first sweep on a device, as phases of a team: a team takes a few norm blocks, its threads add
// the leaves of four elements each, and eight threads a block walk the lanes in element order,
// which the order of kernel_loops.inl asks for. C++17, because nvcc reads it.
#pragma once

#include <cmath>

#include "optim/cuda/team.hpp"

namespace vsr::optim::detail {

/// Norm blocks of a team: enough bytes under way to hide the walk along the lanes, and little
/// enough shared memory for six teams on a processor.
constexpr int kSumBlocks = 4;
constexpr int kNormLanes = 8;

/// Shared memory of a team.
struct SumScratch {
  // Eight more than a block, so that the lanes of two blocks lie in different banks.
  double sum[kSumBlocks][kTeamBlock + kNormLanes];
  double lane[kSumBlocks][kNormLanes];
  CensusRecord census;
};

/// The fixed tree of kernel_loops.inl.
VSR_HOST_DEVICE double fold_eight(NormKind norm, const double* lane) {
  if (norm == NormKind::infinity) {
    double largest = 0.0;
    for (int i = 0; i < kNormLanes; ++i) largest = lane[i] > largest ? lane[i] : largest;
    return largest;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <NormKind kNorm>
VSR_HOST_DEVICE double add_to_lane(double lane, double sum, double power) {
  if constexpr (kNorm == NormKind::one) return add_magnitude(lane, sum);
  if constexpr (kNorm == NormKind::infinity) return max_magnitude(lane, sum);
  if constexpr (kNorm == NormKind::power) return lane + std::pow(std::fabs(sum), power);
  return add_square(lane, sum);
}

/// Only for threads that met a non-finite sum, which ends a step: not worth a fast path.
template <typename T>
VSR_HOST_DEVICE CensusRecord census_of_thread(const SumLaunch& a, std::int64_t start, int blocks) {
  CensusRecord counts = {0, 0, 0};
  VSR_NO_UNROLL
  for (int of_thread = 0; of_thread < blocks * kGroup; ++of_thread) {
    const std::int64_t element = start + of_thread / kGroup * kTeamBlock + of_thread % kGroup;
    VSR_NO_UNROLL
    for (int slice = 0; slice < a.slices.count; ++slice) {
      const auto* values = reinterpret_cast<const typename T::Bits*>(a.slices.begin[slice]);
      const std::uint32_t magnitude = bits_of(T::widen(values[element])) & 0x7fffffffU;
      if (magnitude < 0x7f800000U) continue;
      ++(magnitude == 0x7f800000U ? counts.inf_count : counts.nan_count);
      const unsigned long long key = ~((static_cast<unsigned long long>(element) << 16) |
                                       static_cast<unsigned long long>(a.first_slice + slice));
      if (key > counts.first) counts.first = key;
    }
  }
  return counts;
}

/// The first phase of one thread: four neighbouring elements of each block of the team.
template <typename T>
VSR_HOST_DEVICE void add_leaves(const SumLaunch& a, std::int64_t first_block, int blocks,
                                int thread, SumScratch& scratch) {
  using Bits = typename T::Bits;
  const std::int64_t start = first_block * kTeamBlock + thread * kGroup;
  Four<double> sum[kSumBlocks] = {};
  if (a.accumulate) {
    VSR_UNROLL
    for (int block = 0; block < kSumBlocks; ++block)
      if (block < blocks) sum[block] = load_four<double>(a.accumulator, start + block * kTeamBlock);
  }
  // Blocks inside: their loads do not wait for each other.
  for (int slice = 0; slice < a.slices.count; ++slice) {
    VSR_UNROLL
    for (int block = 0; block < kSumBlocks; ++block) {
      if (block >= blocks) continue;
      const Four<Bits> leaf = load_four<Bits>(a.slices.begin[slice], start + block * kTeamBlock);
      VSR_UNROLL
      for (int i = 0; i < kGroup; ++i)
        sum[block].value[i] += static_cast<double>(T::widen(leaf.value[i]));
    }
  }
  bool is_finite = true;
  VSR_UNROLL
  for (int block = 0; block < kSumBlocks; ++block) {
    if (block >= blocks) continue;
    const std::int64_t element = start + block * kTeamBlock;
    if (a.accumulator != nullptr) store_four<double>(a.accumulator, element, sum[block]);
    VSR_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      scratch.sum[block][thread * kGroup + i] = sum[block].value[i];
      // Sums of finite inputs are finite in FP64.
      if (!(sum[block].value[i] - sum[block].value[i] == 0.0)) is_finite = false;
    }
  }
  if (is_finite) return;
  const CensusRecord counts = census_of_thread<T>(a, start, blocks);
  add_shared(scratch.census.inf_count, counts.inf_count);
  add_shared(scratch.census.nan_count, counts.nan_count);
  max_shared(scratch.census.first, counts.first);
}

/// All of a team's work: norm blocks team × kSumBlocks and the following ones.
template <typename T, NormKind kNorm, typename Team>
VSR_HOST_DEVICE void sum_body(const SumLaunch& a, int team_index, SumScratch& scratch, Team& team) {
  const std::int64_t first_block = static_cast<std::int64_t>(team_index) * kSumBlocks;
  const int blocks =
      a.blocks - first_block < kSumBlocks ? static_cast<int>(a.blocks - first_block) : kSumBlocks;
  team.all([&](int thread) {
    if (thread == 0) scratch.census = {0, 0, 0};
  });
  team.all([&](int thread) { add_leaves<T>(a, first_block, blocks, thread, scratch); });
  team.all([&](int thread) {
    const int block = thread / kNormLanes;
    const int lane = thread % kNormLanes;
    if (block >= blocks) return;
    double total = 0.0;
    VSR_UNROLL_16
    for (int i = lane; i < kTeamBlock; i += kNormLanes)
      total = add_to_lane<kNorm>(total, scratch.sum[block][i], a.power);
    scratch.lane[block][lane] = total;
  });
  team.all([&](int thread) {
    if (thread < blocks)
      a.block_norms[first_block + thread] = fold_eight(kNorm, scratch.lane[thread]);
    if (thread != kTeamThreads - 1 || scratch.census.first == 0) return;
    add_shared(a.census->inf_count, scratch.census.inf_count);
    add_shared(a.census->nan_count, scratch.census.nan_count);
    max_shared(a.census->first, scratch.census.first);
  });
}

/// Host only. Teams of a launch.
inline int teams_of(const SumLaunch& a) {
  return static_cast<int>((a.blocks + kSumBlocks - 1) / kSumBlocks);
}

}  // namespace vsr::optim::detail
