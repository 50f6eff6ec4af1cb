// SPDX-License-Identifier: Apache-2.0
// What one option alone cannot tell: whether the options fit together.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/error.hpp"
#include "launch/option_values.hpp"
#include "launch/step_settings.hpp"

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

using Curves = std::vector<Scheduler>;

const Curves kWithMinimum = {Scheduler::cosine, Scheduler::cosine_restart, Scheduler::triangular};
const Curves kWarmedUp = {Scheduler::constant, Scheduler::cosine, Scheduler::multistep,
                          Scheduler::cosine_restart};

/// The options that not every curve has.
const std::vector<std::pair<std::string, Curves>> kCurveOptions = {
    {"eta-min", kWithMinimum},
    {"milestones", {Scheduler::multistep}},
    {"gamma", {Scheduler::multistep}},
    {"periods", {Scheduler::cosine_restart}},
    {"restart-weights", {Scheduler::cosine_restart}},
    {"stepsize", {Scheduler::triangular}},
    {"pct-start", {Scheduler::one_cycle}},
    {"anneal-strategy", {Scheduler::one_cycle}},
    {"div-factor", {Scheduler::one_cycle}},
    {"final-div-factor", {Scheduler::one_cycle}}};

using Optimizers = std::vector<OptimizerKind>;

/// The options that not every optimizer has.
const std::vector<std::pair<std::string, Optimizers>> kOptimizerOptions = {
    {"betas", {OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lamb}},
    {"momentum", {OptimizerKind::sgd}},
    {"nesterov", {OptimizerKind::sgd}}};

template <class Kind>
bool contains(const std::vector<Kind>& kinds, Kind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

/// What was given for the option, as in a file; empty if nothing was.
std::string given(const TrainOptions& o, std::string_view name) {
  const auto lines = find_option(name)->get(o);
  return lines.empty() ? std::string() : lines.front();
}

/// The option as it was given; a flag has no value.
std::string as_given(const TrainOptions& o, const std::string& name) {
  const bool is_flag = find_option(name)->value_name.empty();
  return "--" + name + (is_flag ? "" : " " + given(o, name));
}

/// `name`, which was given, goes with `kinds` of the option `chooser` only.
template <class Kind>
void refuse_unless(const std::vector<Kind>& kinds, Kind chosen, const char* chooser,
                   const TrainOptions& o, const std::string& name) {
  if (contains(kinds, chosen)) return;
  std::vector<std::string> names;
  for (const Kind kind : kinds) names.emplace_back(to_string(kind));
  throw ConfigurationError(fmt::format("{} with --{} {}: expected only with {}; leave --{} out",
                                       as_given(o, name), chooser, to_string(chosen),
                                       alternatives(names), name));
}

void check_optimizer(const TrainOptions& o) {
  for (const auto& [name, kinds] : kOptimizerOptions)
    if (!given(o, name).empty()) refuse_unless(kinds, o.optimizer, "optimizer", o, name);
  if (o.nesterov && momentum_of(o) == 0)
    throw ConfigurationError(
        "--nesterov with --momentum 0: expected a momentum above 0; leave one of them out");
}

void require_option(const TrainOptions& o, const std::string& name, const char* example) {
  if (given(o, name).empty())
    throw ConfigurationError(fmt::format("--scheduler {}: expected --{} too, for example --{} {}",
                                         to_string(o.scheduler), name, name, example));
}

void check_periods(const TrainOptions& o) {
  if (!o.restart_weights.empty() && o.restart_weights.size() != o.periods.size())
    throw ConfigurationError(
        fmt::format("--restart-weights {} with --periods {}: expected one weight for each period",
                    given(o, "restart-weights"), given(o, "periods")));
  const auto sum = std::accumulate(o.periods.begin(), o.periods.end(), std::int64_t{0});
  if (sum < o.total_iter)
    throw ConfigurationError(fmt::format(
        "--periods {} with --total-iter {}: got {} steps in all, expected periods that cover the "
        "run; lengthen one or add one",
        given(o, "periods"), o.total_iter, sum));
}

void check_schedule(const TrainOptions& o) {
  for (const auto& [name, kinds] : kCurveOptions)
    if (!given(o, name).empty()) refuse_unless(kinds, o.scheduler, "scheduler", o, name);
  if (o.warmup_iter > 0) refuse_unless(kWarmedUp, o.scheduler, "scheduler", o, "warmup-iter");
  if (o.scheduler == Scheduler::multistep) require_option(o, "milestones", "3000 4000");
  if (o.scheduler == Scheduler::triangular) require_option(o, "stepsize", "2000");
  if (o.scheduler == Scheduler::cosine_restart) {
    require_option(o, "periods", "3000 3000");
    check_periods(o);
  }
  const double eta_min = o.eta_min.value_or(kDefaultEtaMin);
  if (contains(kWithMinimum, o.scheduler) && eta_min > o.lr)
    throw ConfigurationError(fmt::format(
        "--eta-min {} with --lr {}: expected at most the learning rate; lower --eta-min",
        number_text(eta_min), number_text(o.lr)));
}

void check_loss_scaler(const TrainOptions& o) {
  for (const std::string name : {"loss-scaler", "loss-scale-window"}) {
    if (given(o, name).empty() || has_dynamic_loss_scale(o)) continue;
    if (!needs_loss_scale(o.precision))
      throw ConfigurationError(
          fmt::format("--{} {} with --precision {}: expected none, gradients of this precision are "
                      "not scaled; leave --{} out",
                      name, given(o, name), to_string(o.precision), name));
    throw ConfigurationError(
        fmt::format("--{} {} with --loss-scale {}: expected --loss-scale dynamic, a fixed scale "
                    "follows no rules; leave one of them out",
                    name, given(o, name), to_string(o.loss_scale)));
  }
}

/// What runtime/models refuses too, without the names of options and on every rank.
void check_network(const TrainOptions& o) {
  if (o.model == "espcn" && o.num_frame != 1)
    throw ConfigurationError(fmt::format(
        "--model espcn with --num-frame {}: expected 1, the network sees one frame; leave "
        "--num-frame out or use --model vespcn",
        o.num_frame));
  if (o.model == "espcn" && o.blocks != 0)
    throw ConfigurationError(fmt::format(
        "--model espcn with --blocks {}: expected none, the network has no residual blocks, only "
        "--channels; leave --blocks out or use --model vespcn",
        o.blocks));
  if (o.channels == 1)
    throw ConfigurationError(fmt::format(
        "--model {} with --channels 1: expected from 2 to 4096, or 0 for its own default",
        o.model));
}

void check_training(const TrainOptions& o) {
  if (o.warmup_iter >= o.total_iter)
    throw ConfigurationError(
        fmt::format("--warmup-iter {} with --total-iter {}: expected less than the whole run",
                    o.warmup_iter, o.total_iter));
  const bool scales = needs_loss_scale(o.precision);
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
  check_network(options);
  check_training(options);
  check_optimizer(options);
  check_schedule(options);
  check_loss_scaler(options);
}

}  // namespace vsr::launch
