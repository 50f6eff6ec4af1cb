// SPDX-License-Identifier: Apache-2.0
// FP16 holds values up to 65504 and 11 bits of each. Some layers need more than that while the rest
// of a network does not; this file says which ones, by type, by name or by a rule of the caller.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace vsr::runtime {

/// True for a module that is to be kept in FP32; `path` is its name below the network, "body.3".
using ModulePredicate =
    std::function<bool(const std::string& path, const torch::nn::Module& module)>;

/// Which parts of a network stay in FP32 although the rest is reduced: their parameters and buffers
/// keep FP32 values, and where borders can be drawn (see Borders) they get FP32 input.
///
/// The three groups are on by default: squares and sums over many values leave the range of FP16
/// early, and running statistics would stop moving for lack of bits.
struct KeepInFp32 {
  /// Batch, instance, layer and group normalisation, local response normalisation.
  bool normalisation = true;
  /// Softmax, Softmax2d, LogSoftmax, Softmin.
  bool softmax = true;
  /// Every loss module of torch::nn, AdaptiveLogSoftmaxWithLoss included.
  bool losses = true;
  /// Paths of modules, such as "head" or "body.3"; everything below such a path is kept.
  std::vector<std::string> names{};
  /// Keeps a module, with all below it, when it returns true; for types see keep_types.
  ModulePredicate also{};
};

/// Make a predicate that is true for modules of the given types and of types derived from them.
/// @tparam Types module classes or their holders: `keep_types<torch::nn::Linear, MyLayerImpl>()`
template <class... Types>
ModulePredicate keep_types() {
  static_assert(sizeof...(Types) > 0, "name the module types to keep");
  return [](const std::string&, const torch::nn::Module& module) {
    return (... || (module.as<Types>() != nullptr));
  };
}

bool is_normalisation(const torch::nn::Module& module);
bool is_softmax(const torch::nn::Module& module);
bool is_loss(const torch::nn::Module& module);

/// Base of networks that draw the borders of their layers themselves, by calling each layer through
/// run_at_border or casting with at_border. Any layer below such a network may be kept.
class DrawsBorders {
 public:
  virtual ~DrawsBorders() = default;

 protected:
  DrawsBorders() = default;
  DrawsBorders(const DrawsBorders&) = default;
  DrawsBorders& operator=(const DrawsBorders&) = default;
};

}  // namespace vsr::runtime
