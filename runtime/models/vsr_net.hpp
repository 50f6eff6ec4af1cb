// SPDX-License-Identifier: Apache-2.0
// What every network of ours is to the training loop and to `vsr`: a window of low-resolution
// frames goes in, the enlarged centre frame comes out. The bicubic enlargement is added here, in
// FP32, so that no network rounds it and an untrained one already has bicubic quality.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vsr::runtime {

/// What describes a network completely; saved in checkpoints. 0 means the network's own default.
struct ModelOptions {
  std::string name = "vespcn";  ///< one of model_names()
  int scale = 4;                ///< enlargement, 2, 3 or 4
  int num_frame = 0;            ///< frames in the window, odd; default 3, for espcn 1
  int channels = 0;             ///< width; default 32, for espcn 64 (its second layer has half)
  int blocks = 0;               ///< residual blocks; default 4; espcn has none
  std::uint64_t seed = 0;       ///< of the initial parameters; equal seeds give equal bits
};

/// Base of all networks. Parameters are created in FP32 on the host.
class VsrNet : public torch::nn::Module {
 public:
  /// Fp16Module hands over the FP32 window: the bicubic part must not be rounded.
  static constexpr bool kCastsItsInput = true;

  explicit VsrNet(const ModelOptions& options) : options_(options) {}

  /// Enlarge the centre frame of each window: bicubic plus the residual the network predicts.
  /// @param lr_window [in] N×T×3×h×w, FP32, RGB in [0, 1]; T = num_frame; any h, w ≥ 1
  /// @return N×3×(s·h)×(s·w), FP32, not clamped
  /// @throws ArgumentError on another shape or dtype
  torch::Tensor forward(const torch::Tensor& lr_window);

  /// Options with every default filled in.
  const ModelOptions& options() const noexcept { return options_; }

 protected:
  /// Predict the residual over bicubic, N×3×(s·h)×(s·w), in any floating dtype.
  /// Implementations cast with at_border before each layer.
  virtual torch::Tensor residual(const torch::Tensor& lr_window) = 0;

 private:
  ModelOptions options_;
};

/// Names that make_network accepts.
const std::vector<std::string>& model_names();

/// Fill in the defaults of the network that `options` names.
/// @throws UsageError for an unknown name (lists the names), scale, window, width or depth
ModelOptions complete(ModelOptions options);

/// Make the network that `options` describes, initialised from `options.seed` alone: the same bits
/// in every process. Its last layer starts small, so an untrained network is bicubic within 1/255.
/// @throws UsageError as `complete`
std::shared_ptr<VsrNet> make_network(const ModelOptions& options);

/// Number of trainable values of a network.
std::int64_t parameter_count(const torch::nn::Module& net);

}  // namespace vsr::runtime
