// SPDX-License-Identifier: Apache-2.0
// What one option alone cannot tell: whether the options fit together.
#include <fmt/format.h>

#include <algorithm>

#include "comm/error.hpp"
#include "launch/option_values.hpp"

namespace vsr::launch {
namespace {

void check_data(const TrainOptions& o) {
  if (o.train.empty())
    throw UsageError(
        "--train: got nothing, expected at least one clip or folder; for example --train clip.mp4");
  if (const int rest = o.gt_size % o.scale; rest != 0)
    throw ConfigurationError(
        fmt::format("--gt-size {} with --scale {}: expected a multiple of {}; use {} or {}",
                    o.gt_size, o.scale, o.scale, o.gt_size - rest, o.gt_size - rest + o.scale));
  for (const auto& set : o.val)
    for (const auto& path : set.paths)
      if (std::find(o.train.begin(), o.train.end(), path) != o.train.end())
        throw ConfigurationError(
            fmt::format("--val {}={}: the clip is in --train too, expected clips that are not "
                        "trained on; leave --val out to hold back the last 20 % of each clip",
                        set.name, path));
}

void check_training(const TrainOptions& o) {
  if (o.model == "espcn" && o.num_frame != 1)
    throw ConfigurationError(fmt::format(
        "--model espcn with --num-frame {}: expected 1, the network sees one frame; leave "
        "--num-frame out or use --model vespcn",
        o.num_frame));
  if (o.warmup_iter >= o.total_iter)
    throw ConfigurationError(
        fmt::format("--warmup-iter {} with --total-iter {}: expected less than the whole run",
                    o.warmup_iter, o.total_iter));
  if (o.scheduler == Scheduler::cosine && o.eta_min > o.lr)
    throw ConfigurationError(fmt::format(
        "--eta-min {} with --lr {}: expected at most the learning rate; lower --eta-min",
        number_text(o.eta_min), number_text(o.lr)));
  const bool scales = o.precision == Precision::fp16 || o.precision == Precision::amp;
  constexpr double kSmallestScale = 1.0 / (1 << 24);
  constexpr double kLargestScale = 1 << 24;
  if (o.loss_scale.value < kSmallestScale || o.loss_scale.value > kLargestScale)
    throw UsageError(fmt::format(
        "--loss-scale {}: got a scale no FP16 gradient survives, expected dynamic or a number from "
        "2^-24 to 2^24",
        number_text(o.loss_scale.value)));
  if (!scales && !o.loss_scale.dynamic && o.loss_scale.value != 1)
    throw ConfigurationError(fmt::format(
        "--loss-scale {} with --precision {}: expected none, gradients of this precision are not "
        "scaled; leave --loss-scale out",
        number_text(o.loss_scale.value), to_string(o.precision)));
  if (o.force_overflow_at &&
      (o.force_overflow_at->leaf >= o.leaves || o.force_overflow_at->iter > o.total_iter))
    throw ConfigurationError(
        fmt::format("--force-overflow-at {}:{}: expected an iteration up to {} and a leaf below {}",
                    o.force_overflow_at->iter, o.force_overflow_at->leaf, o.total_iter, o.leaves));
}

}  // namespace

void check_options(const TrainOptions& options) {
  check_data(options);
  check_training(options);
}

}  // namespace vsr::launch
