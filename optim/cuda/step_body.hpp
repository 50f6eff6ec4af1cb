// SPDX-License-Identifier: Apache-2.0
// The second sweep on a device: what one thread does with four neighbouring elements of a piece,
// for each rule, and LAMB's sums of squares as phases of a team. C++17, because nvcc reads it.
#pragma once

#include "optim/cuda/sum_body.hpp"

namespace vsr::optim::detail {

// What a rule reads and writes beside the masters, and its step on a group.

VSR_HOST_DEVICE bool keeps_moment1(const AdamConstants&) {
  return true;
}
VSR_HOST_DEVICE bool keeps_moment1(const SgdConstants& rule) {
  return rule.coefficients.has_momentum;
}
VSR_HOST_DEVICE bool keeps_moment1(const LambConstants&) {
  return true;
}

template <typename Rule>
struct RuleShape {
  static constexpr bool kSecond = true;         // there is a second moment
  static constexpr bool kReadsGradient = true;  // … and the moments change
};
template <>
struct RuleShape<SgdConstants> {
  static constexpr bool kSecond = false;
  static constexpr bool kReadsGradient = true;
};
template <>
struct RuleShape<LambConstants> {  // the second pass; the first is lamb_moments_body
  static constexpr bool kSecond = true;
  static constexpr bool kReadsGradient = false;
};

template <WeightDecay kDecay>
VSR_HOST_DEVICE void apply_adam(const AdamCoefficients& c, Four<float>& master, Four<float>& first,
                                Four<float>& second, const Four<float>& gradient) {
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i)
    adam_step<kDecay, ScalarMath>(master.value[i], first.value[i], second.value[i],
                                  gradient.value[i], c);
}

VSR_HOST_DEVICE void apply(const AdamConstants& rule, Four<float>& master, Four<float>& first,
                           Four<float>& second, const Four<float>& gradient) {
  const AdamCoefficients& c = rule.coefficients;
  if (rule.decay == WeightDecay::none)
    apply_adam<WeightDecay::none>(c, master, first, second, gradient);
  else if (rule.decay == WeightDecay::into_gradient)
    apply_adam<WeightDecay::into_gradient>(c, master, first, second, gradient);
  else
    apply_adam<WeightDecay::decoupled>(c, master, first, second, gradient);
}

VSR_HOST_DEVICE void apply(const SgdConstants& rule, Four<float>& master, Four<float>& first,
                           Four<float>&, const Four<float>& gradient) {
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i)
    sgd_step(master.value[i], first.value[i], gradient.value[i], rule.coefficients);
}

VSR_HOST_DEVICE void apply(const LambConstants& rule, Four<float>& master, Four<float>& first,
                           Four<float>& second, const Four<float>&) {
  const LambCoefficients& c = rule.coefficients;
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i)
    master.value[i] = master.value[i] + lamb_direction<ScalarMath>(master.value[i], first.value[i],
                                                                   second.value[i], c) *
                                            c.negative_step_size;
}

/// The last entry that begins at or before `team`.
template <typename Launch>
VSR_HOST_DEVICE int entry_of(const Launch& a, int team) {
  int low = 0;
  int high = a.pieces;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.entries[middle].first_team <= team)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// The elements of one thread of a team of `entry`.
template <typename Rule>
VSR_HOST_DEVICE Group group_of(const PieceEntry<Rule>& entry, int team, int thread) {
  return group_of(entry.first / kTeamBlock + (team - entry.first_team), thread, entry.first,
                  entry.last);
}

template <typename T, typename G>
VSR_HOST_DEVICE Four<float> mean_gradients(const ShardPlaces& a, const G& group) {
  using Bits = typename T::Bits;
  Four<double> sum = {};
  if (a.sums != nullptr) {
    sum = load_group<double>(a.sums, group);
  } else {
    for (int slice = 0; slice < a.slices.count; ++slice) {
      const Four<Bits> leaf = load_group<Bits>(a.slices.begin[slice], group);
      VSR_UNROLL
      for (int i = 0; i < kGroup; ++i) sum.value[i] += static_cast<double>(T::widen(leaf.value[i]));
    }
  }
  const double factor = a.factor_on_device != nullptr ? *a.factor_on_device : a.factor;
  Four<float> mean;
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i) mean.value[i] = unscaled(sum.value[i], factor);
  return mean;
}

template <typename T, typename G>
VSR_HOST_DEVICE void round_to_targets(const TargetList& targets, const G& group,
                                      const Four<float>& masters) {
  Four<typename T::Bits> rounded;
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i) rounded.value[i] = T::narrow(masters.value[i]);
  for (int target = 0; target < targets.count; ++target)
    store_group(targets.begin[target], group, rounded);
}

template <typename T, typename Rule, typename G>
VSR_HOST_DEVICE void step_group(const ShardPlaces& a, const Rule& rule, const G& group) {
  using Shape = RuleShape<Rule>;
  const bool has_first = keeps_moment1(rule);
  Four<float> gradient = {};
  if constexpr (Shape::kReadsGradient) gradient = mean_gradients<T>(a, group);
  Four<float> master = load_group<float>(a.master, group);
  Four<float> first = {};
  Four<float> second = {};
  if (has_first) first = load_group<float>(a.moment1, group);
  if constexpr (Shape::kSecond) second = load_group<float>(a.moment2, group);
  apply(rule, master, first, second, gradient);
  if constexpr (Shape::kReadsGradient) {
    if (has_first) store_group(a.moment1, group, first);
    if constexpr (Shape::kSecond) store_group(a.moment2, group, second);
  }
  store_group(a.master, group, master);
  round_to_targets<T>(a.targets, group, master);
}

