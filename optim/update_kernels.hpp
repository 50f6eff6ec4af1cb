// SPDX-License-Identifier: Apache-2.0
// The second sweep: unscale and clip in one FP64 factor, round once to FP32, step the masters of a
// piece, round them to nearest even into every replica in reach. One function for each rule; each
// exists for three instruction sets with equal bits.
#pragma once

#include <cstddef>
#include <span>

#include "comm/shard.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/update_rules.hpp"

namespace vsr::optim {

/// A piece of one shard of one segment. All spans have the shard's length; a rule that keeps no
/// moments leaves theirs empty.
struct UpdatePiece {
  Dtype dtype = Dtype::fp16;
  comm::Interval piece = {};                                ///< elements of the shard
  std::span<const std::span<const std::byte>> slices = {};  ///< added again from +0.0 …
  std::span<const double> sums = {};                        ///< … unless sums are given here
  double factor = 1.0;                                      ///< clip factor / (scale × leaves)
  std::span<float> master = {};
  std::span<float> moment1 = {};  ///< exp_avg, or SGD's momentum buffer
  std::span<float> moment2 = {};  ///< exp_avg_sq
  /// Places of the shard in replicas (own and peers'): all get the rounded masters.
  std::span<const std::span<std::byte>> destinations = {};
};

/// Step Adam or AdamW.
/// @throws ArgumentError when lengths do not match
void update_adam(const UpdatePiece& piece, WeightDecay decay, const AdamCoefficients& coefficients,
                 Isa isa);

/// Step SGD; `moment1` may be empty without momentum.
/// @throws ArgumentError when lengths do not match
void update_sgd(const UpdatePiece& piece, const SgdCoefficients& coefficients, Isa isa);

/// Sums of squares of one norm block of one parameter, FP64, in the lane shape of the norms.
struct LambBlock {
  double master = 0.0;
  double direction = 0.0;
};

/// Norm blocks that `piece`, an interval of a shard, touches.
std::size_t blocks_touched(comm::Interval piece) noexcept;

/// First pass of LAMB: step the moments and sum the squares of masters and directions.
/// @param blocks one value for each block touched
/// @throws ArgumentError when lengths do not match or the piece does not begin at a multiple of 8
void step_lamb_moments(const UpdatePiece& piece, const LambCoefficients& coefficients,
                       std::span<LambBlock> blocks, Isa isa);

/// Second pass of LAMB: step the masters. Gradients are not read.
/// @throws ArgumentError when lengths do not match
void apply_lamb(const UpdatePiece& piece, const LambCoefficients& coefficients, Isa isa);

/// The mean gradient of the piece as every rule sees it, into the same places of `gradient`, which
/// has the shard's length.
/// @throws ArgumentError when lengths do not match
void mean_gradient(const UpdatePiece& piece, std::span<float> gradient, Isa isa);

/// Move the averages of masters one step: ema + (master - ema) × (1 - decay).
/// @throws ArgumentError when lengths do not match
void update_ema(std::span<const float> master, std::span<float> ema, double decay, Isa isa);

}  // namespace vsr::optim
