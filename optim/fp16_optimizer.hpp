// SPDX-License-Identifier: Apache-2.0
// The optimizer a user holds: scaled backward into flat gradients, reduction to the owners of FP32
// shards, agreement, a step on the shard, and publication of the rounded masters to every replica.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "optim/flat_layout.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/master_shard.hpp"
#include "optim/module_tensors.hpp"
#include "optim/reduction.hpp"

namespace vsr::optim {

struct Fp16OptimizerOptions {
  bool dynamic_loss_scale = false;
  double static_loss_scale = 1.0;
  /// Constants of dynamic scaling; max_skips_at_floor counts for both kinds.
  LossScalerOptions scaler = {};
  int leaves = 0;  ///< leaves of a step over all ranks; 0: one per rank
  Reduction reduction = Reduction::exact;
  Overlap overlap = Overlap::automatic;
  std::size_t bucket_bytes = 0;  ///< of gradients that leave early; 0: default_bucket_bytes
  /// Registration order. Empty: the inner optimizer's parameters, named param_0, param_1, …
  std::vector<NamedParameter> parameters = {};
  std::vector<NamedBuffer> buffers = {};
  /// Compare a hash of all replicas every so many steps inside agree; 0: never.
  std::int64_t replica_check_steps = 0;
  /// Decay of the moving average of the masters, in (0, 1); 0: no average is kept.
  double ema_decay = 0.0;
};

/// What a step did; equal on all ranks, apart from the times.
struct StepReport {
  bool applied = false;             ///< false: skipped because of an overflow
  double loss = 0.0;                ///< mean over the leaves, unscaled, folded in leaf order
  std::vector<double> leaf_losses;  ///< in leaf order
  float loss_scale = 1.0F;          ///< the scale of this step's backward passes
  float next_loss_scale = 1.0F;     ///< the scale of the next step
  double grad_norm = 0.0;           ///< of the mean gradient before clipping; -1 on overflow
  double clip_factor = 1.0;         ///< at most 1
  std::int64_t inf_count = 0;       ///< infinite values in all leaf gradients
  std::int64_t nan_count = 0;
  std::string first_bad_parameter;  ///< of lowest logical index; empty without overflow
  int first_bad_rank = -1;          ///< rank that computed the offending leaf, -1: none or unknown
  int first_bad_leaf = -1;          ///< -1: none, or a reduction other than `exact`
  std::uint64_t requests = 0;       ///< bits given to request(), OR-ed over ranks
  std::int64_t applied_steps = 0;   ///< after this step
  std::int64_t skipped_steps = 0;
  int closure_calls = 0;    ///< of step(closure); 0 for step()
  double reduce_ms = 0.0;   ///< this rank's time, all rounds; includes waiting for others
  double exposed_ms = 0.0;  ///< of it, what it waited for messages: communication not hidden
  double agree_ms = 0.0;
  double update_ms = 0.0;
  double publish_ms = 0.0;
};

/// All state that is equal on all ranks, in plain numbers. Shards are in ShardView, buffers in the
/// module.
struct OptimizerState {
  LossScalerState scaler;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::vector<ParameterCounters> parameters;  ///< in the order of layout().parameters()
  friend bool operator==(const OptimizerState&, const OptimizerState&) = default;
};

/// A snapshot of everything an optimizer knows, as plain values: later steps do not change it.
struct StateDict {
  OptimizerState state;   ///< equal on all ranks
  std::string optimizer;  ///< type of the inner optimizer, such as "torch::optim::AdamW"
  std::vector<std::map<std::string, double>> groups;  ///< numbers of each param group, by name
  std::vector<std::string> parameters;                ///< names, in the order of the layout
  std::vector<std::vector<std::int64_t>> shapes;      ///< of the same
  std::vector<comm::Interval> intervals;  ///< of the logical index: what this rank holds
  /// "master", the moments of the rule, "ema": FP32 values of the intervals, one after the other.
  std::map<std::string, std::vector<float>> arrays;
};

/// Mixed-precision training of a module's parameters on many ranks.
///
/// One step: `zero_grad`, then for each leaf of this rank (leaf l belongs to rank l mod world, in
/// ascending order) a forward pass and `backward`, then `clip_fp32_grads` if wanted, then `step`.
/// Everything but the plain getters is collective: all ranks, same order.
///
/// Errors that all ranks throw (@throws … on all ranks) leave them between steps: masters, moments,
/// buffers and counters are those before the step, and zero_grad begins the next one. After an
/// error of one rank alone, such as an exception in its forward pass, the others wait in their next
/// collective call: bring it to all by Communicator::agree_all_ok around what can fail, then call
/// discard_step everywhere, or end the program by comm::MpiEnvironment::abort.
///
/// Forward passes come after zero_grad: what a module's buffers are then is what every leaf starts
/// from, and what they are again after a skipped step. Gradients are taken at backward; what is
/// done to them outside of hooks afterwards is not seen.
///
/// Between steps the masters are what counts: values written into parameters are overwritten at the
/// next publication. To set them, write the masters through shard() and call publish_masters().
///
/// Parameters may be frozen and thawed between steps (`requires_grad_`, alike on all ranks): a
/// frozen one keeps its master, moments and step count. Any layout of a parameter in memory is
/// taken; afterwards it is contiguous.
class Fp16Optimizer {
 public:
  /// Collective. Rank 0's parameters, buffers and optimizer state go to all ranks, and the
  /// parameters become views into one flat replica. The views keep their memory alive beyond this
  /// object.
  /// @param inner torch::optim::Adam, AdamW, SGD, RMSprop or Adagrad, or Lamb; the options of its
  ///        param groups are read anew at each step, and state it holds is taken over
  /// @param world outlives this object
  /// @throws AgreedError on all ranks when one of them gives another optimizer, a type that has no
  ///         segment, options that cannot work, parameters that share memory (but one tensor under
  ///         several names is tied) or that another Fp16Optimizer trains; ConfigurationError on all
  ///         ranks when they disagree about parameters or options
  Fp16Optimizer(std::unique_ptr<torch::optim::Optimizer> inner, comm::Communicator& world,
                Fp16OptimizerOptions options);
  ~Fp16Optimizer();
  Fp16Optimizer(const Fp16Optimizer&) = delete;
  Fp16Optimizer& operator=(const Fp16Optimizer&) = delete;

