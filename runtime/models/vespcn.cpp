// SPDX-License-Identifier: Apache-2.0
#include "runtime/models/networks.hpp"
#include "runtime/precision/precision.hpp"

namespace vsr::runtime {
namespace {

/// Two convolutions with a ReLU between them, added to their input.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(int width, Initialiser& initialiser) {
    first_ = register_module("first", same_size_convolution(width, width, 3));
    second_ = register_module("second", same_size_convolution(width, width, 3));
    initialiser.fill(*first_, kReluGain);
    initialiser.fill(*second_, kResidualGain);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = first_(at_border(x, first_->weight)).relu_();
    const auto block = second_(at_border(inner, second_->weight));
    return block + at_border(x, block);
  }

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::Conv2d second_{nullptr};
};
TORCH_MODULE(ResidualBlock);

class Vespcn : public VsrNet {
 public:
  explicit Vespcn(const ModelOptions& options) : VsrNet(options) {
    const int width = options.channels;
    Initialiser initialiser(options.seed);
    fusion_ = register_module("fusion", same_size_convolution(3 * options.num_frame, width, 3));
    initialiser.fill(*fusion_, kReluGain);
    for (int i = 0; i < options.blocks; ++i)
      blocks_.push_back(
          register_module("block_" + std::to_string(i), ResidualBlock(width, initialiser)));
    pixels_ = register_module("pixels",
                              same_size_convolution(width, 3 * options.scale * options.scale, 3));
    initialiser.fill(*pixels_, kOutputGain);
  }

 protected:
  torch::Tensor residual(const torch::Tensor& lr_window) override {
    auto x = lr_window.flatten(1, 2);
    x = fusion_(at_border(x, fusion_->weight)).relu_();
    for (ResidualBlock& block : blocks_) x = block(x);
    x = pixels_(at_border(x, pixels_->weight));
    return torch::pixel_shuffle(x, options().scale);
  }

 private:
  torch::nn::Conv2d fusion_{nullptr};
  std::vector<ResidualBlock> blocks_;
  torch::nn::Conv2d pixels_{nullptr};
};

}  // namespace

std::shared_ptr<VsrNet> make_vespcn(const ModelOptions& options) {
  return std::make_shared<Vespcn>(options);
}

}  // namespace vsr::runtime
