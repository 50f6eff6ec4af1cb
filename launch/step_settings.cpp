// SPDX-License-Identifier: Apache-2.0
#include "launch/step_settings.hpp"

#include <algorithm>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "launch/option_values.hpp"

namespace vsr::launch {
namespace {

optim::OneCycleLr one_cycle(const TrainOptions& o) {
  optim::OneCycleLr curve{.max_lr = o.lr, .total_steps = o.total_iter};
  curve.pct_start = o.pct_start.value_or(curve.pct_start);
  if (o.anneal_strategy == AnnealStrategy::linear) curve.anneal = optim::Anneal::linear;
  curve.div_factor = o.div_factor.value_or(curve.div_factor);
  curve.final_div_factor = o.final_div_factor.value_or(curve.final_div_factor);
  return curve;
}

}  // namespace

bool has_betas(OptimizerKind kind) {
  return kind != OptimizerKind::sgd;
}

std::array<double, 2> betas_of(const TrainOptions& options) {
  return options.betas.value_or(kDefaultBetas);
}

double momentum_of(const TrainOptions& options) {
  return options.momentum.value_or(kDefaultMomentum);
}

int fp32_arrays(const TrainOptions& options) {
  const int momentum = momentum_of(options) != 0 ? 1 : 0;
  const int moments = has_betas(options.optimizer) ? 2 : momentum;
  return 1 + moments + (options.ema_decay > 0 ? 1 : 0);
}

std::string optimizer_text(const TrainOptions& options) {
  std::string text(to_string(options.optimizer));
  if (has_betas(options.optimizer)) {
    const auto [first, second] = betas_of(options);
    text += fmt::format(", betas {} {}", number_text(first), number_text(second));
  } else {
    text += fmt::format(", {}momentum {}", options.nesterov ? "Nesterov " : "",
                        number_text(momentum_of(options)));
  }
  if (options.weight_decay > 0) text += ", weight decay " + number_text(options.weight_decay);
  if (options.ema_decay > 0)
    text += fmt::format("; validated on averages of the masters with decay {}",
                        number_text(options.ema_decay));
  return text;
}

std::string loss_scale_text(const TrainOptions& options) {
  if (!needs_loss_scale(options.precision))
    return fmt::format("none: {} gradients are not scaled", to_string(options.precision));
  if (!options.loss_scale.dynamic) return "fixed at " + number_text(options.loss_scale.value);
  const auto rules = loss_scaler_options(options);
  return fmt::format("dynamic by the rules of {}, from {}, times {} after {}, times {} on overflow",
                     options.loss_scaler.value_or("vsr"), number_text(rules.initial_scale),
                     number_text(rules.growth_factor), counted(rules.window_steps, "clean step"),
                     number_text(rules.backoff_factor));
}

std::vector<std::string> idle_choices(const TrainOptions& o) {
  std::vector<std::string> sentences;
  if (o.optimizer == OptimizerKind::lamb && o.weight_decay == 0)
    sentences.emplace_back(
        "--optimizer lamb without --weight-decay adapts no rate and is adam; give a decay, for "
        "example --weight-decay 0.01");
  const auto late = std::lower_bound(o.milestones.begin(), o.milestones.end(), o.total_iter);
  if (late != o.milestones.end())
    sentences.push_back(fmt::format(
        "--milestones: {} {} not reached within --total-iter {}{}",
        fmt::join(late, o.milestones.end(), " "), o.milestones.end() - late == 1 ? "is" : "are",
        o.total_iter, late == o.milestones.begin() ? "; the learning rate is never lowered" : ""));
  if (o.stepsize.value_or(0) >= o.total_iter)
    sentences.push_back(fmt::format(
        "--stepsize {} is not reached within --total-iter {}; the learning rate only rises, and "
        "ends below --lr",
        *o.stepsize, o.total_iter));
  if (o.overlap == Overlap::on && o.reduction != Reduction::exact)
    sentences.push_back(
        fmt::format("--overlap on: gradients leave early with --reduction exact only, not with {}",
                    to_string(o.reduction)));
  if (o.bucket_mib > 0 && o.overlap != Overlap::on)
    sentences.emplace_back(
        "--bucket-mib cuts gradients that leave early; over MPI that takes "
        "--overlap on");
  return sentences;
}

optim::Schedule make_schedule(const TrainOptions& o) {
  const double eta_min = o.eta_min.value_or(kDefaultEtaMin);
  switch (o.scheduler) {
    case Scheduler::constant:
      return optim::ConstantLr{.lr = o.lr, .warmup_steps = o.warmup_iter};
    case Scheduler::cosine:
      return optim::CosineLr{.lr = o.lr,
                             .total_steps = o.total_iter,
                             .eta_min = eta_min,
                             .warmup_steps = o.warmup_iter};
    case Scheduler::multistep:
      return optim::MultiStepLr{.lr = o.lr,
                                .milestones = o.milestones,
                                .gamma = o.gamma.value_or(optim::MultiStepLr{}.gamma),
                                .warmup_steps = o.warmup_iter};
    case Scheduler::cosine_restart:
      return optim::CosineRestartLr{.lr = o.lr,
                                    .periods = o.periods,
                                    .restart_weights = o.restart_weights,
                                    .eta_min = eta_min,
                                    .warmup_steps = o.warmup_iter};
    case Scheduler::triangular:
      return optim::TriangularLr{
          .min_lr = eta_min, .max_lr = o.lr, .stepsize = o.stepsize.value_or(0)};
    case Scheduler::one_cycle:
      return one_cycle(o);
  }
  throw ArgumentError("a scheduler without a name");
}

bool needs_loss_scale(Precision precision) {
  return precision == Precision::fp16 || precision == Precision::amp;
}

bool has_dynamic_loss_scale(const TrainOptions& options) {
  return needs_loss_scale(options.precision) && options.loss_scale.dynamic;
}

optim::LossScalerOptions loss_scaler_options(const TrainOptions& options) {
  auto scaler = optim::LossScalerOptions::named(options.loss_scaler.value_or("vsr"));
  scaler.window_steps = options.loss_scale_window.value_or(scaler.window_steps);
  scaler.powers_of_two = options.loss_scale.dynamic;
  return scaler;
}

}  // namespace vsr::launch
