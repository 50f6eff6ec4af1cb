// SPDX-License-Identifier: Apache-2.0
#include "runtime/models/losses.hpp"

#include <sstream>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

torch::Tensor difference(const torch::Tensor& prediction, const torch::Tensor& target) {
  if (prediction.sizes() != target.sizes()) {
    std::ostringstream message;
    message << "loss: got a prediction of shape " << prediction.sizes() << " and a target of shape "
            << target.sizes() << ", expected equal shapes";
    throw ArgumentError(message.str());
  }
  return prediction.to(at::kFloat) - target.to(at::kFloat);
}

}  // namespace

torch::Tensor charbonnier_loss(const torch::Tensor& prediction, const torch::Tensor& target,
                               double eps2) {
  return difference(prediction, target).square().add(eps2).sqrt().mean();
}

torch::Tensor mean_absolute_loss(const torch::Tensor& prediction, const torch::Tensor& target) {
  return difference(prediction, target).abs().mean();
}

torch::Tensor mean_square_loss(const torch::Tensor& prediction, const torch::Tensor& target) {
  return difference(prediction, target).square().mean();
}

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names{"charbonnier", "l1", "mse"};
  return names;
}

Loss make_loss(const std::string& name) {
  if (name == "charbonnier")
    return [](const torch::Tensor& prediction, const torch::Tensor& target) {
      return charbonnier_loss(prediction, target);
    };
  if (name == "l1") return mean_absolute_loss;
  if (name == "mse") return mean_square_loss;
  throw UsageError("loss '" + name + "' is unknown; choose charbonnier, l1 or mse");
}

}  // namespace vsr::runtime
