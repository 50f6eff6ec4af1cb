// SPDX-License-Identifier: Apache-2.0
// Fits y = 2x + 1 with an FP16 layer on all ranks: what docs/half_precision.md shows as a whole
// program.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "optim/fp16_optimizer.hpp"
#include "runtime/precision/cpu_kernels.hpp"
#include "runtime/precision/fp16_module.hpp"

using namespace vsr;

void train(comm::Communicator& world) {
  torch::manual_seed(0);  // the first weights are those of rank 0; data are each rank's own affair
  runtime::Fp16Module<torch::nn::LinearImpl> net(torch::nn::Linear(1, 1));
  optim::Fp16OptimizerOptions options{.dynamic_loss_scale = true};
  options.leaves = 4;  // micro-batches in a step, whatever the number of ranks
  options.parameters = net.named_parameters_with_masters();
  options.buffers = net.named_buffers();
  optim::Fp16Optimizer optimizer(std::make_unique<torch::optim::Adam>(net.parameters(), 1e-2),
                                 world, options);
  optim::StepReport report;
  for (int step = 0; step < 500; ++step) {
    optimizer.zero_grad();
    for (const int leaf : optimizer.my_leaves()) {
      const torch::Tensor x = torch::linspace(-1, 1, 16).reshape({16, 1}) + 0.1 * leaf;
      optimizer.backward(torch::mse_loss(net(x), 2 * x + 1));
    }
    optimizer.clip_fp32_grads(1.0);
    report = optimizer.step();
  }
  const std::string masters = optimizer.masters_hash();  // every rank takes part
  if (world.rank() == 0) std::printf("loss %.6f, masters %s\n", report.loss, masters.c_str());
}

int main(int argc, char** argv) {
  try {
    const comm::MpiEnvironment mpi(argc, argv);
    try {
      runtime::install_cpu_half_kernels();  // FP16 on a CPU at the speed of FP32
      torch::set_num_threads(1);            // a rank is one core
      train(*comm::make_communicator(comm::Backend::automatic));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      comm::MpiEnvironment::abort(1);  // a rank alone: the others must not wait for it
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "MPI did not start: %s\n", error.what());
    return 1;
  }
}
