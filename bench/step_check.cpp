// SPDX-License-Identifier: Apache-2.0
#include "bench/step_check.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "comm/error.hpp"

namespace vsr::bench {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;

struct GivenGradients : public torch::autograd::Function<GivenGradients> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, at::TensorList parameters,
                               at::TensorList gradients) {
    context->saved_data["gradients"] = gradients.vec();
    context->saved_data["parameters"] = static_cast<std::int64_t>(parameters.size());
    return torch::zeros({}, torch::kFloat);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list output) {
    const double scale = output[0].item<double>();
    torch::autograd::variable_list result;
    for (const torch::Tensor& gradient : context->saved_data["gradients"].toTensorVector())
      result.push_back(gradient.mul(scale));
    // The gradients are arguments of forward too and want an (undefined) gradient of their own.
    result.resize(result.size() +
                  static_cast<std::size_t>(context->saved_data["parameters"].toInt()));
    return result;
  }
};

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}));
  return torch::cat(parts);
}

std::uint64_t leaf_seed(int step, int rank) {
  return static_cast<std::uint64_t>(1000 * step + rank);
}

// Where the masters stand after `steps` steps, by nothing but FP64 tensor arithmetic.
torch::Tensor plain_loop(const torch::Tensor& start, const std::vector<torch::Tensor>& parameters,
                         int world, int steps, double lr) {
  torch::Tensor master = start.clone();
  torch::Tensor first = torch::zeros_like(start);
  torch::Tensor second = torch::zeros_like(start);
  for (int t = 1; t <= steps; ++t) {
    torch::Tensor mean = torch::zeros_like(start);
    for (int rank = 0; rank < world; ++rank)
      mean += flat(make_gradients(parameters, leaf_seed(t, rank))).to(torch::kDouble) / world;
    mean *= std::min(1.0, kMaxNorm / (mean.norm().item<double>() + 1e-6));
    first = kBeta1 * first + (1.0 - kBeta1) * mean;
    second = kBeta2 * second + (1.0 - kBeta2) * mean * mean;
    master -= lr * (first / (1.0 - std::pow(kBeta1, t))) /
              ((second / (1.0 - std::pow(kBeta2, t))).sqrt() + kEpsilon);
  }
  return master;
}

// Squared distance of my masters from the expected ones, and that the expected ones moved.
struct Distance {
  double wrong = 0.0;
  double moved = 0.0;
};

Distance distance_of(optim::Fp16Optimizer& optimizer, const torch::Tensor& replica,
                     const torch::Tensor& start, const torch::Tensor& expected) {
  Distance distance;
  const optim::ShardView view = optimizer.shard();
  const std::size_t masters = view.index_of("master");
  for (const optim::ShardPiece& piece : view.pieces) {
    const auto slice = [&](const torch::Tensor& all) {
      return all.slice(0, piece.logical.begin, piece.logical.end);
    };
    const torch::Tensor master =
        torch::from_blob(piece.values[masters].data(), {piece.logical.size()}, torch::kFloat);
    distance.wrong += (master.to(torch::kDouble) - slice(expected)).square().sum().item<double>();
    distance.moved += (slice(expected) - slice(start)).square().sum().item<double>();
    if (!torch::equal(master.to(torch::kHalf), slice(replica)))
      throw DivergedError("the replica is not the rounded master after a step");
  }
  return distance;
}

}  // namespace

std::vector<torch::Tensor> make_parameters(const Options& options) {
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(0);
  const double size = 1.0 / std::sqrt(static_cast<double>(options.width));
  std::vector<torch::Tensor> parameters;
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const std::int64_t out = options.outputs(layer);
    for (const auto& shape : {std::vector<std::int64_t>{out, options.width}, {out}})
      parameters.push_back(
          torch::randn(shape, generator).mul_(size).to(torch::kHalf).requires_grad_());
  }
  return parameters;
}

std::vector<torch::Tensor> make_gradients(const std::vector<torch::Tensor>& parameters,
                                          std::uint64_t seed) {
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(seed);
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters)
    gradients.push_back(torch::randn(parameter.sizes(), generator).mul_(1.0 / 64).to(torch::kHalf));
  return gradients;
}

torch::Tensor loss_with_gradients(const std::vector<torch::Tensor>& parameters,
                                  const std::vector<torch::Tensor>& gradients) {
  return GivenGradients::apply(at::TensorList(parameters), at::TensorList(gradients));
}

std::unique_ptr<optim::Fp16Optimizer> make_optimizer(const std::vector<torch::Tensor>& parameters,
                                                     comm::Communicator& world, double lr,
                                                     optim::Reduction reduction) {
  auto adam = std::make_unique<torch::optim::Adam>(
      parameters,
      torch::optim::AdamOptions(lr).betas(std::make_tuple(kBeta1, kBeta2)).eps(kEpsilon));
  optim::Fp16OptimizerOptions options;
  options.static_loss_scale = kLossScale;
  options.reduction = reduction;
  return std::make_unique<optim::Fp16Optimizer>(std::move(adam), world, std::move(options));
}

double check_step(comm::Communicator& world, optim::Reduction reduction) {
  constexpr double kLearningRate = 1e-2;
  constexpr int kSteps = 2;
  Options small;
  small.layers = 3;
  small.width = 48;
  small.last = 16;
  const std::vector<torch::Tensor> parameters = make_parameters(small);
  const torch::Tensor start = flat(parameters).to(torch::kDouble);
  const torch::Tensor expected =
      plain_loop(start, parameters, world.world(), kSteps, kLearningRate);

  const auto optimizer = make_optimizer(parameters, world, kLearningRate, reduction);
  for (int t = 1; t <= kSteps; ++t) {
    optimizer->zero_grad();
    optimizer->backward(
        loss_with_gradients(parameters, make_gradients(parameters, leaf_seed(t, world.rank()))));
    optimizer->clip_fp32_grads(kMaxNorm);
    optimizer->step();
  }

  Distance mine;
  world.agree_all_ok("comparing the step with a plain loop",
                     [&] { mine = distance_of(*optimizer, flat(parameters), start, expected); });
  const std::vector<std::uint64_t> hashes = world.all_gather(optimizer->replica_hash());
  const std::vector<double> wrong = world.all_gather(mine.wrong);
  const std::vector<double> moved = world.all_gather(mine.moved);
  double wrong_sum = 0.0;
  double moved_sum = 0.0;
  for (std::size_t rank = 0; rank < wrong.size(); ++rank) {
    wrong_sum += wrong[rank];
    moved_sum += moved[rank];
    if (hashes[rank] != hashes[0])
      throw DivergedError("the replica of rank " + std::to_string(rank) +
                          " differs from that of rank 0 after a step");
  }
  const double error = std::sqrt(wrong_sum / moved_sum);
  // FP16 sums may change the direction of the smallest elements; exact sums may not.
  const double tolerance = reduction == optim::Reduction::exact ? 1e-5 : 2e-2;
  if (!(error <= tolerance))
    throw DivergedError("the step differs from the plain loop: relative error of the movement " +
                        std::to_string(error) + ", allowed " + std::to_string(tolerance));
  return error;
}

}  // namespace vsr::bench
