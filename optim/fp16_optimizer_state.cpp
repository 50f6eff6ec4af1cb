// SPDX-License-Identifier: Apache-2.0
// Everything around the step: how an optimizer is made, grows, is saved, loaded and published.
#include <malloc.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "comm/error.hpp"
#include "optim/fp16_optimizer_impl.hpp"
#include "optim/hash.hpp"
#include "optim/large_array.hpp"

namespace vsr::optim {
namespace {

LossScaler scaler_of(const Fp16OptimizerOptions& options) {
  LossScalerOptions scaler = options.scaler;
  scaler.ceiling = std::min(scaler.ceiling, 0x1p127);  // the loss is multiplied in FP32
  return options.dynamic_loss_scale
             ? LossScaler::dynamic(scaler)
             : LossScaler::fixed(static_cast<float>(options.static_loss_scale), scaler);
}

// Everything that must be the same on all ranks before the first collective that depends on it.
std::uint64_t fingerprint(const FlatLayout& layout, const Fp16OptimizerOptions& options,
                          const InnerOptimizer& inner, int leaves, std::size_t buffer_values) {
  std::ostringstream text;
  text << std::hexfloat;
  for (const ParameterSpec& spec : layout.parameters()) {
    text << spec.name << '|' << dtype_name(spec.dtype) << '|' << spec.trainable;
    for (const std::int64_t extent : spec.shape) text << '|' << extent;
    text << '\n';
  }
  text << inner.kind() << '|';
  for (const auto& group : inner.options())
    for (const auto& [name, number] : group) text << name << '=' << number << '|';
  for (const std::ptrdiff_t group : inner.group_of()) text << group << '|';
  const LossScalerOptions& s = options.scaler;
  text << buffer_values << '|' << leaves << '|' << reduction_name(options.reduction) << '|'
       << options.dynamic_loss_scale << '|' << options.static_loss_scale << '|' << s.initial_scale
       << '|' << s.growth_factor << '|' << s.backoff_factor << '|' << s.window_steps << '|'
       << s.growth_delay << '|' << s.hysteresis << '|' << s.consecutive_hysteresis << '|' << s.floor
       << '|' << s.ceiling << '|' << s.max_skips_at_floor << '|' << options.replica_check_steps
       << '|' << options.ema_decay;
  const std::string all = text.str();
  return xxh3_64(std::as_bytes(std::span(all)));
}

void require_equal(comm::Communicator& world, std::uint64_t mine) {
  const std::vector<std::uint64_t> all = world.all_gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all.front())
      throw ConfigurationError("rank " + std::to_string(rank) +
                               " has other parameters, buffers or optimizer options than rank 0; "
                               "build the same module with the same options on all ranks");
}

std::vector<NamedParameter> named_parameters(Fp16OptimizerOptions& options, InnerOptimizer& inner) {
  auto parameters =
      without_ties(options.parameters.empty() ? inner.parameters() : std::move(options.parameters));
  options.parameters.clear();
  inner.bind(parameters);
  return parameters;
}

// Names, types and shapes too, as ModuleBuffers exchanges them before anything else is compared.
std::vector<NamedBuffer> checked_buffers(comm::Communicator& world, Fp16OptimizerOptions& options) {
  std::ostringstream text;
  for (const NamedBuffer& buffer : options.buffers)
    text << buffer.name << '|' << buffer.value.sizes() << '|' << buffer.value.dtype() << '\n';
  const std::string all = text.str();
  require_equal(world, xxh3_64(std::as_bytes(std::span(all))));
  return std::exchange(options.buffers, {});
}

// Parameters lay in the heap until they became views; glibc keeps freed memory unless asked.
void return_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

Fp16OptimizerOptions checked(Fp16OptimizerOptions options) {
  if (!(options.ema_decay >= 0.0 && options.ema_decay < 1.0))
    throw ConfigurationError("ema_decay is " + std::to_string(options.ema_decay) +
                             ", expected a number in (0, 1), or 0 for no average");
  if (options.leaves < 0)
    throw ConfigurationError("leaves is " + std::to_string(options.leaves) +
                             ", expected at least 1, or 0 for one a rank");
  return options;
}

}  // namespace

