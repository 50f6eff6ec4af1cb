// SPDX-License-Identifier: Apache-2.0
// What an Fp16Optimizer holds; shared by the file with the step and the file with the state, and
// seen by nobody else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/agreement.hpp"
#include "optim/fp16_optimizer.hpp"
#include "optim/inner_optimizer.hpp"
#include "optim/parameter_claim.hpp"
#include "optim/reduction.hpp"

namespace vsr::optim {

/// Collective. @throws ConfigurationError on all ranks unless all bring the same number: "rank N
/// has " and `what`
void require_same_on_all(comm::Communicator& world, std::uint64_t mine, const std::string& what);

/// Everything whose size follows from the layout; made anew when a param group is added.
struct FlatParts {
  /// Collective.
  /// @throws ConfigurationError on all ranks when they disagree about parameters or options
  FlatParts(comm::Communicator& world, std::span<const NamedParameter> parameters,
            const Fp16OptimizerOptions& options, int leaves, std::size_t buffer_values,
            const InnerOptimizer& inner);

  FlatLayout layout;
  FlatBuffers flat;
  GradientReducer reducer;
  Agreement agreement;
  comm::ShardPublisher publisher;
  MasterShard shard;
};

/// What an optimizer holds that a rank can make alone, and fail to.
struct LocalParts {
  /// Local. @throws ConfigurationError
  LocalParts(std::unique_ptr<torch::optim::Optimizer> optimizer, Fp16OptimizerOptions given);

  Fp16OptimizerOptions options;  // parameters and buffers are moved out of it
  InnerOptimizer inner;
  std::vector<NamedParameter> parameters;
  LossScaler scaler;
};

struct Fp16Optimizer::Impl : LocalParts {
  /// Collective.
  Impl(LocalParts local, comm::Communicator& communicator);

  // The step (fp16_optimizer.cpp).
  void start_step();
  void backward(const torch::Tensor& loss, bool update_fp32_grads);
  void run_backward(const torch::Tensor& loss, bool ends_leaf);
  void end_leaf();
  void reduce_and_agree(double max_norm, Norm norm, double power);
  void agree(double max_norm, Norm norm, double power);
  StepReport finish_step();
  void check_changed_options();
  void agree_on_options();
  void require_clipping(double max_norm, double power) const;
  void require_norm_in_range(double power);
  void discard_step();
  void apply();
  StepReport report() const;
  double gradient_scale() const;
  double factor() const;
  std::string why_stuck(const StepReport& last) const;
  std::string why_replicas_differ(const ReplicasDiffer& differ) const;

  // How it is made and grows (fp16_optimizer_setup.cpp).
  void take_masters_from_rank_0(std::size_t first_parameter);
  void take_inner_state(std::size_t first_parameter);
  void attach();
  void add_param_group(const torch::optim::OptimizerParamGroup& group,
                       const std::vector<std::string>& names);
  std::vector<NamedParameter> parameters_with(const torch::optim::OptimizerParamGroup& group,
                                              const std::vector<std::string>& names) const;
  void move_shard_to(FlatParts& next) const;

  // The state (fp16_optimizer_state.cpp).
  void write_mean_gradients(std::span<float> shard_values);
  bool has_mean_gradient();
  std::vector<torch::Tensor> mean_gradients();
  OptimizerState state() const;
  void check_state(const OptimizerState& state) const;
  void load_state(const OptimizerState& state);
  StateDict state_dict() const;
  void check_dict(const StateDict& dict, const ShardView& view) const;
  void load_state_dict(const StateDict& dict);
  void publish(std::size_t array);

  int my_leaves() const {
    return world.rank() >= leaves ? 0 : (leaves - world.rank() - 1) / world.world() + 1;
  }
  bool is_between_steps() const { return !current || current->is_untouched(); }
  std::uint64_t replica_hash() const;

  comm::Communicator& world;
  int leaves;
  ModuleBuffers buffers;
  std::unique_ptr<FlatParts> parts;
  ParameterClaim claim;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::uint64_t requests = 0;
  std::int64_t last_equal_step = 0;   // applied steps when the replicas were compared last
  std::uint64_t checked_options = 0;  // hash of those that were checked last
  bool replicas_are_averages = false;

  // The step in progress.
  struct Step {
    float scale = 1.0F;
    std::vector<double> losses;       // of the leaves that ended
    std::optional<double> leaf_loss;  // of the leaf that has not
    std::vector<double> buffer_values;
    std::optional<Agreed> agreed;
    std::uint64_t options = 0;  // hash, as agreed on
    bool has_failed = false;    // a backward threw half-way
    double norm = 0.0;
    double clip_factor = 1.0;
    double reduce_ms = 0.0, agree_ms = 0.0, update_ms = 0.0, publish_ms = 0.0;
    double waited_before_ms = 0.0;  // of the reducer
    bool is_untouched() const { return losses.empty() && !leaf_loss && !agreed; }
  };
  std::optional<Step> current;
};

}  // namespace vsr::optim
