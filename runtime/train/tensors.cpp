// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/tensors.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace vsr::runtime {
namespace {

void copy_into(const std::vector<float>& values, const torch::Tensor& target) {
  std::copy(values.begin(), values.end(), target.data_ptr<float>());
}

}  // namespace

LeafBatch fetch_leaf(WindowDataset& data, const Sampler& sampler, std::int64_t step, int leaf) {
  const std::vector<SampleDraw> draws = sampler.leaf(step, leaf);
  const DatasetOptions& options = data.options();
  const auto batch = static_cast<std::int64_t>(draws.size());
  const std::int64_t low = options.gt_size / options.scale;
  LeafBatch out{torch::empty({batch, options.num_frame, kChannels, low, low}, torch::kFloat),
                torch::empty({batch, kChannels, options.gt_size, options.gt_size}, torch::kFloat)};
  for (std::int64_t b = 0; b < batch; ++b) {
    const Sample sample = data.fetch(draws[static_cast<std::size_t>(b)]);
    copy_into(sample.lr, out.lr[b]);
    copy_into(sample.gt, out.gt[b]);
  }
  return out;
}

torch::Tensor window_tensor(const HeldOutFrame& frame) {
  torch::Tensor window =
      torch::empty({1, frame.num_frame, kChannels, frame.lr_height, frame.lr_width}, torch::kFloat);
  copy_into(frame.lr, window);
  return window;
}

ImageU8 picture_of(const torch::Tensor& enlarged) {
  const torch::Tensor planes = enlarged[0].to(torch::kFloat).contiguous();
  return from_planes({planes.data_ptr<float>(), static_cast<std::size_t>(planes.numel())},
                     planes.size(1), planes.size(2));
}

}  // namespace vsr::runtime