FlatParts::FlatParts(comm::Communicator& world, std::span<const NamedParameter> parameters,
                     const Fp16OptimizerOptions& options, int leaves, std::size_t buffer_values,
                     const InnerOptimizer& inner)
    : layout(layout_of(parameters)),
      flat(
          (require_equal(world, fingerprint(layout, options, inner, leaves, buffer_values)), world),
          layout, parameters),
      reducer(world, flat.gradients(), layout, options.reduction, leaves),
      agreement(world, layout, leaves, buffer_values),
      publisher(world, flat.replica(), segment_places(layout)),
      shard(world, layout, inner.rule().moments(), options.ema_decay > 0.0) {}

Fp16Optimizer::Impl::Impl(std::unique_ptr<torch::optim::Optimizer> optimizer,
                          comm::Communicator& communicator, Fp16OptimizerOptions given)
    : world(communicator),
      options(checked(std::move(given))),
      inner(std::move(optimizer)),
      parameters(named_parameters(options, inner)),
      leaves(options.leaves == 0 ? communicator.world() : options.leaves),
      scaler(scaler_of(options)),
      buffers(world, checked_buffers(world, options)),
      parts(std::make_unique<FlatParts>(world, parameters, options, leaves, buffers.values(),
                                        inner)) {
  take_masters_from_rank_0(0);
  take_inner_state(0);
  parts->shard.start_ema();
  attach();
  return_freed_memory();
}

void Fp16Optimizer::Impl::take_masters_from_rank_0(std::size_t first_parameter) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = first_parameter; i < parameters.size(); ++i) {
    NamedParameter& parameter = parameters[i];
    const torch::Tensor& source = parameter.master.defined() ? parameter.master : parameter.replica;
    // A copy, as the caller's own tensor must not change.
    const torch::Tensor values =
        source.detach().to(torch::kFloat).clone(torch::MemoryFormat::Contiguous);
    const std::span<float> master(values.data_ptr<float>(),
                                  static_cast<std::size_t>(values.numel()));
    world.broadcast(master, 0);
    parts->shard.set(MasterShard::kMaster, i, master);
    const ParameterPlace& place = parts->layout.places()[i];
    round_to(parts->layout.segments()[place.segment].dtype, master, parts->flat.replica_of(i),
             active_isa());
    parameter.master.reset();
  }
}

// Rank 0's state counts, as its parameters do. Moments that it lacks start as the rule says.
void Fp16Optimizer::Impl::take_inner_state(std::size_t first_parameter) {
  const torch::NoGradGuard no_grad;
  const std::size_t moments = inner.rule().moments().size();
  for (std::size_t i = first_parameter; i < parameters.size(); ++i) {
    if (inner.group_of()[i] < 0) continue;
    const auto found = inner.state_of(i, parameters[i].replica);
    const ParameterState state = found.value_or(ParameterState());
    const std::int64_t numel = parameters[i].replica.numel();
    for (std::size_t moment = 0; moment < moments; ++moment) {
      const torch::Tensor values =
          torch::full({numel}, inner.rule().initial_moment(), torch::kFloat);
      if (moment < state.moments.size() && state.moments[moment].defined())
        values.copy_(state.moments[moment].reshape({numel}));
      const std::span<float> span(values.data_ptr<float>(), static_cast<std::size_t>(numel));
      world.broadcast(span, 0);
      parts->shard.set(MasterShard::kFirstMoment + moment, i, span);
    }
    ParameterCounters counters{.steps = state.steps};
    for (std::int64_t step = 0; step < state.steps; ++step) {
      counters.beta1_power *= state.beta1;
      counters.beta2_power *= state.beta2;
    }
    world.broadcast(std::span<ParameterCounters>(&counters, 1), 0);
    parts->shard.counters()[i] = counters;
  }
  inner.get().state().clear();
}

void Fp16Optimizer::Impl::attach() {
  parts->flat.attach();
  inner.rule().attach(parts->shard, inner.group_of());
}

