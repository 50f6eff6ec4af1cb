// SPDX-License-Identifier: Apache-2.0
#include "launch/step_settings.hpp"

#include "comm/error.hpp"

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
