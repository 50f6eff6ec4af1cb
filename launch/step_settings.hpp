// SPDX-License-Identifier: Apache-2.0
// From options to what sets the size of a step: the optimizer's constants, the curve of the
// learning rate and the rules of the loss scale. Free of LibTorch, so that tests of the command
// line reach the numbers it means.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "launch/options.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/schedule.hpp"

namespace vsr::launch {

/// --eta-min where it is not given; other defaults are those of the curves in optim/schedule.hpp.
inline constexpr double kDefaultEtaMin = 1e-7;

/// --betas where it is not given: BasicSR's, for networks of this kind.
inline constexpr std::array<double, 2> kDefaultBetas{0.9, 0.99};
/// --momentum where it is not given.
inline constexpr double kDefaultMomentum = 0.9;

/// What a kind of optimizer has: averages of gradients and of squares, or a momentum.
bool has_betas(OptimizerKind kind);

/// The constants that count with the chosen kind.
std::array<double, 2> betas_of(const TrainOptions& options);
double momentum_of(const TrainOptions& options);

/// FP32 values kept for each parameter: the master, the moments of the optimizer, the average.
int fp32_arrays(const TrainOptions& options);

/// The optimizer with its constants, and the average, for a person: "sgd, momentum 0.9".
std::string optimizer_text(const TrainOptions& options);

/// What scales the loss, by which rules and from where, for a person: "fixed at 1024".
std::string loss_scale_text(const TrainOptions& options);

/// Choices that are allowed and do nothing, one sentence each: LAMB without weight decay, points of
/// the curve beyond the end of the run.
std::vector<std::string> idle_choices(const TrainOptions& options);

/// The curve of checked options; --lr is its highest rate.
optim::Schedule make_schedule(const TrainOptions& options);

/// FP16 gradients need scaling; BF16 and FP32 have the range of FP32 and run unscaled.
bool needs_loss_scale(Precision precision);

/// Scaled, and by rules: --loss-scaler counts.
bool has_dynamic_loss_scale(const TrainOptions& options);

/// The constants of the loss scaler. A fixed scale that was asked for may be any number.
optim::LossScalerOptions loss_scaler_options(const TrainOptions& options);

}  // namespace vsr::launch
