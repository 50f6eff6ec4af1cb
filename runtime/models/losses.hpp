// SPDX-License-Identifier: Apache-2.0
// The losses `--loss` can name. All are means over every value, computed in FP32 whatever the dtype
// of the prediction, so a loss scale acts on a number that was not rounded.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace vsr::runtime {

/// Squared smoothing constant of the Charbonnier loss, as BasicSR and mmagic have it.
inline constexpr double kCharbonnierEps2 = 1e-12;

/// Mean of sqrt(d² + eps2), d = prediction − target; eps, not 0, where they agree.
/// @param prediction, target [in] same shape, any floating dtype
/// @return scalar, FP32   @throws ArgumentError where the shapes differ (never broadcasts)
torch::Tensor charbonnier_loss(const torch::Tensor& prediction, const torch::Tensor& target,
                               double eps2 = kCharbonnierEps2);

/// Mean of |d|; contract as charbonnier_loss.
torch::Tensor mean_absolute_loss(const torch::Tensor& prediction, const torch::Tensor& target);

/// Mean of d²; contract as charbonnier_loss.
torch::Tensor mean_square_loss(const torch::Tensor& prediction, const torch::Tensor& target);

using Loss =
    std::function<torch::Tensor(const torch::Tensor& prediction, const torch::Tensor& target)>;

/// Names that make_loss accepts: charbonnier, l1, mse.
const std::vector<std::string>& loss_names();

/// Give the loss called `name`. @throws UsageError listing the names for any other
Loss make_loss(const std::string& name);

}  // namespace vsr::runtime
