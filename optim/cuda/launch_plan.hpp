// SPDX-License-Identifier: Apache-2.0
// From checked spans to what kernels get: every condition is tested here, before anything is
// launched, and long lists are cut into launches that fit. Free of CUDA, so that tests on machines
// without a GPU cover it.
#pragma once

#include <vector>

#include "optim/cuda/device_kernels.hpp"
#include "optim/cuda/launch_arguments.hpp"

namespace vsr::optim::detail {

// Each function throws what its enqueue_ function of device_kernels.hpp throws for wrong arguments.
// Launches run in the order given; an empty plan says that there is nothing to do.

std::vector<SumLaunch> plan_sum(const DeviceSum& sweep);
std::vector<AdamLaunch> plan_adam(const DeviceShard& shard, std::span<const AdamPiece> pieces);
std::vector<SgdLaunch> plan_sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces);
std::vector<LambMomentsLaunch> plan_lamb_moments(const DeviceShard& shard,
                                                 std::span<const LambPiece> pieces,
                                                 std::span<LambBlock> blocks);
std::vector<LambApplyLaunch> plan_lamb_apply(const DeviceShard& shard,
                                             std::span<const LambPiece> pieces);
std::vector<MeanGradientLaunch> plan_mean_gradient(const DeviceShard& shard,
                                                   std::span<const comm::Interval> pieces,
                                                   std::span<float> gradient);
std::vector<ArrayLaunch> plan_ema(std::span<const float> master, std::span<float> ema,
                                  double decay);
std::vector<ArrayLaunch> plan_round_to(Dtype dtype, std::span<const float> values,
                                       std::span<std::byte> rounded);
std::vector<ArrayLaunch> plan_widen(Dtype dtype, std::span<const std::byte> values,
                                    std::span<float> widened);

}  // namespace vsr::optim::detail
