// SPDX-License-Identifier: Apache-2.0
// The step, in one place: reduce to owners → agree → unscale + clip → FP32 shard step → publish.
#include "optim/fp16_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "comm/error.hpp"
#include "optim/agreement.hpp"
#include "optim/hash.hpp"
#include "optim/inner_optimizer.hpp"
#include "optim/stopwatch.hpp"

namespace vsr::optim {
namespace {

constexpr double kClipEps = 1e-6;

Norm norm_of(double norm_type) {
  if (norm_type == 1.0) return Norm::one;
  if (norm_type == 2.0) return Norm::two;
  VSR_CHECK(std::isinf(norm_type) && norm_type > 0.0,
            "got norm_type " + std::to_string(norm_type) + ", expected 1, 2 or infinity");
  return Norm::infinity;
}

LossScaler scaler_of(const Fp16OptimizerOptions& options) {
  LossScalerOptions scaler = options.scaler;
  scaler.ceiling = std::min(scaler.ceiling, 0x1p127);  // the loss is multiplied in FP32
  return options.dynamic_loss_scale
             ? LossScaler::dynamic(scaler)
             : LossScaler::fixed(static_cast<float>(options.static_loss_scale), scaler);
}

// Everything that must be the same on all ranks before the first collective that depends on it.
std::uint64_t fingerprint(const FlatLayout& layout, const Fp16OptimizerOptions& options,
                          int leaves) {
  std::ostringstream text;
  text << std::hexfloat;
  for (const ParameterSpec& spec : layout.parameters()) {
    text << spec.name << '|' << dtype_name(spec.dtype) << '|' << spec.trainable;
    for (const std::int64_t extent : spec.shape) text << '|' << extent;
    text << '\n';
  }
  for (const NamedBuffer& buffer : options.buffers)
    text << buffer.name << '|' << buffer.value.sizes() << '|' << buffer.value.dtype() << '\n';
  const LossScalerOptions& s = options.scaler;
  text << leaves << '|' << reduction_name(options.reduction) << '|' << options.dynamic_loss_scale
       << '|' << options.static_loss_scale << '|' << s.initial_scale << '|' << s.growth_factor
       << '|' << s.backoff_factor << '|' << s.window_steps << '|' << s.growth_delay << '|'
       << s.hysteresis << '|' << s.consecutive_hysteresis << '|' << s.floor << '|' << s.ceiling
       << '|' << s.max_skips_at_floor << '|' << options.replica_check_steps;
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

std::vector<NamedParameter> named_parameters(const Fp16OptimizerOptions& options,
                                             InnerOptimizer& inner) {
  auto parameters =
      without_ties(options.parameters.empty() ? inner.parameters() : options.parameters);
  inner.bind(parameters);
  return parameters;
}

}  // namespace

std::vector<comm::Interval> ShardView::intervals() const {
  std::vector<comm::Interval> intervals;
  for (const ShardPiece& piece : pieces) intervals.push_back(piece.logical);
  return intervals;
}

struct Fp16Optimizer::Impl {
  Impl(std::unique_ptr<torch::optim::Optimizer> optimizer, comm::Communicator& communicator,
       Fp16OptimizerOptions options)
      : world(communicator),
        inner(std::move(optimizer)),
        parameters(named_parameters(options, inner)),
        layout(layout_of(parameters)),
        leaves(options.leaves == 0 ? communicator.world() : options.leaves),
        replica_check_steps(options.replica_check_steps),
        scaler(scaler_of(options)),
        flat((require_equal(world, fingerprint(layout, options, leaves)), world), layout,
             parameters),
        buffers(world, std::move(options.buffers)),
        reducer(world, flat.gradients(), layout, options.reduction, leaves),
        agreement(world, layout, leaves, buffers.values()),
        publisher(world, flat.replica(), segment_places(layout)),
        shard(world, layout) {
    take_masters_from_rank_0();
    flat.attach();
  }

  void take_masters_from_rank_0();
  void start_step();
  void backward(const torch::Tensor& loss);
  void reduce_and_agree(double max_norm, Norm norm);
  StepReport finish_step();
  void apply();
  StepReport report() const;

  int my_leaves() const {
    return world.rank() >= leaves ? 0 : (leaves - world.rank() - 1) / world.world() + 1;
  }
  std::uint64_t replica_hash() { return xxh3_64(flat.replica().mine()); }

