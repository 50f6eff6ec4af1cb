// SPDX-License-Identifier: Apache-2.0
// The optimizer a user holds: scaled backward into flat gradients, reduction to the owners of FP32
// shards, agreement, Adam on the shard, and publication of the rounded masters to every replica.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "optim/adam_shard.hpp"
#include "optim/flat_layout.hpp"
#include "optim/loss_scaler.hpp"
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
  /// Registration order. Empty: the inner optimizer's parameters, named param_0, param_1, …
  std::vector<NamedParameter> parameters = {};
  std::vector<NamedBuffer> buffers = {};
  /// Compare a hash of all replicas every so many steps inside agree; 0: never.
  std::int64_t replica_check_steps = 0;
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
  double reduce_ms = 0.0;  ///< this rank's time, all rounds; includes waiting for others
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

/// This rank's FP32 state in ascending logical order; frozen parameters are part of it.
/// Valid as long as the optimizer.
struct ShardView {
  std::vector<ShardPiece> pieces;
  /// The logical intervals of the pieces.
  std::vector<comm::Interval> intervals() const;
};

/// Mixed-precision training of a module's parameters on many ranks.
///
/// One step: `zero_grad`, then for each leaf of this rank (leaf l belongs to rank l mod world, in
/// ascending order) a forward pass and `backward`, then `clip_fp32_grads` if wanted, then `step`.
/// Everything but the plain getters is collective: all ranks, same order.
class Fp16Optimizer {
 public:
  /// Collective. Rank 0's parameters and buffers go to all ranks, and the parameters become views
  /// into one flat replica. The views keep their memory alive beyond this object.
  /// @param inner torch::optim::Adam or AdamW, whose param groups give lr, betas, eps and
  ///        weight_decay; they are read anew at each step
  /// @param world outlives this object
  /// @throws ConfigurationError for another optimizer or amsgrad, for a type that has no segment,
  ///         and when ranks disagree about parameters or options
  Fp16Optimizer(std::unique_ptr<torch::optim::Optimizer> inner, comm::Communicator& world,
                Fp16OptimizerOptions options);
  ~Fp16Optimizer();
  Fp16Optimizer(const Fp16Optimizer&) = delete;
  Fp16Optimizer& operator=(const Fp16Optimizer&) = delete;

  /// Start a step: gradients are zero, the loss scale is fixed, buffers are remembered. Local.
  void zero_grad();
  /// Back-propagate one leaf's mean loss, scaled. With more than one leaf per rank it also reduces
  /// the leaf, so ranks meet here. Afterwards the module's buffers are those of the step again.
  /// @param loss one element, finite or not
  /// @throws ArgumentError when this rank has no leaf left in this step
  void backward(const torch::Tensor& loss);
  /// Ask this step to scale the mean gradient so that its norm is at most `max_norm`: the factor is
  /// min(1, max_norm / (norm + 1e-6)).
  /// @param norm_type 1, 2 or infinity
  /// @returns the norm before clipping, or -1 on overflow; equal on all ranks
  double clip_fp32_grads(double max_norm, double norm_type = 2.0);
  /// Finish the step. A rank without a leaf calls it too.
  /// @throws DivergedError on all ranks: stuck at the smallest loss scale, or replicas differ
  /// @throws ArgumentError on all ranks when one of them did not call backward for each of its
  /// leaves
  StepReport step();

  float loss_scale() const noexcept;
  /// The same value on all ranks; takes effect at the next zero_grad.
  void set_loss_scale(float scale);
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
  /// @throws ArgumentError when the number of parameters differs
  void load_state(const OptimizerState& state);
  ShardView shard();
  /// Collective. Round all masters into all replicas; call it after loading through shard().
  void publish_masters();
  /// Collective. XXH3-128 of the masters of all trainable parameters by name, 32 hex digits.
  std::string masters_hash();
  /// Local. XXH3-64 of this rank's replica.
  std::uint64_t replica_hash() const;
  const FlatLayout& layout() const noexcept;
  /// Why ranks of this node exchange messages instead of sharing memory; empty where they share.
  /// Local.
  const std::string& shared_memory_notice() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vsr::optim
