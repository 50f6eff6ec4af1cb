// SPDX-License-Identifier: Apache-2.0
// Whether a run that reached its last iteration has diverged all the same. The loss scaler ends a
// run that skips step after step, but only after many of them; one that is shorter would otherwise
// end as a success with weights that nobody can use.
#pragma once

#include <cstdint>

#include "comm/communicator.hpp"
#include "optim/fp16_optimizer.hpp"

namespace vsr::runtime {

/// The end of a run, the same on all ranks.
struct RunTail {
  std::int64_t iteration = 0;
  std::int64_t skipped_in_row = 0;  ///< steps up to the last; 0: it was applied
  optim::StepReport last_step;
};

/// Collective. Fail when the last step was skipped with a loss that is no finite number, when no
/// step was ever applied at a scale that cannot go lower, or when a master is no finite number.
/// @throws DivergedError, on all ranks, for steps; AgreedError 86 for masters
void require_not_diverged(const RunTail& tail, optim::Fp16Optimizer& optimizer,
                          comm::Communicator& world);

}  // namespace vsr::runtime
