// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/divergence.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "fmt/format.h"

namespace vsr::runtime {
namespace {

constexpr const char* kAdvice =
    "start again, or go back to a checkpoint from before, with a lower --lr, with --clip-grad or "
    "with --warmup-iter";

bool is_finite(float value) {
  return std::isfinite(value);
}

}  // namespace

void require_not_diverged(const RunTail& tail, optim::Fp16Optimizer& optimizer,
                          comm::Communicator& world) {
  const optim::StepReport& last = tail.last_step;
  const std::string skipped = fmt::format(
      "{} up to iteration {} skipped because of a non-finite gradient in {} (leaf {}, "
      "rank {})",
      counted(tail.skipped_in_row, "step"), tail.iteration, last.first_bad_parameter,
      last.first_bad_leaf, last.first_bad_rank);
  if (tail.skipped_in_row > 0 && !std::isfinite(last.loss))
    throw DivergedError(
        fmt::format("training diverged: the loss is {}, {}; {}", last.loss, skipped, kAdvice));
  if (optimizer.state().scaler.skips_at_floor > 0 && last.applied_steps == 0)
    throw DivergedError(fmt::format(
        "training got nowhere: {}, none applied, at loss scale {:g}, which does not go lower; use "
        "--loss-scale dynamic or a lower one, a lower --lr, or --precision bf16",
        skipped, last.loss_scale));
  world.agree_all_ok("looking at the masters", [&] {
    const optim::ShardView shard = optimizer.shard();
    const std::size_t master = shard.index_of("master");
    for (const optim::ShardPiece& piece : shard.pieces)
      if (!std::ranges::all_of(piece.values[master], is_finite))
        throw DivergedError(
            fmt::format("training diverged: at iteration {} the weights are no finite numbers; {}",
                        tail.iteration, kAdvice));
  });
}

}  // namespace vsr::runtime
