// SPDX-License-Identifier: Apache-2.0
// What an optimizer knows: shown, saved, loaded and published.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "comm/error.hpp"
#include "optim/fp16_optimizer_impl.hpp"
#include "optim/hash.hpp"
#include "optim/large_array.hpp"
#include "optim/number_text.hpp"

namespace vsr::optim {
namespace {

// Of what must be the same on all ranks.
std::uint64_t hash_of_plain_state(const StateDict& dict) {
  std::ostringstream text;
  text << std::hexfloat;
  const LossScalerState& s = dict.state.scaler;
  text << s.scale << '|' << s.clean_steps << '|' << s.hysteresis_left << '|' << s.skips_at_floor
       << '|';
  text << dict.state.applied_steps << '|' << dict.state.skipped_steps << '|';
  for (const ParameterCounters& c : dict.state.parameters)
    text << c.steps << '|' << c.beta1_power << '|' << c.beta2_power << '|';
  for (const auto& group : dict.groups)
    for (const auto& [name, number] : group) text << name << '=' << number << '|';
  return xxh3_64_of_text(text.str());
}

}  // namespace

// Unscaled and clipped, where this rank's shard holds them.
void Fp16Optimizer::Impl::write_mean_gradients(std::span<float> shard_values) {
  const MasterShard& shard = parts->shard;
  const StepInput input{.gradients = parts->reducer,
                        .factor = factor(),
                        .used = current->agreed->used,
                        .publisher = parts->publisher};
  for (const Piece& piece : shard.pieces())
    mean_gradient(update_piece(shard, piece, input),
                  shard.part(shard_values, shard.segment_of(piece)), shard.isa());
}

bool Fp16Optimizer::Impl::has_mean_gradient() {
  const LargeArray<float> mine(parts->shard.elements());
  write_mean_gradients(mine.span());
  return std::ranges::any_of(mine.span(), [](float value) { return value != 0.0F; });
}

std::vector<torch::Tensor> Fp16Optimizer::Impl::mean_gradients() {
  const MasterShard& shard = parts->shard;
  const LargeArray<float> mine(shard.elements());
  write_mean_gradients(mine.span());
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

void Fp16Optimizer::Impl::check_state(const OptimizerState& state) const {
  VSR_CHECK(state.parameters.size() == parameters.size(),
            "the state counts " + std::to_string(state.parameters.size()) +
                " parameters, this optimizer has " + std::to_string(parameters.size()));
  VSR_CHECK(state.applied_steps >= 0 && state.skipped_steps >= 0,
            "the state counts " + std::to_string(state.applied_steps) + " applied and " +
                std::to_string(state.skipped_steps) + " skipped steps");
  const auto is_power = [](double power) { return power >= 0.0 && power <= 1.0; };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterCounters& counters = state.parameters[i];
    VSR_CHECK(
        counters.steps >= 0 && is_power(counters.beta1_power) && is_power(counters.beta2_power),
        "the state of parameter " + parameters[i].name + " counts " +
            std::to_string(counters.steps) + " steps with powers of betas " +
            number_text(counters.beta1_power) + " and " + number_text(counters.beta2_power));
  }
  LossScaler(scaler).load_state(state.scaler);  // throws here rather than half-way
}

void Fp16Optimizer::Impl::load_state(const OptimizerState& state) {
  VSR_CHECK(is_between_steps(), "state is loaded between steps; call discard_step before");
  check_state(state);
  const auto counters = parts->shard.counters();
  current.reset();
  scaler.load_state(state.scaler);
  applied_steps = state.applied_steps;
  skipped_steps = state.skipped_steps;
  std::ranges::copy(state.parameters, counters.begin());
}

StateDict Fp16Optimizer::Impl::state_dict() const {
  const ShardView view = parts->shard.view();
  StateDict dict;
  dict.state = state();
  dict.optimizer = inner.kind();
  dict.groups = inner.options();
  for (const NamedParameter& parameter : parameters) {
    dict.parameters.push_back(parameter.name);
    dict.shapes.push_back(parameter.replica.sizes().vec());
  }
  dict.intervals = view.intervals();
  for (std::size_t array = 0; array < view.arrays.size(); ++array)
    dict.arrays[view.arrays[array]] = view.copy(array);
  return dict;
}

// Everything this rank can check alone.
void Fp16Optimizer::Impl::check_dict(const StateDict& dict, const ShardView& view) const {
  VSR_CHECK(is_between_steps(),
            "load_state_dict comes between steps; finish this one or call discard_step");
  VSR_CHECK(dict.optimizer == inner.kind(),
            "the state is of " + dict.optimizer + ", the inner optimizer here is " + inner.kind());
  VSR_CHECK(dict.parameters.size() == parameters.size() && dict.shapes.size() == parameters.size(),
            "the state has " + std::to_string(dict.parameters.size()) +
                " parameters, this optimizer has " + std::to_string(parameters.size()));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    VSR_CHECK(dict.parameters[i] == parameters[i].name,
              "parameter " + std::to_string(i) + " is called " + dict.parameters[i] +
                  " in the state and " + parameters[i].name + " here");
    VSR_CHECK(dict.shapes[i] == parameters[i].replica.sizes(),
              "parameter " + parameters[i].name + " has another shape in the state");
  }
  VSR_CHECK(dict.intervals == view.intervals(),
            "the state was cut for another number of ranks or other shapes; use a checkpoint to "
            "change the number of ranks");
  for (const auto& [array, values] : dict.arrays)
    VSR_CHECK(std::ranges::find(view.arrays, array) != view.arrays.end(),
              "the state has the array " + array +
                  ", which this optimizer, with its options, does not keep");
  for (const std::string& array : view.arrays) {
    const auto found = dict.arrays.find(array);
    VSR_CHECK(found != dict.arrays.end(), "the state lacks the array " + array);
    VSR_CHECK(static_cast<std::int64_t>(found->second.size()) == view.elements(),
              "the array " + array + " of the state has another length");
    VSR_CHECK(std::ranges::all_of(found->second, [](float value) { return std::isfinite(value); }),
              "the array " + array + " of the state holds values that are not finite");
  }
  check_state(dict.state);
  inner.check_numbers(dict.groups);
}

