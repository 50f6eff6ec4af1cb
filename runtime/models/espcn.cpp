// SPDX-License-Identifier: Apache-2.0
#include "runtime/models/networks.hpp"
#include "runtime/precision/precision.hpp"

namespace vsr::runtime {
namespace {

class Espcn : public VsrNet {
 public:
  explicit Espcn(const ModelOptions& options) : VsrNet(options) {
    const int width = options.channels;
    features_ = register_module("features", same_size_convolution(3, width, 5));
    mapping_ = register_module("mapping", same_size_convolution(width, width / 2, 3));
    pixels_ = register_module(
        "pixels", same_size_convolution(width / 2, 3 * options.scale * options.scale, 3));
    Initialiser initialiser(options.seed);
    initialiser.fill(*features_, kTanhGain);
    initialiser.fill(*mapping_, kTanhGain);
    initialiser.fill(*pixels_, kOutputGain);
  }

 protected:
  torch::Tensor residual(const torch::Tensor& lr_window) override {
    auto x = lr_window.select(1, 0);
    x = torch::tanh(features_(at_border(x, features_->weight)));
    x = torch::tanh(mapping_(at_border(x, mapping_->weight)));
    x = pixels_(at_border(x, pixels_->weight));
    return torch::pixel_shuffle(x, options().scale);
  }

 private:
  torch::nn::Conv2d features_{nullptr};
  torch::nn::Conv2d mapping_{nullptr};
  torch::nn::Conv2d pixels_{nullptr};
};

}  // namespace

std::shared_ptr<VsrNet> make_espcn(const ModelOptions& options) {
  return std::make_shared<Espcn>(options);
}

}  // namespace vsr::runtime