  comm::Communicator& world;
  InnerOptimizer inner;
  std::vector<NamedParameter> parameters;
  FlatLayout layout;
  int leaves;
  std::int64_t replica_check_steps;
  LossScaler scaler;
  FlatBuffers flat;
  ModuleBuffers buffers;
  GradientReducer reducer;
  Agreement agreement;
  comm::ShardPublisher publisher;
  AdamShard shard;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::uint64_t requests = 0;

  // The step in progress.
  struct Step {
    float scale = 1.0F;
    std::vector<double> losses;
    std::vector<double> buffer_values;
    std::optional<Agreed> agreed;
    double norm = 0.0;
    double clip_factor = 1.0;
    double reduce_ms = 0.0, agree_ms = 0.0, update_ms = 0.0, publish_ms = 0.0;
  };
  std::optional<Step> current;
};

void Fp16Optimizer::Impl::take_masters_from_rank_0() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    NamedParameter& parameter = parameters[i];
    const torch::Tensor& source = parameter.master.defined() ? parameter.master : parameter.replica;
    // A copy, as the caller's own tensor must not change.
    const torch::Tensor values =
        source.detach().to(torch::kFloat).clone(torch::MemoryFormat::Contiguous);
    const std::span<float> master(values.data_ptr<float>(),
                                  static_cast<std::size_t>(values.numel()));
    world.broadcast(master, 0);
    shard.set_master(i, master);
    round_to(layout.segments()[layout.places()[i].segment].dtype, master, flat.replica_of(i),
             active_isa());
    parameter.master.reset();
  }
}

void Fp16Optimizer::Impl::start_step() {
  VSR_CHECK(!current || !current->agreed, "zero_grad came between clip_fp32_grads and step");
  VSR_CHECK(!current || reducer.rounds_done() == 0,
            "zero_grad came after a leaf of the step was reduced");
  current.emplace();
  current->scale = static_cast<float>(scaler.scale());
  reducer.start();
  flat.zero_gradients();
  buffers.remember();
}

void Fp16Optimizer::Impl::backward(const torch::Tensor& loss) {
  VSR_CHECK(current && !current->agreed, "backward needs zero_grad before it in each step");
  VSR_CHECK(static_cast<int>(current->losses.size()) < my_leaves(),
            "rank " + std::to_string(world.rank()) + " has " + std::to_string(my_leaves()) +
                " leaves of " + std::to_string(leaves) + ", and backward was called for all");
  VSR_CHECK(loss.numel() == 1, "the loss has " + std::to_string(loss.numel()) +
                                   " elements, expected the mean over the leaf's samples");
  const bool is_first = current->losses.empty() || reducer.reduces_each_leaf();
  current->losses.push_back(loss.item<double>());
  (loss.to(torch::kFloat) * current->scale).sum().backward();
  flat.adopt_gradients(is_first);
  buffers.take_leaf(current->buffer_values);

  const int round = static_cast<int>(current->losses.size());
  if (!reducer.reduces_each_leaf() || round >= reducer.rounds()) return;
  const Stopwatch watch(current->reduce_ms);
  reducer.reduce_round();
  flat.clear_gradients();
}

// Reduce to owners → agree. The factor of unscale + clip follows from what was agreed.
void Fp16Optimizer::Impl::reduce_and_agree(double max_norm, Norm norm) {
  {
    const Stopwatch watch(current->reduce_ms);
    reducer.reduce_last(norm);
  }
  const Stopwatch watch(current->agree_ms);
  const std::int64_t iteration = applied_steps + skipped_steps;
  const bool checks_replica = replica_check_steps > 0 && iteration % replica_check_steps == 0;
  current->agreed = agreement.exchange({.non_finite = reducer.non_finite(),
                                        .requests = requests,
                                        .loss_scale = current->scale,
                                        .max_norm = max_norm,
                                        .norm = norm,
                                        .replica = checks_replica ? replica_hash() : 0,
                                        .losses = current->losses,
                                        .buffer_values = current->buffer_values,
                                        .used = flat.used(),
                                        .block_norms = reducer.block_norms()});
  requests = 0;
  const double mean = static_cast<double>(current->scale) * leaves;
  current->norm = current->agreed->is_overflow() ? -1.0 : current->agreed->norm / mean;
  if (max_norm > 0.0 && !current->agreed->is_overflow())
    current->clip_factor = std::min(1.0, max_norm / (current->norm + kClipEps));
}