void Fp16Optimizer::Impl::move_shard_to(FlatParts& next) const {
  const std::size_t known = parts->layout.parameters().size();
  for (std::size_t i = 0; i < known; ++i) {
    for (std::size_t array = 0; array < parts->shard.arrays().size(); ++array)
      next.shard.set(array, i, parts->shard.gather(array, i));
    next.shard.counters()[i] = parts->shard.counters()[i];
    const std::span<const std::byte> replica = parts->flat.replica_of(i);
    std::ranges::copy(replica, next.flat.replica_of(i).begin());
  }
}

void Fp16Optimizer::Impl::add_param_group(const torch::optim::OptimizerParamGroup& group,
                                          const std::vector<std::string>& names) {
  VSR_CHECK(is_between_steps(), "add_param_group comes between steps");
  VSR_CHECK(!replicas_are_averages, "call publish_masters before add_param_group");
  std::vector<NamedParameter> all = parameters;
  std::unordered_set<const void*> known;
  for (const NamedParameter& parameter : all) known.insert(parameter.replica.unsafeGetTensorImpl());
  std::size_t next_name = 0;
  for (const torch::Tensor& tensor : group.params()) {
    if (!known.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (!names.empty() && next_name >= names.size())
      throw ConfigurationError("the new param group has more new parameters than the " +
                               std::to_string(names.size()) + " names given");
    const std::string name =
        names.empty() ? "param_" + std::to_string(all.size()) : names[next_name++];
    all.push_back({name, tensor, {}});
  }
  if (next_name < names.size())
    throw ConfigurationError("the new param group has " + std::to_string(next_name) +
                             " new parameters, but " + std::to_string(names.size()) +
                             " names were given");
  inner.add_group(group, all);
  const std::size_t first_new = parameters.size();
  auto next = std::make_unique<FlatParts>(world, all, options, leaves, buffers.values(), inner);
  move_shard_to(*next);
  parameters = std::move(all);
  parts = std::move(next);
  take_masters_from_rank_0(first_new);
  take_inner_state(first_new);
  if (parts->shard.has_ema())
    for (const Piece& piece : parts->shard.pieces())
      if (piece.parameter >= first_new)
        std::ranges::copy(parts->shard.part(MasterShard::kMaster, piece),
                          parts->shard.part(parts->shard.ema(), piece).begin());
  attach();
  current.reset();
  return_freed_memory();
}

std::vector<torch::Tensor> Fp16Optimizer::Impl::mean_gradients() {
  const MasterShard& shard = parts->shard;
  const LargeArray<float> mine(shard.elements());
  const StepInput input{.gradients = parts->reducer,
                        .factor = factor(),
                        .used = current->agreed->used,
                        .publisher = parts->publisher};
  for (const Piece& piece : shard.pieces())
    mean_gradient(update_piece(shard, piece, input),
                  shard.part(mine.span(), shard.segment_of(piece)), shard.isa());
  std::vector<torch::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    gradients.emplace_back();
    if (current->agreed->used[i] == 0) continue;
    std::vector<float> whole = shard.gather(mine.span(), i);
    gradients.back() =
        torch::from_blob(whole.data(), parameters[i].replica.sizes(), torch::kFloat).clone();
  }
  return gradients;
}

OptimizerState Fp16Optimizer::Impl::state() const {
  const auto counters = std::as_const(parts->shard).counters();
  return {scaler.state(), applied_steps, skipped_steps, {counters.begin(), counters.end()}};
}

void Fp16Optimizer::Impl::load_state(const OptimizerState& state) {
  const auto counters = parts->shard.counters();
  VSR_CHECK(state.parameters.size() == counters.size(),
            "the state counts " + std::to_string(state.parameters.size()) +
                " parameters, this optimizer has " + std::to_string(counters.size()));
  scaler.load_state(state.scaler);
  applied_steps = state.applied_steps;
  skipped_steps = state.skipped_steps;
  std::ranges::copy(state.parameters, counters.begin());
}

StateDict Fp16Optimizer::Impl::state_dict() const {
  const ShardView view = parts->shard.view();
  StateDict dict{state(), inner.options(), {}, view.intervals(), {}};
  for (const NamedParameter& parameter : parameters) dict.parameters.push_back(parameter.name);
  for (std::size_t array = 0; array < view.arrays.size(); ++array)
    dict.arrays[view.arrays[array]] = view.copy(array);
  return dict;
}

