// SPDX-License-Identifier: Apache-2.0
// The step, in one place: reduce to owners → agree → unscale + clip → FP32 shard step → publish.
#include "optim/fp16_optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "optim/fp16_optimizer_impl.hpp"
#include "optim/hash.hpp"
#include "optim/number_text.hpp"
#include "optim/stopwatch.hpp"

namespace vsr::optim {
namespace {

constexpr double kClipEps = 1e-6;
// Below it a sum of powers may have lost parts that do not fit FP64.
constexpr double kSmallestPowerSum = 1e-290;

Norm norm_of(double norm_type) {
  if (norm_type == 1.0) return Norm::one;
  if (norm_type == 2.0) return Norm::two;
  if (!(norm_type > 0.0)) return Norm::two;  // agree refuses it on all ranks
  return std::isinf(norm_type) ? Norm::infinity : Norm::power;
}

}  // namespace

void Fp16Optimizer::Impl::start_step() {
  VSR_CHECK(
      !current || !current->agreed,
      "zero_grad came between clip_fp32_grads and step; end the step with step, or give it up with "
      "discard_step on all ranks");
  VSR_CHECK(
      !current || (parts->reducer.rounds_done() == 0 && !parts->reducer.has_begun()),
      "zero_grad came after a leaf of the step was reduced; end the step with step, or give it "
      "up with discard_step on all ranks");
  VSR_CHECK(!replicas_are_averages,
            "the replicas hold moving averages; call publish_masters before the next step");
  inner.require_unstepped();
  inner.require_groups(parameters);
  parts->flat.require_attached();
  // After a leaf that failed the buffers are no longer those of the step.
  if (current && current->has_failed)
    buffers.restore();
  else
    buffers.remember();
  current.emplace();
  current->scale = static_cast<float>(scaler.scale());
  current->waited_before_ms = parts->reducer.waited_ms();
  VSR_CHECK(std::isnormal(static_cast<float>(gradient_scale())),
            "loss scale " + number_text(scaler.scale()) + " is too small for FP32");
  parts->reducer.start();
  parts->flat.zero_gradients();
}

void Fp16Optimizer::Impl::backward(const torch::Tensor& loss, bool update_fp32_grads) {
  VSR_CHECK(current && !current->agreed, "backward needs zero_grad before it in each step");
  VSR_CHECK(static_cast<int>(current->losses.size()) < my_leaves(),
            "rank " + std::to_string(world.rank()) + " has " + std::to_string(my_leaves()) +
                " leaves of " + std::to_string(leaves) +
                ", and backward was called for all; losses of one leaf are added by "
                "backward(loss, false) before the last");
  VSR_CHECK(loss.numel() == 1, "the loss has " + std::to_string(loss.numel()) +
                                   " elements, expected the mean over the leaf's samples");
  VSR_CHECK(!current->has_failed,
            "the backward before this one failed half-way; call discard_step or zero_grad");
  GradientReducer& reducer = parts->reducer;
  const bool is_first =
      !current->leaf_loss && (current->losses.empty() || reducer.reduces_each_leaf());
  current->has_failed = true;
  run_backward(loss, update_fp32_grads);
  parts->flat.adopt_gradients(is_first);
  current->leaf_loss = current->leaf_loss.value_or(0.0) + loss.item<double>();
  current->has_failed = false;
  if (update_fp32_grads) end_leaf();
}

// In the last pass of a leaf, buckets of gradients leave as soon as they are complete.
void Fp16Optimizer::Impl::run_backward(const torch::Tensor& loss, bool ends_leaf) {
  GradientReducer& reducer = parts->reducer;
  const torch::Tensor scaled =
      (loss.to(torch::kFloat) * static_cast<float>(gradient_scale())).sum();
  if (!ends_leaf || !reducer.overlaps()) return scaled.backward();
  reducer.start_pass(parts->flat.trainable());
  parts->flat.tell_of_gradients([&](std::size_t parameter) { reducer.complete(parameter); });
  try {
    scaled.backward();
  } catch (...) {
    parts->flat.tell_of_gradients({});
    throw;
  }
  parts->flat.tell_of_gradients({});
}

void Fp16Optimizer::Impl::end_leaf() {
  VSR_CHECK(current && current->leaf_loss,
            "update_fp32_grads needs backward(loss, false) before it");
  GradientReducer& reducer = parts->reducer;
  current->losses.push_back(*current->leaf_loss);
  current->leaf_loss.reset();
  buffers.take_leaf(current->buffer_values);
  const int round = static_cast<int>(current->losses.size());
  if (!reducer.reduces_each_leaf() || round >= reducer.rounds()) return;
  const Stopwatch watch(current->reduce_ms);
  reducer.reduce_round();
  parts->flat.clear_gradients();
}

// Reduce to owners → agree. The factor of unscale + clip follows from what was agreed. What agree
// refuses it refuses on all ranks, which then are between steps again.
void Fp16Optimizer::Impl::reduce_and_agree(double max_norm, Norm norm, double power) {
  GradientReducer& reducer = parts->reducer;
  {
    const Stopwatch watch(current->reduce_ms);
    reducer.reduce_last(norm, power);
  }
  try {
    agree(max_norm, norm, power);
  } catch (const CommError&) {
    throw;  // nothing is left to agree with
  } catch (const ReplicasDiffer& differ) {
    const std::string why = why_replicas_differ(differ);
    discard_step();
    throw DivergedError(why);
  } catch (const Error&) {
    discard_step();
    throw;
  }
}

void Fp16Optimizer::Impl::agree(double max_norm, Norm norm, double power) {
  const GradientReducer& reducer = parts->reducer;
  const Stopwatch watch(current->agree_ms);
  current->options = inner.options_hash();
  const std::int64_t iteration = applied_steps + skipped_steps;
  const bool checks_replica =
      options.replica_check_steps > 0 && iteration % options.replica_check_steps == 0;
  current->agreed = parts->agreement.exchange({.non_finite = reducer.non_finite(),
                                               .requests = requests,
                                               .loss_scale = current->scale,
                                               .max_norm = max_norm,
                                               .norm = norm,
                                               .power = power,
                                               .replica = checks_replica ? replica_hash() : 0,
                                               .options = current->options,
                                               .buffers = buffers.hash(),
                                               .losses = current->losses,
                                               .buffer_values = current->buffer_values,
                                               .used = parts->flat.flags(),
                                               .block_norms = reducer.block_norms()});
  if (checks_replica) last_equal_step = applied_steps;
  require_clipping(max_norm, power);
  check_changed_options();
  current->norm = current->agreed->is_overflow()
                      ? -1.0
                      : current->agreed->norm / (gradient_scale() * static_cast<double>(leaves));
  if (norm == Norm::power) require_norm_in_range(power);
  if (max_norm > 0.0 && !current->agreed->is_overflow())
    current->clip_factor = std::min(1.0, max_norm / (current->norm + kClipEps));
  requests = 0;
}

// What the gradients of this step's leaves are multiplied by.
double Fp16Optimizer::Impl::gradient_scale() const {
  return static_cast<double>(current->scale) / parts->reducer.divided_before();
}

double Fp16Optimizer::Impl::factor() const {
  return current->clip_factor / (gradient_scale() * static_cast<double>(leaves));
}

// Unscale + clip → FP32 shard step → publish → replicas.
void Fp16Optimizer::Impl::apply() {
  {
    const Stopwatch watch(current->update_ms);
    inner.rule().step(parts->shard,
                      {.gradients = parts->reducer,
                       .factor = factor(),
                       .used = current->agreed->used,
                       .publisher = parts->publisher},
                      inner.group_of());
    parts->shard.step_ema(options.ema_decay);
    buffers.commit(current->agreed->buffer_values);
  }
  const Stopwatch watch(current->publish_ms);
  parts->publisher.publish();
  ++applied_steps;
}

StepReport Fp16Optimizer::Impl::finish_step() {
  VSR_CHECK(current, "step needs zero_grad before it");
  if (!current->agreed)
    reduce_and_agree(0.0, Norm::two, 2.0);
  else
    agree_on_options();
  const bool overflow = current->agreed->is_overflow();
  if (overflow)
    ++skipped_steps;  // nothing else changes but the loss scaler
  else
    apply();
  parts->reducer.release();
  scaler.update(overflow);
  StepReport done = report();
  current.reset();
  parts->reducer.start();
  if (scaler.is_stuck()) throw DivergedError(why_stuck(done));
  return done;
}

// Options that were checked are not checked again.
void Fp16Optimizer::Impl::check_changed_options() {
  if (current->options == checked_options) return;
  inner.check_options();
  checked_options = current->options;
}

// They may change between clip_fp32_grads and step, as a rate that follows the norm does.
void Fp16Optimizer::Impl::agree_on_options() {
  current->options = inner.options_hash();
  const std::vector<std::uint64_t> all = world.all_gather(current->options);
  try {
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      VSR_CHECK(all[rank] == all.front(), Agreement::other_options(rank));
    check_changed_options();
  } catch (const Error&) {
    discard_step();
    throw;
  }
}

// Equal on all ranks by now; max_norm 0 asks for none.
void Fp16Optimizer::Impl::require_clipping(double max_norm, double power) const {
  VSR_CHECK(max_norm >= 0.0, "got max_norm " + number_text(max_norm) + ", expected above 0");
  VSR_CHECK(power > 0.0, "got norm_type " + number_text(power) + ", expected a number above 0");
}

void Fp16Optimizer::Impl::require_norm_in_range(double power) {
  const Agreed& agreed = *current->agreed;
  if (agreed.is_overflow()) return;
  bool is_lost = !std::isfinite(agreed.norm);
  if (std::pow(agreed.norm, power) < kSmallestPowerSum) {
    const std::vector<int> has_gradient = world.all_gather(has_mean_gradient() ? 1 : 0);
    is_lost = std::ranges::find(has_gradient, 1) != has_gradient.end();
  }
  VSR_CHECK(!is_lost, "the " + number_text(power) +
                          "-norm of the gradients does not fit FP64; clip by the infinity norm "
                          "instead");
}

void Fp16Optimizer::Impl::discard_step() {
  if (!current) return;
  parts->reducer.give_up();
  parts->reducer.release();
  parts->reducer.start();
  buffers.restore();
  current.reset();
}

std::string Fp16Optimizer::Impl::why_stuck(const StepReport& last) const {
  const std::int64_t skips = scaler.state().skips_at_floor;
  return "training diverged: " + counted(skips, "step") + (skips == 1 ? "" : " in a row") +
         " overflowed at loss scale " + std::to_string(last.loss_scale) +
         ", which cannot go lower; the last non-finite gradient was in parameter " +
         last.first_bad_parameter + ", rank " + std::to_string(last.first_bad_rank) + ", leaf " +
         std::to_string(last.first_bad_leaf) +
         "; lower the learning rate, clip gradients, or go back to an older checkpoint";
}

StepReport Fp16Optimizer::Impl::report() const {
  const Agreed& agreed = *current->agreed;
  StepReport report;
  report.applied = !agreed.is_overflow();
  report.leaf_losses = agreed.losses;
  for (const double loss : agreed.losses) report.loss += loss;
  report.loss /= static_cast<double>(leaves);
  report.loss_scale = current->scale;
  report.next_loss_scale = static_cast<float>(scaler.scale());
  report.grad_norm = current->norm;
  report.clip_factor = current->clip_factor;
  report.inf_count = agreed.non_finite.inf_count;
  report.nan_count = agreed.non_finite.nan_count;
  const FlatLayout& layout = parts->layout;
  for (std::size_t i = 0; i < layout.places().size(); ++i) {
    const ParameterPlace& place = layout.places()[i];
    const std::int64_t inside = agreed.non_finite.first_logical - place.logical_begin;
    if (report.applied || inside < 0 || inside >= place.numel) continue;
    report.first_bad_parameter = layout.parameters()[i].name;
    report.first_bad_leaf = agreed.non_finite.first_leaf;
    if (report.first_bad_leaf >= 0) report.first_bad_rank = report.first_bad_leaf % world.world();
  }
  report.requests = agreed.requests;
  report.applied_steps = applied_steps;
  report.skipped_steps = skipped_steps;
  report.reduce_ms = current->reduce_ms;
  report.exposed_ms = parts->reducer.waited_ms() - current->waited_before_ms;
  report.agree_ms = current->agree_ms;
  report.update_ms = current->update_ms;
  report.publish_ms = current->publish_ms;
  return report;
}

void Fp16Optimizer::zero_grad() {
  impl_->start_step();
}
void Fp16Optimizer::backward(const torch::Tensor& loss, bool update_fp32_grads) {
  impl_->backward(loss, update_fp32_grads);
}
void Fp16Optimizer::update_fp32_grads() {
  impl_->end_leaf();
}

double Fp16Optimizer::clip_fp32_grads(double max_norm, double norm_type) {
  VSR_CHECK(impl_->current && !impl_->current->agreed,
            "clip_fp32_grads comes once, between the last backward and inspect_fp32_grad_data or "
            "step");
  // What a rank asks for alone is refused on all of them; 0 would ask for no clipping.
  impl_->reduce_and_agree(max_norm == 0.0 ? -1.0 : max_norm, norm_of(norm_type), norm_type);
  return impl_->current->norm;
}

std::vector<torch::Tensor> Fp16Optimizer::inspect_fp32_grad_data() {
  VSR_CHECK(impl_->current, "inspect_fp32_grad_data needs zero_grad and backward before it");
  if (!impl_->current->agreed) impl_->reduce_and_agree(0.0, Norm::two, 2.0);
  return impl_->mean_gradients();
}

StepReport Fp16Optimizer::step() {
  return impl_->finish_step();
}

StepReport Fp16Optimizer::step(const std::function<torch::Tensor()>& closure, int max_retries) {
  for (int call = 1;; ++call) {
    impl_->start_step();
    closure();
    StepReport report = impl_->finish_step();
    report.closure_calls = call;
    if (report.applied || !impl_->scaler.is_dynamic() || call > max_retries) return report;
  }
}

void Fp16Optimizer::discard_step() {
  impl_->discard_step();
}

float Fp16Optimizer::loss_scale() const noexcept {
  return static_cast<float>(impl_->scaler.scale());
}
void Fp16Optimizer::set_loss_scale(float scale) {
  impl_->scaler.set_scale(scale);
}
double Fp16Optimizer::lr() const {
  return impl_->inner.lr();
}
void Fp16Optimizer::set_lr(double lr) {
  impl_->inner.set_lr(lr);
}
torch::optim::Optimizer& Fp16Optimizer::inner() noexcept {
  return impl_->inner.get();
}
int Fp16Optimizer::leaves() const noexcept {
  return impl_->leaves;
}

std::vector<int> Fp16Optimizer::my_leaves() const {
  std::vector<int> mine;
  for (int leaf = impl_->world.rank(); leaf < impl_->leaves; leaf += impl_->world.world())
    mine.push_back(leaf);
  return mine;
}

void Fp16Optimizer::request(std::uint64_t bits) noexcept {
  impl_->requests |= bits;
}

}  // namespace vsr::optim
