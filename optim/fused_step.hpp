// SPDX-License-Identifier: Apache-2.0
// The rules with kernels of their own, applied to a shard: unscale + clip + step + round in one
// sweep over each used parameter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/leaf_exchange.hpp"
#include "optim/master_shard.hpp"
#include "optim/reduction.hpp"
#include "optim/update_kernels.hpp"

namespace vsr::optim {

/// What every rule gets for one applied step.
struct StepInput {
  const GradientReducer& gradients;
  double factor = 1.0;                    ///< clip factor / (scale × leaves)
  std::span<const std::uint8_t> used;     ///< one flag a parameter; the others are left alone
  const comm::ShardPublisher& publisher;  ///< where rounded masters go
};

/// `piece` of the shard with its gradients, masters and destinations; moments are the first two
/// arrays after the masters, where the rule has them.
UpdatePiece update_piece(const MasterShard& shard, const Piece& piece, const StepInput& input);

/// Adam or AdamW with one set of constants a parameter. Local.
void step_adam(MasterShard& shard, const StepInput& input, std::span<const AdamRule> rules);

/// SGD with one set of constants a parameter; the momentum of a parameter starts with the first
/// step that uses it. Local.
void step_sgd(MasterShard& shard, const StepInput& input, std::span<const SgdRule> rules);

/// LAMB with one set of constants a parameter. Collective: the norms of each whole parameter are
/// folded in global block order, so trust ratios do not depend on the number of ranks.
void step_lamb(MasterShard& shard, const StepInput& input, std::span<const LambRule> rules);

}  // namespace vsr::optim