void Fp16Optimizer::Impl::load_state_dict(const StateDict& dict) {
  const ShardView view = parts->shard.view();
  world.agree_all_ok("load_state_dict", [&] { check_dict(dict, view); });
  require_same_on_all(world, hash_of_plain_state(dict),
                      "another state (counters, loss scaler or options of param groups) than rank "
                      "0; load the snapshots that all ranks took at the same step");
  const auto groups_before = inner.options();
  inner.set_options(dict.groups);
  try {
    inner.check_options();
  } catch (const Error&) {
    inner.set_options(groups_before);
    throw;
  }
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

// Collective. What most ranks hold counts; with two ranks, what rank 0 holds.
std::string Fp16Optimizer::Impl::why_replicas_differ(const ReplicasDiffer& differ) const {
  const auto votes = [&](std::uint64_t hash) { return std::ranges::count(differ.hashes, hash); };
  const auto common = std::ranges::max_element(differ.hashes, {}, votes);
  const auto other =
      std::ranges::find_if(differ.hashes, [&](auto hash) { return hash != *common; });
  const auto common_rank = static_cast<std::size_t>(common - differ.hashes.begin());
  const auto other_rank = static_cast<std::size_t>(other - differ.hashes.begin());

  const std::size_t count = parameters.size();
  std::vector<std::uint64_t> mine;
  for (std::size_t i = 0; i < count; ++i) mine.push_back(xxh3_64(parts->flat.replica_of(i)));
  const std::vector<std::uint64_t> all = world.all_gather(
      std::span<const std::uint64_t>(mine), std::vector<std::size_t>(differ.hashes.size(), count));
  std::string place = "the padding between parameters";
  for (std::size_t i = count; i-- > 0;)
    if (all[other_rank * count + i] != all[common_rank * count + i])
      place = "parameter " + parameters[i].name;
  return "the replica of rank " + std::to_string(other_rank) + " differs from that of rank " +
         std::to_string(common_rank) + ", first in " + place +
         ", although both were published alike: memory was overwritten or is faulty; they were "
         "equal after " +
         std::to_string(last_equal_step) + " applied steps, so go on from a checkpoint up to there";
}

std::uint64_t Fp16Optimizer::Impl::replica_hash() const {
  return xxh3_64(parts->flat.replica().mine());
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
