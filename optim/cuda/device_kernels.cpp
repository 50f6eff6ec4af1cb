// SPDX-License-Identifier: Apache-2.0
#include "optim/cuda/device_kernels.hpp"

#include "optim/cuda/device_memory.hpp"
#include "optim/cuda/launch_plan.hpp"
#include "optim/cuda/launchers.hpp"

namespace vsr::optim {
namespace {

template <typename Launch>
void start(const std::vector<Launch>& plan, int (*launch)(const Launch&, CudaStream),
           const char* kernel, CudaStream stream) {
  for (const Launch& one : plan) check_cuda(launch(one, stream), kernel);
}

}  // namespace

void enqueue_sum_leaves(const DeviceSum& sweep, CudaStream stream) {
  start(detail::plan_sum(sweep), &detail::launch_sum, "launching the sum of leaves", stream);
}

void enqueue_adam(const DeviceShard& shard, std::span<const AdamPiece> pieces, CudaStream stream) {
  start(detail::plan_adam(shard, pieces), &detail::launch_adam, "launching Adam", stream);
}

void enqueue_sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces, CudaStream stream) {
  start(detail::plan_sgd(shard, pieces), &detail::launch_sgd, "launching SGD", stream);
}

void enqueue_lamb_moments(const DeviceShard& shard, std::span<const LambPiece> pieces,
                          std::span<LambBlock> blocks, CudaStream stream) {
  start(detail::plan_lamb_moments(shard, pieces, blocks), &detail::launch_lamb_moments,
        "launching the first pass of LAMB", stream);
}

void enqueue_lamb_apply(const DeviceShard& shard, std::span<const LambPiece> pieces,
                        CudaStream stream) {
  start(detail::plan_lamb_apply(shard, pieces), &detail::launch_lamb_apply,
        "launching the second pass of LAMB", stream);
}

void enqueue_mean_gradient(const DeviceShard& shard, std::span<const comm::Interval> pieces,
                           std::span<float> gradient, CudaStream stream) {
  start(detail::plan_mean_gradient(shard, pieces, gradient), &detail::launch_mean_gradient,
        "launching the mean gradient", stream);
}

void enqueue_ema(std::span<const float> master, std::span<float> ema, double decay,
                 CudaStream stream) {
  start(detail::plan_ema(master, ema, decay), &detail::launch_ema, "launching the moving average",
        stream);
}

void enqueue_round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded,
                      CudaStream stream) {
  start(detail::plan_round_to(dtype, values, rounded), &detail::launch_round_to,
        "launching the rounding", stream);
}

void enqueue_widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened,
                   CudaStream stream) {
  start(detail::plan_widen(dtype, values, widened), &detail::launch_widen, "launching the widening",
        stream);
}

}  // namespace vsr::optim
