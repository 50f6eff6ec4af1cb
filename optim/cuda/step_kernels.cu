// SPDX-License-Identifier: Apache-2.0
// The kernels of the second sweep: one for each element type and rule.
#include "optim/cuda/launchers.hpp"
#include "optim/cuda/start_kernel.cuh"
#include "optim/cuda/step_body.hpp"

namespace vsr::optim::detail {
namespace {

template <typename T, typename Rule>
__global__ void __launch_bounds__(kTeamThreads)
    step_kernel(const __grid_constant__ PieceLaunch<Rule, void> a) {
  step_body<T>(a, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    lamb_moments_kernel(const __grid_constant__ LambMomentsLaunch a) {
  __shared__ LambScratch scratch;
  CudaTeam team;
  lamb_moments_body<T>(a, static_cast<int>(blockIdx.x), scratch, team);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    mean_gradient_kernel(const __grid_constant__ MeanGradientLaunch a) {
  mean_gradient_body<T>(a, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    round_to_kernel(const __grid_constant__ ArrayLaunch a) {
  round_to_body<T>(a, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    widen_kernel(const __grid_constant__ ArrayLaunch a) {
  widen_body<T>(a, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}

__global__ void __launch_bounds__(kTeamThreads) ema_kernel(const __grid_constant__ ArrayLaunch a) {
  ema_body(a, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}

template <typename Rule>
int launch_step(const PieceLaunch<Rule, void>& a, CUstream_st* stream) {
  return with_element(a.shard.type, [&](auto type) {
    return start_kernel(step_kernel<decltype(type), Rule>, a, a.teams, stream);
  });
}

}  // namespace

int launch_adam(const AdamLaunch& a, CUstream_st* stream) {
  return launch_step(a, stream);
}
int launch_sgd(const SgdLaunch& a, CUstream_st* stream) {
  return launch_step(a, stream);
}
int launch_lamb_apply(const LambApplyLaunch& a, CUstream_st* stream) {
  return launch_step(a, stream);
}

int launch_lamb_moments(const LambMomentsLaunch& a, CUstream_st* stream) {
  return with_element(a.shard.type, [&](auto type) {
    return start_kernel(lamb_moments_kernel<decltype(type)>, a, a.teams, stream);
  });
}

int launch_mean_gradient(const MeanGradientLaunch& a, CUstream_st* stream) {
  return with_element(a.shard.type, [&](auto type) {
    return start_kernel(mean_gradient_kernel<decltype(type)>, a, a.teams, stream);
  });
}

int launch_round_to(const ArrayLaunch& a, CUstream_st* stream) {
  return with_element(a.type, [&](auto type) {
    return start_kernel(round_to_kernel<decltype(type)>, a, teams_of(a), stream);
  });
}

int launch_widen(const ArrayLaunch& a, CUstream_st* stream) {
  return with_element(a.type, [&](auto type) {
    return start_kernel(widen_kernel<decltype(type)>, a, teams_of(a), stream);
  });
}

int launch_ema(const ArrayLaunch& a, CUstream_st* stream) {
  return start_kernel(ema_kernel, a, teams_of(a), stream);
}

}  // namespace vsr::optim::detail
