// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/keep_in_fp32.hpp"

namespace vsr::runtime {
namespace {

template <class... Types>
bool is_any_of(const torch::nn::Module& module) {
  return (... || (module.as<Types>() != nullptr));
}

}  // namespace

bool is_normalisation(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any_of<BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d,
                   InstanceNorm3d, LayerNorm, GroupNorm, LocalResponseNorm, CrossMapLRN2d>(module);
}

bool is_softmax(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any_of<Softmax, Softmax2d, LogSoftmax, Softmin>(module);
}

bool is_loss(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any_of<L1Loss, KLDivLoss, MSELoss, BCELoss, HingeEmbeddingLoss, MultiMarginLoss,
                   CosineEmbeddingLoss, SmoothL1Loss, HuberLoss, MultiLabelMarginLoss,
                   SoftMarginLoss, MultiLabelSoftMarginLoss, TripletMarginLoss,
                   TripletMarginWithDistanceLoss, CTCLoss, PoissonNLLLoss, MarginRankingLoss,
                   NLLLoss, CrossEntropyLoss, BCEWithLogitsLoss, AdaptiveLogSoftmaxWithLoss>(
      module);
}

}  // namespace vsr::runtime