void Fp16Optimizer::Impl::load_state_dict(const StateDict& dict) {
  const ShardView view = parts->shard.view();
  world.agree_all_ok("load_state_dict", [&] {
    VSR_CHECK(is_between_steps(), "load_state_dict comes between steps");
    VSR_CHECK(dict.parameters.size() == parameters.size() &&
                  dict.state.parameters.size() == parameters.size(),
              "the state has " + std::to_string(dict.parameters.size()) +
                  " parameters, this optimizer has " + std::to_string(parameters.size()));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      VSR_CHECK(dict.parameters[i] == parameters[i].name,
                "parameter " + std::to_string(i) + " is called " + dict.parameters[i] +
                    " in the state and " + parameters[i].name + " here");
    VSR_CHECK(dict.intervals == view.intervals(),
              "the state was cut for another number of ranks or other shapes; use a checkpoint to "
              "change the number of ranks");
    for (const std::string& array : view.arrays) {
      const auto found = dict.arrays.find(array);
      VSR_CHECK(found != dict.arrays.end(), "the state lacks the array " + array);
      VSR_CHECK(static_cast<std::int64_t>(found->second.size()) == view.elements(),
                "the array " + array + " of the state has another length");
    }
    LossScaler(scaler).load_state(dict.state.scaler);  // throws here rather than half-way
    inner.set_options(dict.groups);
  });
  load_state(dict.state);
  for (std::size_t array = 0; array < view.arrays.size(); ++array)
    view.fill(array, dict.arrays.at(view.arrays[array]));
  publish(MasterShard::kMaster);
}

void Fp16Optimizer::Impl::publish(std::size_t array) {
  world.barrier();  // a peer may still read its replica
  parts->shard.round_to_replicas(array, parts->publisher);
  parts->publisher.publish();
  replicas_are_averages = array != MasterShard::kMaster;
}

std::uint64_t Fp16Optimizer::Impl::replica_hash() const {
  return xxh3_64(parts->flat.replica().mine());
}

Fp16Optimizer::Fp16Optimizer(std::unique_ptr<torch::optim::Optimizer> inner,
                             comm::Communicator& world, Fp16OptimizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(inner), world, std::move(options))) {}
Fp16Optimizer::~Fp16Optimizer() = default;

void Fp16Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group,
                                    const std::vector<std::string>& names) {
  impl_->add_param_group(group, names);
}

std::int64_t Fp16Optimizer::applied_steps() const noexcept {
  return impl_->applied_steps;
}

OptimizerState Fp16Optimizer::state() const {
  return impl_->state();
}
void Fp16Optimizer::load_state(const OptimizerState& state) {
  impl_->load_state(state);
}

ShardView Fp16Optimizer::shard() {
  return impl_->parts->shard.view();
}
StateDict Fp16Optimizer::state_dict() const {
  return impl_->state_dict();
}
void Fp16Optimizer::load_state_dict(const StateDict& dict) {
  impl_->load_state_dict(dict);
}

void Fp16Optimizer::publish_masters() {
  impl_->publish(MasterShard::kMaster);
}
void Fp16Optimizer::publish_ema() {
  VSR_CHECK(impl_->parts->shard.has_ema(), "no moving average is kept; set ema_decay");
  VSR_CHECK(!impl_->current, "publish_ema comes between step and zero_grad");
  impl_->publish(impl_->parts->shard.ema());
}

std::string Fp16Optimizer::masters_hash() {
  return impl_->parts->shard.masters_hash(impl_->parts->flat.trainable());
}
std::uint64_t Fp16Optimizer::replica_hash() const {
  return impl_->replica_hash();
}
const std::string& Fp16Optimizer::shared_memory_notice() const noexcept {
  return impl_->parts->flat.replica().notice();
}
const FlatLayout& Fp16Optimizer::layout() const noexcept {
  return impl_->parts->layout;
}

}  // namespace vsr::optim
