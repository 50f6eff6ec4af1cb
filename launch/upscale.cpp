// SPDX-License-Identifier: Apache-2.0
#include "launch/upscale.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>

#include "comm/error.hpp"
#include "launch/train_setup.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/models/vsr_net.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "runtime/train/tensors.hpp"
#include "runtime/video/clip.hpp"
#include "runtime/video/dataset.hpp"
#include "runtime/video/video_writer.hpp"

namespace vsr::launch {
namespace {

using runtime::Clip;
using runtime::ImageU8;
using runtime::StoredParameters;
using runtime::Weights;

/// The weights to use.
/// @throws ConfigurationError when averages are asked for and none were kept
Weights choose_weights(const std::optional<Weights>& asked, const StoredParameters& stored,
                       const std::filesystem::path& checkpoint) {
  const bool has_averages = !stored.averages.empty();
  if (asked == Weights::ema && !has_averages)
    throw ConfigurationError(checkpoint.string() +
                             " holds no averages: its run had no --ema-decay; use --weights "
                             "masters, or leave --weights out");
  return asked.value_or(has_averages ? Weights::ema : Weights::masters);
}

void fill_parameters(runtime::VsrNet& net, const StoredParameters& stored, Weights weights) {
  const auto& all = weights == Weights::ema ? stored.averages : stored.masters;
  const torch::NoGradGuard no_gradients;
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < stored.parameters.size(); ++i) index[stored.parameters[i].name] = i;
  for (auto& item : net.named_parameters()) {
    const auto found = index.find(item.key());
    if (found == index.end() ||
        stored.parameters[found->second].shape != item.value().sizes().vec())
      throw ConfigurationError("the checkpoint has no parameter " + item.key() +
                               " of the shape its own configuration asks for");
    const std::vector<float>& values = all[found->second];
    std::copy(values.begin(), values.end(), item.value().data_ptr<float>());
  }
}

/// A window of frames around one frame after the other; frames are decoded once.
class SlidingWindow {
 public:
  SlidingWindow(Clip& clip, std::int64_t num_frame) : clip_(clip), num_frame_(num_frame) {}

  /// 1×T×3×h×w around `center`, mirrored at the ends of the clip.
  torch::Tensor at(std::int64_t center) {
    torch::Tensor window = torch::empty(
        {1, num_frame_, runtime::kChannels, clip_.height(), clip_.width()}, torch::kFloat);
    for (std::int64_t t = 0; t < num_frame_; ++t) {
      const std::int64_t frame =
          runtime::reflect_into({0, clip_.frame_count()}, center - num_frame_ / 2 + t);
      window[0][t].copy_(planes(frame));
    }
    frames_.erase(frames_.begin(), frames_.lower_bound(center - num_frame_));
    return window;
  }

 private:
  const torch::Tensor& planes(std::int64_t frame) {
    const auto found = frames_.find(frame);
    if (found != frames_.end()) return found->second;
    clip_.read(frame, picture_);
    torch::Tensor values =
        torch::empty({runtime::kChannels, picture_.height, picture_.width}, torch::kFloat);
    runtime::to_planes(picture_,
                       {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
    return frames_.emplace(frame, std::move(values)).first->second;
  }

  Clip& clip_;
  std::int64_t num_frame_;
  ImageU8 picture_;
  std::map<std::int64_t, torch::Tensor> frames_;
};

}  // namespace

UpscaleResult upscale(const UpscaleOptions& options, const UpscaleProgress& progress) {
  if (std::filesystem::exists(options.output))
    throw ConfigurationError(options.output.string() +
                             " exists already; remove it or choose another name for the output");
  const StoredParameters stored = runtime::read_parameters(options.checkpoint);
  const nlohmann::json configuration =
      stored.state.value("configuration", nlohmann::json::object());
  const auto network = runtime::make_network(model_options_of(configuration));
  const Weights weights = choose_weights(options.weights, stored, options.checkpoint);
  fill_parameters(*network, stored, weights);
  const runtime::Precision precision = options.precision.value_or(
      runtime::precision_from_name(configuration.value("precision", "fp16")));
  runtime::Fp16Module<runtime::VsrNet> net(network, precision);
  net.eval();

  const std::unique_ptr<Clip> clip = runtime::open_clip(options.input);
  const auto writer = runtime::open_writer(options.output, clip->frame_rate());
  SlidingWindow window(*clip, network->options().num_frame);
  const torch::InferenceMode no_gradients;
  for (std::int64_t frame = 0; frame < clip->frame_count(); ++frame) {
    writer->write(runtime::picture_of(net.forward(window.at(frame))));
    progress(frame + 1, clip->frame_count());
  }
  writer->finish();
  return {clip->frame_count(), stored.iteration, weights};
}

}  // namespace vsr::launch
