// SPDX-License-Identifier: Apache-2.0
#include "optim/fused_step.hpp"

#include <cmath>

namespace vsr::optim {
namespace {

template <typename Rule>
std::vector<std::pair<double, double>> betas_of(std::span<const Rule> rules) {
  std::vector<std::pair<double, double>> betas;
  for (const Rule& rule : rules) betas.emplace_back(rule.beta1, rule.beta2);
  return betas;
}

template <typename Action>
void for_each_used(const MasterShard& shard, const StepInput& input, const Action& action) {
  for (const Piece& piece : shard.pieces())
    if (input.used[piece.parameter] != 0) action(piece);
}

// Squares of masters and directions of every used parameter, whole.
std::vector<LambBlock> fold_square_sums(const MasterShard& shard, std::span<const LambBlock> mine,
                                        std::span<const std::uint8_t> used) {
  const FlatLayout& layout = shard.layout();
  const int world = shard.world().world();
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < world; ++rank) {
    pieces.push_back(layout.pieces(rank, world));
    std::size_t count = 0;
    for (const Piece& piece : pieces.back())
      if (used[piece.parameter] != 0) count += blocks_touched(piece.in_segment);
    counts.push_back(count);
  }
  const std::vector<LambBlock> all = shard.world().all_gather(mine, counts);
  std::vector<LambBlock> sums(layout.parameters().size());
  std::size_t next = 0;
  // A later rank owns later blocks of a parameter, so this is their global order.
  for (const std::vector<Piece>& of_rank : pieces)
    for (const Piece& piece : of_rank) {
      if (used[piece.parameter] == 0) continue;
      LambBlock& sum = sums[piece.parameter];
      for (std::size_t block = blocks_touched(piece.in_segment); block > 0; --block, ++next) {
        sum.master += all[next].master;
        sum.direction += all[next].direction;
      }
    }
  return sums;
}

}  // namespace

UpdatePiece update_piece(const MasterShard& shard, const Piece& piece, const StepInput& input) {
  const std::size_t segment = shard.segment_of(piece);
  const auto moment = [&](std::size_t index) {
    const std::size_t array = MasterShard::kFirstMoment + index;
    const std::size_t end = shard.arrays().size() - (shard.has_ema() ? 1 : 0);
    return array < end ? shard.part(array, segment) : std::span<float>();
  };
  return {.dtype = shard.layout().segments()[segment].dtype,
          .piece = shard.in_shard(piece),
          .slices = input.gradients.slices(segment),
          .sums = input.gradients.sums(segment),
          .factor = input.factor,
          .master = shard.part(MasterShard::kMaster, segment),
          .moment1 = moment(0),
          .moment2 = moment(1),
          .destinations = input.publisher.destinations(segment)};
}

void step_adam(MasterShard& shard, const StepInput& input, std::span<const AdamRule> rules) {
  const auto betas = betas_of(rules);
  shard.count_step(input.used, &betas);
  for_each_used(shard, input, [&](const Piece& piece) {
    const AdamRule& rule = rules[piece.parameter];
    const ParameterCounters& counters = shard.counters()[piece.parameter];
    update_adam(update_piece(shard, piece, input), weight_decay_of(rule),
                adam_coefficients(rule, counters.beta1_power, counters.beta2_power), shard.isa());
  });
}

void step_sgd(MasterShard& shard, const StepInput& input, std::span<const SgdRule> rules) {
  shard.count_step(input.used, nullptr);
  std::vector<bool> starts(rules.size());  // alike on all ranks, whatever their pieces
  for (std::size_t i = 0; i < rules.size(); ++i) {
    double& unstarted = shard.counters()[i].beta1_power;
    starts[i] = input.used[i] != 0 && rules[i].momentum != 0.0 && unstarted != 0.0;
    if (starts[i]) unstarted = 0.0;
  }
  for_each_used(shard, input, [&](const Piece& piece) {
    update_sgd(update_piece(shard, piece, input),
               sgd_coefficients(rules[piece.parameter], starts[piece.parameter]), shard.isa());
  });
}

void step_lamb(MasterShard& shard, const StepInput& input, std::span<const LambRule> rules) {
  const auto betas = betas_of(rules);
  shard.count_step(input.used, &betas);
  const auto coefficients = [&](std::size_t parameter, double trust_ratio) {
    const ParameterCounters& counters = shard.counters()[parameter];
    return lamb_coefficients(rules[parameter], counters.beta1_power, counters.beta2_power,
                             trust_ratio);
  };
  std::vector<LambBlock> mine;
  for_each_used(shard, input, [&](const Piece& piece) {
    const std::size_t first = mine.size();
    mine.resize(first + blocks_touched(piece.in_segment));
    step_lamb_moments(update_piece(shard, piece, input), coefficients(piece.parameter, 1.0),
                      std::span(mine).subspan(first), shard.isa());
  });
  const std::vector<LambBlock> sums = fold_square_sums(shard, mine, input.used);
  for_each_used(shard, input, [&](const Piece& piece) {
    const LambBlock& sum = sums[piece.parameter];
    const double ratio =
        lamb_trust_ratio(rules[piece.parameter], std::sqrt(sum.master), std::sqrt(sum.direction));
    apply_lamb(update_piece(shard, piece, input), coefficients(piece.parameter, ratio),
               shard.isa());
  });
}

}  // namespace vsr::optim
