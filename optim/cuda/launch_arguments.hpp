// SPDX-License-Identifier: Apache-2.0
// What a kernel gets by value, and how its work is cut into teams of threads. Made by
// launch_plan.cpp from checked spans; read by CUDA and, in tests without a GPU, by plain loops.
// C++17, because nvcc reads it.
#pragma once

#include <cstdint>

#include "optim/cuda/census_record.hpp"
#include "optim/kernel_table.hpp"

namespace vsr::optim::detail {

/// Elements of a norm block; comm::kBlockElements in a header that nvcc can read.
constexpr int kTeamBlock = 1024;
/// Threads of a team (a CUDA block), and neighbouring elements that a thread moves at once.
constexpr int kTeamThreads = 256;
constexpr int kGroup = 4;
static_assert(kTeamThreads * kGroup == kTeamBlock);

constexpr int kMaxSlices = 64;
constexpr int kMaxTargets = 16;
/// Kernel parameters may take 4096 bytes on every device.
constexpr int kMaxParameterBytes = 4096;
constexpr int kMaxPieces = 40;

struct SliceList {
  const unsigned char* begin[kMaxSlices];
  int count;
};

struct TargetList {
  unsigned char* begin[kMaxTargets];
  int count;
};

struct SumLaunch {
  Type type;
  NormKind norm;
  bool accumulate;
  SliceList slices;
  int first_slice;  // number of slices[0] in the sweep
  std::int64_t blocks;
  double* accumulator;  // may be null
  double power;
  double* block_norms;
  CensusRecord* census;
};

/// What every rule of the second sweep reads and writes.
struct ShardPlaces {
  Type type;
  SliceList slices;
  const double* sums;  // may be null
  double factor;
  const double* factor_on_device;  // may be null
  float* master;
  float* moment1;
  float* moment2;
  TargetList targets;
};

// The constants of a piece, as its rule's kernel gets them.
struct AdamConstants {
  AdamCoefficients coefficients;
  WeightDecay decay;
};
struct SgdConstants {
  SgdCoefficients coefficients;
};
struct LambConstants {
  LambCoefficients coefficients;
};
struct NoConstants {};

/// A piece in one launch. Its teams, one a norm block that it touches, are numbered from
/// `first_team`.
template <typename Rule>
struct PieceEntry {
  std::int64_t first;
  std::int64_t last;
  int first_team;
  Rule rule;
};

/// `extra` is the output of the rules that have one: square sums of LAMB's blocks (two FP64 values
/// a team), or the mean gradient.
template <typename Rule, typename Extra>
struct PieceLaunch {
  ShardPlaces shard;
  int pieces;
  int teams;
  Extra* extra;
  PieceEntry<Rule> entries[kMaxPieces];
};

using AdamLaunch = PieceLaunch<AdamConstants, void>;
using SgdLaunch = PieceLaunch<SgdConstants, void>;
using LambMomentsLaunch = PieceLaunch<LambConstants, double>;
using LambApplyLaunch = PieceLaunch<LambConstants, void>;
using MeanGradientLaunch = PieceLaunch<NoConstants, float>;
static_assert(sizeof(AdamLaunch) <= kMaxParameterBytes);
static_assert(sizeof(LambMomentsLaunch) <= kMaxParameterBytes);

/// Work on single elements of two arrays.
struct ArrayLaunch {
  Type type;
  const void* from;
  void* to;
  std::int64_t elements;
  float one_minus_decay;  // of averages
};

}  // namespace vsr::optim::detail