/// One thread's part of a step of any rule.
template <typename T, typename Rule>
VSR_HOST_DEVICE void step_body(const PieceLaunch<Rule, void>& a, int team, int thread) {
  const PieceEntry<Rule>& entry = a.entries[entry_of(a, team)];
  with_group(group_of(entry, team, thread),
             [&](const auto& group) { step_group<T>(a.shard, entry.rule, group); });
}

/// One thread's part of the mean gradient.
template <typename T>
VSR_HOST_DEVICE void mean_gradient_body(const MeanGradientLaunch& a, int team, int thread) {
  with_group(group_of(a.entries[entry_of(a, team)], team, thread), [&](const auto& group) {
    store_group(a.extra, group, mean_gradients<T>(a.shard, group));
  });
}

/// Shared memory of a team of LAMB's first pass: what is squared, zero outside the piece. A square
/// of zero changes no lane.
struct LambScratch {
  float value[2][kTeamBlock];  // masters, directions
  double lane[2][kNormLanes];
};

/// What a team squares: masters as they are, and directions from the moments of this step.
template <typename T, typename G>
VSR_HOST_DEVICE void lamb_group(const ShardPlaces& a, const LambCoefficients& c, const G& group,
                                Four<float>& master, Four<float>& direction) {
  const Four<float> gradient = mean_gradients<T>(a, group);
  master = load_group<float>(a.master, group);
  Four<float> first = load_group<float>(a.moment1, group);
  Four<float> second = load_group<float>(a.moment2, group);
  VSR_UNROLL
  for (int i = 0; i < kGroup; ++i) {
    lamb_moments(first.value[i], second.value[i], gradient.value[i], c);
    direction.value[i] =
        lamb_direction<ScalarMath>(master.value[i], first.value[i], second.value[i], c);
  }
  store_group(a.moment1, group, first);
  store_group(a.moment2, group, second);
}

/// LAMB's first pass on one norm block of one piece.
template <typename T, typename Team>
VSR_HOST_DEVICE void lamb_moments_body(const LambMomentsLaunch& a, int team_index,
                                       LambScratch& scratch, Team& team) {
  const PieceEntry<LambConstants>& entry = a.entries[entry_of(a, team_index)];
  team.all([&](int thread) {
    const Group mine = group_of(entry, team_index, thread);
    Four<float> master = {};
    Four<float> direction = {};
    with_group(mine, [&](const auto& group) {
      lamb_group<T>(a.shard, entry.rule.coefficients, group, master, direction);
    });
    // eps = 0 makes a NaN of what lies outside the piece.
    for (int i = 0; i < kGroup; ++i)
      if (i < mine.begin || i >= mine.end) direction.value[i] = 0.0F;
    store_four(scratch.value[0], thread * kGroup, master);
    store_four(scratch.value[1], thread * kGroup, direction);
  });
  team.all([&](int thread) {
    if (thread >= 2 * kNormLanes) return;
    const int which = thread / kNormLanes;
    const int lane = thread % kNormLanes;
    double total = 0.0;
    VSR_UNROLL_16
    for (int i = lane; i < kTeamBlock; i += kNormLanes)
      total = add_square(total, static_cast<double>(scratch.value[which][i]));
    scratch.lane[which][lane] = total;
  });
  team.all([&](int thread) {
    if (thread < 2)
      a.extra[2 * static_cast<std::int64_t>(team_index) + thread] =
          fold_eight(NormKind::two, scratch.lane[thread]);
  });
}

// Single elements of two arrays.

template <typename T>
VSR_HOST_DEVICE void round_to_body(const ArrayLaunch& a, int team, int thread) {
  with_group(group_of(team, thread, 0, a.elements), [&](const auto& group) {
    const Four<float> values = load_group<float>(a.from, group);
    Four<typename T::Bits> rounded;
    VSR_UNROLL
    for (int i = 0; i < kGroup; ++i) rounded.value[i] = T::narrow(values.value[i]);
    store_group(a.to, group, rounded);
  });
}

template <typename T>
VSR_HOST_DEVICE void widen_body(const ArrayLaunch& a, int team, int thread) {
  using Bits = typename T::Bits;
  with_group(group_of(team, thread, 0, a.elements), [&](const auto& group) {
    const Four<Bits> values = load_group<Bits>(a.from, group);
    Four<float> widened;
    VSR_UNROLL
    for (int i = 0; i < kGroup; ++i) widened.value[i] = T::widen(values.value[i]);
    store_group(a.to, group, widened);
  });
}

VSR_HOST_DEVICE void ema_body(const ArrayLaunch& a, int team, int thread) {
  with_group(group_of(team, thread, 0, a.elements), [&](const auto& group) {
    const Four<float> master = load_group<float>(a.from, group);
    Four<float> ema = load_group<float>(a.to, group);
    VSR_UNROLL
    for (int i = 0; i < kGroup; ++i)
      ema.value[i] = ema_step(ema.value[i], master.value[i], a.one_minus_decay);
    store_group(a.to, group, ema);
  });
}

/// Host only. Teams of a launch.
inline int teams_of(const ArrayLaunch& a) {
  return static_cast<int>((a.elements + kTeamBlock - 1) / kTeamBlock);
}

}  // namespace vsr::optim::detail
