// SPDX-License-Identifier: Apache-2.0
// The kernels of the first sweep: one for each element type and norm, any number of slices.
#include "optim/cuda/launchers.hpp"
#include "optim/cuda/start_kernel.cuh"
#include "optim/cuda/sum_body.hpp"

namespace vsr::optim::detail {
namespace {

template <typename T, NormKind kNorm>
__global__ void __launch_bounds__(kTeamThreads) sum_kernel(const __grid_constant__ SumLaunch a) {
  __shared__ SumScratch scratch;
  CudaTeam team;
  sum_body<T, kNorm>(a, static_cast<int>(blockIdx.x), scratch, team);
}

}  // namespace

int launch_sum(const SumLaunch& a, CUstream_st* stream) {
  return with_element(a.type, [&](auto type) {
    using T = decltype(type);
    switch (a.norm) {
      case NormKind::one:
        return start_kernel(sum_kernel<T, NormKind::one>, a, teams_of(a), stream);
      case NormKind::infinity:
        return start_kernel(sum_kernel<T, NormKind::infinity>, a, teams_of(a), stream);
      case NormKind::power:
        return start_kernel(sum_kernel<T, NormKind::power>, a, teams_of(a), stream);
      default:
        return start_kernel(sum_kernel<T, NormKind::two>, a, teams_of(a), stream);
    }
  });
}

}  // namespace vsr::optim::detail