// Unscale + clip → FP32 shard step → publish → replicas.
void Fp16Optimizer::Impl::apply() {
  const double factor =
      current->clip_factor / (static_cast<double>(current->scale) * static_cast<double>(leaves));
  {
    const Stopwatch watch(current->update_ms);
    shard.step(reducer, factor, current->agreed->used, inner.options(), publisher);
    buffers.commit(current->agreed->buffer_values);
  }
  const Stopwatch watch(current->publish_ms);
  publisher.publish();
  ++applied_steps;
}

StepReport Fp16Optimizer::Impl::finish_step() {
  VSR_CHECK(current, "step needs zero_grad before it");
  if (!current->agreed) reduce_and_agree(0.0, Norm::two);
  const bool overflow = current->agreed->is_overflow();
  if (overflow)
    ++skipped_steps;  // nothing else changes but the loss scaler
  else
    apply();
  reducer.release();
  scaler.update(overflow);
  StepReport done = report();
  current.reset();
  reducer.start();
  if (scaler.is_stuck())
    throw DivergedError(
        "training diverged: " + std::to_string(scaler.state().skips_at_floor) +
        " steps in a row overflowed at loss scale " + std::to_string(done.loss_scale) +
        ", which cannot go lower; the last non-finite gradient was in parameter " +
        done.first_bad_parameter + ", rank " + std::to_string(done.first_bad_rank) + ", leaf " +
        std::to_string(done.first_bad_leaf) +
        "; lower the learning rate, clip gradients, or go back to an older checkpoint");
  return done;
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
  report.agree_ms = current->agree_ms;
  report.update_ms = current->update_ms;
  report.publish_ms = current->publish_ms;
  return report;
}

Fp16Optimizer::Fp16Optimizer(std::unique_ptr<torch::optim::Optimizer> inner,
                             comm::Communicator& world, Fp16OptimizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(inner), world, std::move(options))) {}
Fp16Optimizer::~Fp16Optimizer() = default;

void Fp16Optimizer::zero_grad() {
  impl_->start_step();
}
void Fp16Optimizer::backward(const torch::Tensor& loss) {
  impl_->backward(loss);
}

double Fp16Optimizer::clip_fp32_grads(double max_norm, double norm_type) {
  VSR_CHECK(impl_->current && !impl_->current->agreed,
            "clip_fp32_grads comes once, between the last backward and step");
  VSR_CHECK(max_norm > 0.0, "got max_norm " + std::to_string(max_norm) + ", expected above 0");
  impl_->reduce_and_agree(max_norm, norm_of(norm_type));
  return impl_->current->norm;
}

StepReport Fp16Optimizer::step() {
  return impl_->finish_step();
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

std::int64_t Fp16Optimizer::applied_steps() const noexcept {
  return impl_->applied_steps;
}

OptimizerState Fp16Optimizer::state() const {
  const auto counters = std::as_const(impl_->shard).counters();
  return {impl_->scaler.state(),
          impl_->applied_steps,
          impl_->skipped_steps,
          {counters.begin(), counters.end()}};
}

void Fp16Optimizer::load_state(const OptimizerState& state) {
  const auto counters = impl_->shard.counters();
  VSR_CHECK(state.parameters.size() == counters.size(),
            "the state counts " + std::to_string(state.parameters.size()) +
                " parameters, this optimizer has " + std::to_string(counters.size()));
  impl_->scaler.load_state(state.scaler);
  impl_->applied_steps = state.applied_steps;
  impl_->skipped_steps = state.skipped_steps;
  std::copy(state.parameters.begin(), state.parameters.end(), counters.begin());
}

ShardView Fp16Optimizer::shard() {
  return {impl_->shard.pieces()};
}

void Fp16Optimizer::publish_masters() {
  impl_->world.barrier();  // a peer may still read its replica
  impl_->shard.round_masters(impl_->publisher);
  impl_->publisher.publish();
}

std::string Fp16Optimizer::masters_hash() {
  return impl_->shard.masters_hash();
}
std::uint64_t Fp16Optimizer::replica_hash() const {
  return impl_->replica_hash();
}
const std::string& Fp16Optimizer::shared_memory_notice() const noexcept {
  return impl_->flat.replica().notice();
}
const FlatLayout& Fp16Optimizer::layout() const noexcept {
  return impl_->layout;
}

}  // namespace vsr::optim
