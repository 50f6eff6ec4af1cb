// SPDX-License-Identifier: Apache-2.0
#include "runtime/models/vsr_net.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <sstream>

#include "comm/error.hpp"
#include "runtime/models/bicubic.hpp"
#include "runtime/models/networks.hpp"

namespace vsr::runtime {
namespace {

struct Entry {
  std::shared_ptr<VsrNet> (*make)(const ModelOptions&);
  ModelOptions defaults;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> table{
      {make_espcn, {.name = "espcn", .num_frame = 1, .channels = 64, .blocks = 0}},
      {make_vespcn, {.name = "vespcn", .num_frame = 3, .channels = 32, .blocks = 4}}};
  return table;
}

const Entry& entry(const std::string& name) {
  for (const Entry& known : entries())
    if (known.defaults.name == name) return known;
  std::string list;
  for (const std::string& known : model_names()) list += (list.empty() ? "" : ", ") + known;
  throw UsageError("model '" + name + "' is unknown; choose one of: " + list);
}

void check_range(const ModelOptions& options, const std::string& what, int value, int low,
                 int high) {
  if (value >= low && value <= high) return;
  throw UsageError("model " + options.name + ": " + what + " is " + std::to_string(value) +
                   ", expected " + std::to_string(low) +
                   (low == high ? "" : " to " + std::to_string(high)));
}

}  // namespace

torch::Tensor VsrNet::forward(const torch::Tensor& lr_window) {
  if (lr_window.dim() != 5 || lr_window.size(1) != options_.num_frame || lr_window.size(2) != 3 ||
      lr_window.size(3) < 1 || lr_window.size(4) < 1 || lr_window.scalar_type() != at::kFloat) {
    std::ostringstream message;
    message << "model " << options_.name << ": got a window of shape " << lr_window.sizes()
            << " and dtype " << lr_window.scalar_type() << ", expected FP32 N×"
            << options_.num_frame << "×3×h×w";
    throw ArgumentError(message.str());
  }
  const auto base = bicubic_upscale(lr_window.select(1, options_.num_frame / 2), options_.scale);
  return residual(lr_window).to(at::kFloat) + base;
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Entry& known : entries()) result.push_back(known.defaults.name);
    return result;
  }();
  return names;
}

ModelOptions complete(ModelOptions options) {
  const ModelOptions& defaults = entry(options.name).defaults;
  if (options.num_frame == 0) options.num_frame = defaults.num_frame;
  if (options.channels == 0) options.channels = defaults.channels;
  if (options.blocks == 0) options.blocks = defaults.blocks;
  check_range(options, "scale", options.scale, 2, 4);
  check_range(options, "number of frames", options.num_frame, 1, defaults.num_frame == 1 ? 1 : 31);
  if (options.num_frame % 2 == 0)
    throw UsageError("model " + options.name + ": number of frames is " +
                     std::to_string(options.num_frame) +
                     ", expected an odd one: the centre counts");
  check_range(options, "width", options.channels, 2, 4096);
  check_range(options, "number of residual blocks", options.blocks, defaults.blocks == 0 ? 0 : 1,
              defaults.blocks == 0 ? 0 : 1024);
  return options;
}

std::shared_ptr<VsrNet> make_network(const ModelOptions& options) {
  return entry(options.name).make(complete(options));
}

std::int64_t parameter_count(const torch::nn::Module& net) {
  std::int64_t count = 0;
  for (const auto& parameter : net.parameters())
    if (parameter.requires_grad()) count += parameter.numel();
  return count;
}

torch::nn::Conv2d same_size_convolution(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2));
}

Initialiser::Initialiser(std::uint64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

void Initialiser::fill(torch::nn::Conv2dImpl& layer, double gain) {
  const torch::NoGradGuard no_grad;
  const auto fan_in = static_cast<double>(layer.weight.numel() / layer.weight.size(0));
  const double bound = gain * std::sqrt(3.0 / fan_in);
  layer.weight.uniform_(-bound, bound, generator_);
  layer.bias.zero_();
}

}  // namespace vsr::runtime