  /// Start a step: gradients are zero, the loss scale is fixed, buffers are remembered. Local.
  /// @throws ConfigurationError for a thawed parameter that is in no param group
  /// @throws ArgumentError inside a step of which something was reduced already, when step() of the
  ///         inner optimizer was called, and when the memory of a parameter was replaced
  ///         (torch::load, to, set_data) after the optimizer was made
  void zero_grad();
  /// Back-propagate a mean loss of a leaf, scaled. Gradients of several calls add up in the
  /// replica's type; the last one of a leaf ends it. With more than one leaf per rank that also
  /// reduces the leaf, so ranks meet there. Afterwards the module's buffers are those of the step
  /// again.
  /// @param loss one element, finite or not
  /// @param update_fp32_grads false: more losses of this leaf follow, or update_fp32_grads()
  /// @throws ArgumentError when this rank has no leaf left in this step, after a backward that
  /// threw
  ///         half-way, and for a parameter that was thawed since zero_grad
  void backward(const torch::Tensor& loss, bool update_fp32_grads = true);
  /// End the leaf that backward(loss, false) left open.
  /// @throws ArgumentError when no leaf is open
  void update_fp32_grads();
  /// Ask this step to scale the mean gradient so that its norm is at most `max_norm`: the factor is
  /// min(1, max_norm / (norm + 1e-6)), as in torch::nn::utils::clip_grad_norm_. At most once a
  /// step.
  /// @param norm_type p of the p-norm, above 0; infinity: the largest magnitude. For 1, 2 and
  ///        infinity the bits do not depend on the machine.
  /// @returns the norm before clipping, or -1 on overflow; equal on all ranks
  /// @throws ArgumentError on all ranks when max_norm or norm_type is not above 0 on one of them,
  ///         when a p-norm of finite gradients does not fit FP64, and what step() refuses
  double clip_fp32_grads(double max_norm, double norm_type = 2.0);
  /// The gradients that the step will apply: mean over the leaves, unscaled, clipped, FP32, whole,
  /// in the order of layout().parameters(); undefined where no leaf used the parameter. Comes after
  /// clip_fp32_grads, if that is wanted, and before step. On overflow the values are as they came.
  std::vector<torch::Tensor> inspect_fp32_grad_data();
  /// Finish the step. A rank without a leaf calls it too.
  /// @throws DivergedError on all ranks: stuck at the smallest loss scale, or replicas differ
  /// @throws ArgumentError on all ranks when one of them did not end each of its leaves, or when
  ///         they clip differently, or have other options, buffers or frozen parameters
  /// @throws ConfigurationError on all ranks for options of a param group that no step makes sense
  ///         with, or that call for arrays that were not kept from the start
  StepReport step();
  /// Run `closure`, which does the forward passes and backward() of this rank's leaves and may
  /// clip, inside a step of its own; after an overflow with a dynamic scale again, at most
  /// `max_retries` times. What it returns is not used.
  /// @throws what step() and the closure throw; after an exception of the closure the step is still
  ///         open: discard_step()
  StepReport step(const std::function<torch::Tensor()>& closure, int max_retries = 20);

