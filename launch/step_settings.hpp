// SPDX-License-Identifier: Apache-2.0
// From options to what sets the size of a step: the curve of the learning rate and the rules of the
// loss scale. Free of LibTorch, so that tests of the command line reach the numbers it means.
#pragma once

#include "launch/options.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/schedule.hpp"

namespace vsr::launch {

/// --eta-min where it is not given; other defaults are those of the curves in optim/schedule.hpp.
inline constexpr double kDefaultEtaMin = 1e-7;

/// The curve of checked options; --lr is its highest rate.
optim::Schedule make_schedule(const TrainOptions& options);

/// FP16 gradients need scaling; BF16 and FP32 have the range of FP32 and run unscaled.
bool needs_loss_scale(Precision precision);

/// Scaled, and by rules: --loss-scaler counts.
bool has_dynamic_loss_scale(const TrainOptions& options);

/// The constants of the loss scaler. A fixed scale that was asked for may be any number.
optim::LossScalerOptions loss_scaler_options(const TrainOptions& options);

}  // namespace vsr::launch
