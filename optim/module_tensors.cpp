// SPDX-License-Identifier: Apache-2.0
#include "optim/module_tensors.hpp"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "comm/error.hpp"
#include "optim/agreement.hpp"
#include "optim/hash.hpp"

namespace vsr::optim {
namespace {

Dtype dtype_of(const NamedParameter& parameter) {
  switch (parameter.replica.scalar_type()) {
    case torch::kHalf:
      return Dtype::fp16;
    case torch::kBFloat16:
      return Dtype::bf16;
    case torch::kFloat:
      return Dtype::fp32;
    default:
      throw ConfigurationError("parameter " + parameter.name + " has type " +
                               torch::toString(parameter.replica.scalar_type()) +
                               ", expected Half, BFloat16 or Float; convert the module first");
  }
}

void require_cpu(const torch::Tensor& tensor, const std::string& name) {
  if (!tensor.device().is_cpu())
    throw ConfigurationError(name + " is on " + tensor.device().str() +
                             "; this version steps on the CPU");
}

// A contiguous tensor at `bytes` that keeps `owner` alive.
torch::Tensor view_into(const std::shared_ptr<comm::PeerBuffer>& owner, std::span<std::byte> bytes,
                        const torch::Tensor& like) {
  return torch::from_blob(
      bytes.data(), like.sizes(), [owner](void*) {}, torch::TensorOptions().dtype(like.dtype()));
}

std::span<std::byte> bytes_of(const FlatLayout& layout, const comm::PeerBuffer& buffer,
                              std::size_t parameter) {
  const ParameterPlace& place = layout.places()[parameter];
  const Segment& segment = layout.segments()[place.segment];
  const std::size_t width = element_bytes(segment.dtype);
  return buffer.mine().subspan(
      segment.offset_bytes + static_cast<std::size_t>(place.offset) * width,
      static_cast<std::size_t>(place.numel) * width);
}

std::span<std::byte> bytes_of(const torch::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

// Equal values are their own mean, to the last bit.
double mean_of(std::span<const std::vector<double>> leaves, std::size_t index) {
  const double first = leaves.front()[index];
  double sum = 0.0;
  bool are_equal = true;
  for (const std::vector<double>& leaf : leaves) {
    sum += leaf[index];
    are_equal = are_equal && leaf[index] == first;
  }
  return are_equal ? first : sum / static_cast<double>(leaves.size());
}

// The bytes between the first and the last element.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  const NamedParameter* parameter;
};

Extent extent_of(const NamedParameter& parameter) {
  const torch::Tensor& tensor = parameter.replica;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto* const begin = static_cast<const std::byte*>(tensor.data_ptr());
  return {begin, begin + static_cast<std::size_t>(last + 1) * tensor.element_size(), &parameter};
}

// Views that interleave share no element.
bool overlap(const Extent& a, const Extent& b) {
  const auto status = at::get_overlap_status(a.parameter->replica, b.parameter->replica);
  return status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
}

// Two tensors over one memory would become two parameters; one tensor under two names is tied.
void require_apart(std::span<const NamedParameter> parameters) {
  std::vector<Extent> extents;
  for (const NamedParameter& parameter : parameters)
    if (parameter.replica.numel() > 0) extents.push_back(extent_of(parameter));
  std::ranges::sort(extents, {}, &Extent::begin);
  for (std::size_t i = 1; i < extents.size(); ++i)
    if (extents[i].begin < extents[i - 1].end && overlap(extents[i - 1], extents[i]))
      throw ConfigurationError("parameters " + extents[i - 1].parameter->name + " and " +
                               extents[i].parameter->name +
                               " share memory but are different tensors, so a step would part "
                               "them; register one tensor under both names instead");
}

}  // namespace

std::vector<NamedParameter> without_ties(std::vector<NamedParameter> parameters) {
  std::unordered_set<const void*> seen;
  std::vector<NamedParameter> unique;
  for (NamedParameter& parameter : parameters)
    if (seen.insert(parameter.replica.unsafeGetTensorImpl()).second)
      unique.push_back(std::move(parameter));
  return unique;
}

FlatLayout layout_of(std::span<const NamedParameter> parameters) {
  std::vector<ParameterSpec> specs;
  for (const NamedParameter& parameter : parameters) {
    require_cpu(parameter.replica, "parameter " + parameter.name);
    if (parameter.master.defined() && parameter.master.sizes() != parameter.replica.sizes())
      throw ConfigurationError("the master of parameter " + parameter.name +
                               " has another shape than the parameter");
    specs.push_back({parameter.name, parameter.replica.sizes().vec(), dtype_of(parameter),
                     parameter.replica.requires_grad()});
  }
  require_apart(parameters);
  return FlatLayout(std::move(specs));
}

FlatBuffers::FlatBuffers(comm::Communicator& world, const FlatLayout& layout,
                         std::span<const NamedParameter> parameters)
    : layout_(layout),
      replica_(std::make_shared<comm::PeerBuffer>(world, layout.total_bytes())),
      gradients_(std::make_shared<comm::PeerBuffer>(world, layout.total_bytes())),
      flags_(std::make_shared<std::vector<std::uint8_t>>(parameters.size())),
      complete_(std::make_shared<std::function<void(std::size_t)>>()),
      accumulators_(parameters.size()) {
  for (const NamedParameter& parameter : parameters) parameters_.push_back(parameter.replica);
  gradient_views_.resize(parameters_.size());
}

std::span<std::byte> FlatBuffers::replica_of(std::size_t parameter) const {
  return bytes_of(layout_, *replica_, parameter);
}

void FlatBuffers::attach() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].set_data(view_into(replica_, replica_of(i), parameters_[i]));
    parameters_[i].mutable_grad().reset();
    if (parameters_[i].requires_grad()) thaw(i);
  }
}