  /// Collective. Give the step in progress up, wherever it stands: gradients are dropped, buffers
  /// are those before it, the loss scaler and all counters stay. Nothing happens between steps.
  void discard_step();

  /// Collective. Add a param group behind the others: new parameters, or frozen ones that were in
  /// none. Values and state of the old ones are kept bit for bit; between steps only. Masters of
  /// new ones are made from their values on rank 0.
  /// @param names of the new parameters; empty: param_N, counted on
  /// @throws AgreedError on all ranks when a parameter is in a group already or cannot be trained,
  ///         when names or options do not fit (also options that call for arrays not kept from the
  ///         start), or inside a step; ConfigurationError on all ranks when they disagree. The
  ///         group is not added then.
  void add_param_group(const torch::optim::OptimizerParamGroup& group,
                       const std::vector<std::string>& names = {});

  float loss_scale() const noexcept;
  /// The same value on all ranks; takes effect at the next zero_grad, but an overflow of the step
  /// in progress lowers it.
  void set_loss_scale(float scale);
  /// Rate of the first param group.
  double lr() const;
  /// Sets the rate of all param groups of the inner optimizer.
  void set_lr(double lr);
  /// The inner optimizer, for its options; its own step() and state are not used.
  torch::optim::Optimizer& inner() noexcept;
  /// Leaves of a step over all ranks.
  int leaves() const noexcept;
  /// Leaves of this rank: those l < leaves() with l mod world == rank.
  std::vector<int> my_leaves() const;

  /// Raise bits that every rank sees in the report of the next step. Local.
  void request(std::uint64_t bits) noexcept;

  /// What schedules count by.
  std::int64_t applied_steps() const noexcept;
  OptimizerState state() const;
  /// Local; the same state on all ranks.
  /// @throws ArgumentError inside a step, when the number of parameters differs, and for counters
  ///         that no optimizer can have
  void load_state(const OptimizerState& state);
  /// Local.
  ShardView shard();
  /// Local. A copy of all state; buffers are the module's.
  StateDict state_dict() const;
  /// Collective. Take all of a snapshot of the same parameters on the same number of ranks, and
  /// publish its masters.
  /// @throws AgreedError on all ranks when the type of the optimizer, parameters, arrays, intervals
  ///         or param groups differ or values are not finite on one of them; ConfigurationError on
  ///         all ranks when they bring different states, or options that call for arrays that are
  ///         not kept; nothing has changed then
  void load_state_dict(const StateDict& dict);
  /// Collective. Round all masters into all replicas; call it after loading through shard().
  void publish_masters();
  /// Collective. Round the moving averages into all replicas, to validate or export with them; no
  /// step before publish_masters().
  /// @throws ArgumentError when no average is kept
  void publish_ema();
  /// Collective. XXH3-128 of the masters of all trainable parameters by name, 32 hex digits.
  std::string masters_hash();
  /// Local. XXH3-64 of this rank's replica.
  std::uint64_t replica_hash() const;
  /// Valid until add_param_group.
  const FlatLayout& layout() const noexcept;
  /// Why ranks of this node exchange messages instead of sharing memory; empty where they share.
  /// Local.
  const std::string& shared_memory_notice() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vsr::optim
