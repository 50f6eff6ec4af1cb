// SPDX-License-Identifier: Apache-2.0
// The seam between checked spans and nvcc. Each function starts one kernel on a stream and returns
// what the CUDA runtime said (0: success). C++17, because nvcc reads it.
#pragma once

#include "optim/cuda/launch_arguments.hpp"

struct CUstream_st;

namespace vsr::optim::detail {

int launch_sum(const SumLaunch& a, CUstream_st* stream);
int launch_adam(const AdamLaunch& a, CUstream_st* stream);
int launch_sgd(const SgdLaunch& a, CUstream_st* stream);
int launch_lamb_moments(const LambMomentsLaunch& a, CUstream_st* stream);
int launch_lamb_apply(const LambApplyLaunch& a, CUstream_st* stream);
int launch_mean_gradient(const MeanGradientLaunch& a, CUstream_st* stream);
int launch_ema(const ArrayLaunch& a, CUstream_st* stream);
int launch_round_to(const ArrayLaunch& a, CUstream_st* stream);
int launch_widen(const ArrayLaunch& a, CUstream_st* stream);

}  // namespace vsr::optim::detail
