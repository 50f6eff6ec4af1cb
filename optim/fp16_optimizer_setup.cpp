// SPDX-License-Identifier: Apache-2.0
// How an optimizer is made, and how it grows by a param group.
#include <malloc.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "comm/device/device.hpp"
#include "comm/error.hpp"
#include "optim/fp16_optimizer_impl.hpp"
#include "optim/hash.hpp"

namespace vsr::optim {
namespace {

LossScaler scaler_of(const Fp16OptimizerOptions& options) {
  LossScalerOptions scaler = options.scaler;
  // The loss is multiplied by the scale, over a power of two below 2^16, in FP32.
  scaler.ceiling = std::min(scaler.ceiling, 0x1p127);
  scaler.floor = std::max(scaler.floor, 0x1p-110);
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
       << '|' << options.ema_decay << '|' << static_cast<int>(options.overlap) << '|'
       << options.bucket_bytes;
  return xxh3_64_of_text(text.str());
}

void require_equal(comm::Communicator& world, std::uint64_t mine) {
  require_same_on_all(world, mine,
                      "other parameters, buffers or optimizer options than rank 0; build the same "
                      "module with the same options on all ranks");
}

std::vector<NamedParameter> named_parameters(Fp16OptimizerOptions& options, InnerOptimizer& inner) {
  auto parameters =
      without_ties(options.parameters.empty() ? inner.parameters() : std::move(options.parameters));
  options.parameters.clear();
  inner.bind(parameters);
  layout_of(parameters);
  ParameterClaim().check(parameters);
  return parameters;
}

// Names, types and shapes too, as ModuleBuffers exchanges them before anything else is compared.
std::vector<NamedBuffer> checked_buffers(comm::Communicator& world, Fp16OptimizerOptions& options) {
  std::ostringstream text;
  for (const NamedBuffer& buffer : options.buffers)
    text << buffer.name << '|' << buffer.value.sizes() << '|' << buffer.value.dtype() << '\n';
  require_equal(world, xxh3_64_of_text(text.str()));
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

// The step's loops read and write gradients and replica in place.
comm::Communicator& with_reachable_memory(comm::Communicator& world) {
  const comm::Device* const device = world.bulk_device();
  if (device != nullptr && !device->is_host_accessible())
    throw ConfigurationError(
        "the step runs on the CPU in this version, and gradients would lie on " + device->name() +
        ", out of its reach; use --backend mpi");
  return world;
}

}  // namespace

void require_same_on_all(comm::Communicator& world, std::uint64_t mine, const std::string& what) {
  const std::vector<std::uint64_t> all = world.all_gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all.front())
      throw ConfigurationError("rank " + std::to_string(rank) + " has " + what);
}

FlatParts::FlatParts(comm::Communicator& world, std::span<const NamedParameter> parameters,
                     const Fp16OptimizerOptions& options, int leaves, std::size_t buffer_values,
                     const InnerOptimizer& inner)
    : layout(layout_of(parameters)),
      flat((require_equal(world, fingerprint(layout, options, inner, leaves, buffer_values)),
            with_reachable_memory(world)),
           layout, parameters),
      reducer(world, flat.gradients(), layout, options.reduction, leaves, options.overlap,
              options.bucket_bytes),
      agreement(world, layout, leaves, buffer_values),
      publisher(world, flat.replica(), segment_places(layout)),
      shard(world, layout, inner.rule().moments(), options.ema_decay > 0.0) {}

LocalParts::LocalParts(std::unique_ptr<torch::optim::Optimizer> optimizer,
                       Fp16OptimizerOptions given)
    : options(checked(std::move(given))),
      inner(std::move(optimizer)),
      parameters(named_parameters(options, inner)),
      scaler(scaler_of(options)) {}

Fp16Optimizer::Impl::Impl(LocalParts local, comm::Communicator& communicator)
    : LocalParts(std::move(local)),
      world(communicator),
      leaves(options.leaves == 0 ? communicator.world() : options.leaves),
      buffers(world, checked_buffers(world, options)),
      parts(std::make_unique<FlatParts>(world, parameters, options, leaves, buffers.values(),
                                        inner)) {
  claim.extend(parameters);
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

// All parameters with those of `group` that are new, named.
std::vector<NamedParameter> Fp16Optimizer::Impl::parameters_with(
    const torch::optim::OptimizerParamGroup& group, const std::vector<std::string>& names) const {
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
  return all;
}

// Everything that can fail comes before the first change, or is taken back.
void Fp16Optimizer::Impl::add_param_group(const torch::optim::OptimizerParamGroup& group,
                                          const std::vector<std::string>& names) {
  std::vector<NamedParameter> all;
  world.agree_all_ok("add_param_group", [&] {
    VSR_CHECK(is_between_steps(),
              "add_param_group comes between steps; finish this one or call discard_step");
    VSR_CHECK(!replicas_are_averages, "call publish_masters before add_param_group");
    all = parameters_with(group, names);
    layout_of(all);
    claim.check(all);
    inner.check_group(group, all);
  });
  const std::size_t first_new = parameters.size();
  inner.add_group(group, all);
  std::unique_ptr<FlatParts> next;
  try {
    world.agree_all_ok("add_param_group", [&] { inner.check_options(); });
    next = std::make_unique<FlatParts>(world, all, options, leaves, buffers.values(), inner);
  } catch (const Error&) {
    inner.remove_last_group();
    throw;
  }
  claim.extend(all);
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

Fp16Optimizer::Fp16Optimizer(std::unique_ptr<torch::optim::Optimizer> inner,
                             comm::Communicator& world, Fp16OptimizerOptions options) {
  std::optional<LocalParts> local;
  world.agree_all_ok("making an Fp16Optimizer",
                     [&] { local.emplace(std::move(inner), std::move(options)); });
  impl_ = std::make_unique<Impl>(std::move(*local), world);
}
Fp16Optimizer::~Fp16Optimizer() = default;

void Fp16Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group,
                                    const std::vector<std::string>& names) {
  impl_->add_param_group(group, names);
}

}  // namespace vsr::optim
