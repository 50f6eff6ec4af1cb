// SPDX-License-Identifier: Apache-2.0
// The networks behind make_network, and what they share. Private to this folder: the rest of the
// program knows VsrNet only.
#pragma once

#include <memory>
#include <vector>

#include "runtime/models/vsr_net.hpp"

namespace vsr::runtime {

/// Network of one frame: 5×5, tanh, 3×3, tanh, 3×3, pixel shuffle (Shi et al. 2016, ESPCN).
std::shared_ptr<VsrNet> make_espcn(const ModelOptions& options);

/// Early fusion of all frames, then residual blocks (after Caballero et al. 2017, VESPCN, without
/// its motion compensation).
std::shared_ptr<VsrNet> make_vespcn(const ModelOptions& options);

/// Convolution of stride 1 that keeps height and width; `kernel` is odd.
torch::nn::Conv2d same_size_convolution(std::int64_t in, std::int64_t out, std::int64_t kernel);

/// Draws initial parameters from one seed. Nothing else touches the generator, so a network's bits
/// depend on its options alone, and LibTorch's global generator plays no part.
class Initialiser {
 public:
  explicit Initialiser(std::uint64_t seed);

  /// Weights uniform with variance gain² / fan_in, bias zero.
  void fill(torch::nn::Conv2dImpl& layer, double gain);

 private:
  torch::Generator generator_;
};

/// Gain that keeps the variance of activations through a ReLU, and through a tanh.
inline constexpr double kReluGain = 1.4142135623730951;
inline constexpr double kTanhGain = 5.0 / 3.0;
/// Of the second layer of a residual block: the sum of skip and block stays near the skip.
inline constexpr double kResidualGain = 0.1;
/// Of the layer that makes pixels: so small that an untrained network is bicubic, yet not zero, so
/// that every layer before it has a gradient in the first step.
inline constexpr double kOutputGain = 1e-3;

}  // namespace vsr::runtime