void FlatBuffers::thaw(std::size_t i) {
  torch::Tensor& parameter = parameters_[i];
  gradient_views_[i] = view_into(gradients_, bytes_of(layout_, *gradients_, i), parameter);
  parameter.mutable_grad() = gradient_views_[i];
  accumulators_[i] = torch::autograd::impl::grad_accumulator(parameter);
  accumulators_[i]->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [flags = flags_, complete = complete_, view = gradient_views_[i], i,
       parameter = parameter.unsafeGetTensorImpl()](const torch::autograd::variable_list& outputs,
                                                    const torch::autograd::variable_list& inputs) {
        if (inputs.empty() || !inputs.front().defined()) return outputs;
        (*flags)[i] |= ParameterFlags::kUsed;
        // One that somebody put elsewhere is brought back after the pass.
        const bool is_in_place = parameter->mutable_grad().is_same(view);
        if (*complete && is_in_place) (*complete)(i);
        return outputs;
      }));
}

void FlatBuffers::freeze(std::size_t i) {
  gradient_views_[i].reset();
  parameters_[i].mutable_grad().reset();
  accumulators_[i].reset();
}

std::vector<std::uint8_t> FlatBuffers::trainable() const {
  std::vector<std::uint8_t> trainable;
  for (const torch::Tensor& parameter : parameters_)
    trainable.push_back(parameter.requires_grad() ? 1 : 0);
  return trainable;
}

void FlatBuffers::clear_gradients() {
  const std::span<std::byte> bytes = gradients_->mine();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

void FlatBuffers::zero_gradients() {
  clear_gradients();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_trainable = parameters_[i].requires_grad();
    (*flags_)[i] = is_trainable ? ParameterFlags::kTrainable : 0;
    if (is_trainable && !gradient_views_[i].defined()) thaw(i);
    if (!is_trainable && gradient_views_[i].defined()) freeze(i);
    if (is_trainable && !parameters_[i].grad().is_same(gradient_views_[i]))
      parameters_[i].mutable_grad() = gradient_views_[i];
  }
}

void FlatBuffers::require_attached() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    VSR_CHECK(parameters_[i].numel() == 0 || parameters_[i].data_ptr() == replica_of(i).data(),
              "the memory of parameter " + layout_.parameters()[i].name +
                  " was replaced after the optimizer was made (by torch::load, to() or set_data), "
                  "so no step would reach it; load and convert the module before");
}

void FlatBuffers::adopt_gradients(bool is_first) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& view = gradient_views_[i];
    const torch::Tensor gradient = parameters_[i].grad();
    VSR_CHECK(view.defined() || !gradient.defined(),
              "parameter " + layout_.parameters()[i].name +
                  " was thawed inside a step; thaw between step and zero_grad");
    if (gradient.is_same(view)) continue;
    if (gradient.defined() && ((*flags_)[i] & ParameterFlags::kUsed) != 0) {
      VSR_CHECK(is_first, "the gradient of " + layout_.parameters()[i].name +
                              " was replaced between two leaves; use our zero_grad only");
      if (gradient.numel() > 0 && gradient.data_ptr() != view.data_ptr()) view.copy_(gradient);
    }
    parameters_[i].mutable_grad() = view;
  }
}

ModuleBuffers::ModuleBuffers(comm::Communicator& world, std::vector<NamedBuffer> buffers)
    : buffers_(std::move(buffers)) {
  const torch::NoGradGuard no_grad;
  for (NamedBuffer& buffer : buffers_) {
    require_cpu(buffer.value, "buffer " + buffer.name);
    torch::Tensor values = buffer.value.contiguous();
    world.broadcast_bytes(bytes_of(values), 0);
    buffer.value.copy_(values);
    values_ += static_cast<std::size_t>(values.numel());
  }
  remember();
}

void ModuleBuffers::remember() {
  const torch::NoGradGuard no_grad;
  step_values_.clear();
  for (const NamedBuffer& buffer : buffers_) step_values_.push_back(buffer.value.clone());
}

std::uint64_t ModuleBuffers::hash() const {
  std::vector<std::uint64_t> hashes;
  for (const torch::Tensor& values : step_values_)
    hashes.push_back(xxh3_64(bytes_of(values.contiguous())));
  return xxh3_64(std::as_bytes(std::span(hashes)));
}

void ModuleBuffers::restore() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].value.copy_(step_values_[i]);
}

void ModuleBuffers::take_leaf(std::vector<double>& results) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const torch::Tensor values = buffers_[i].value.to(torch::kDouble).contiguous();
    const double* const first = values.const_data_ptr<double>();
    results.insert(results.end(), first, first + values.numel());
    buffers_[i].value.copy_(step_values_[i]);
  }
}

void ModuleBuffers::commit(std::span<const std::vector<double>> leaf_results) {
  const torch::NoGradGuard no_grad;
  std::size_t at = 0;
  for (NamedBuffer& buffer : buffers_) {
    const auto numel = static_cast<std::size_t>(buffer.value.numel());
    const torch::Tensor mean = torch::empty(buffer.value.sizes(), torch::kDouble);
    const std::span<double> means(mean.data_ptr<double>(), numel);
    const bool is_mean = buffer.value.is_floating_point();
    const auto leaves = is_mean ? leaf_results : leaf_results.first(1);
    for (std::size_t i = 0; i < numel; ++i) means[i] = mean_of(leaves, at + i);
    if (!buffer.value.to(torch::kDouble).equal(mean)) buffer.value.copy_(mean);
    at += numel;
  }
}

}  // namespace vsr::optim
