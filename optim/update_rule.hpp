// SPDX-License-Identifier: Apache-2.0
// The border between a LibTorch optimizer and the shard: one UpdateRule for each kind that can be
// stepped element by element, so that a cut through a parameter changes no bit.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/fused_step.hpp"
#include "optim/master_shard.hpp"

namespace vsr::optim {

/// Param group of each parameter, or -1.
using GroupOf = std::span<const std::ptrdiff_t>;

/// What a LibTorch optimizer remembers of one parameter.
struct ParameterState {
  std::int64_t steps = 0;
  double beta1 = 1.0;  ///< of the parameter's group; 1 for rules without
  double beta2 = 1.0;
  std::vector<torch::Tensor> moments;  ///< in the order of UpdateRule::moments(); may be undefined
};

/// How the masters of a shard are stepped with the options of one LibTorch optimizer, which are
/// read anew at each step.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// Names of the FP32 arrays the rule keeps beside the masters; fixed at construction.
  virtual std::vector<std::string> moments() const = 0;
  /// The state in `state`, which belongs to a parameter of group `group`.
  virtual ParameterState read_state(torch::optim::OptimizerParamState& state,
                                    std::size_t group) const = 0;
  /// What moments of a parameter without state start with.
  virtual float initial_moment() const;
  /// Masters and moments lie in `shard`, which outlives this object or the next call. Local.
  virtual void attach(MasterShard& shard, GroupOf group_of);
  /// @throws ConfigurationError for options that call for arrays the rule does not keep
  virtual void check_arrays() const;
  /// Whether the rule itself keeps state in the LibTorch optimizer.
  virtual bool is_state_ours() const noexcept { return false; }
  /// Step the used parameters and publish their rounded masters to the replicas in reach.
  /// Collective for some rules. check_arrays() has passed.
  virtual void step(MasterShard& shard, const StepInput& input, GroupOf group_of) = 0;
};

/// The rule for `inner`, which outlives it. Adam, AdamW, SGD and Lamb have kernels of their own;
/// RMSprop, Adagrad and amsgrad run LibTorch's step on FP32 tensors of the shard.
/// @throws ConfigurationError for an optimizer that cannot be stepped element by element (LBFGS) or
///         that is not known (a class derived from a known one may step otherwise), with the reason
std::unique_ptr<UpdateRule> make_update_rule(torch::optim::Optimizer& inner);

/// The rules that make_update_rule chooses between; null for another kind of optimizer.
std::unique_ptr<UpdateRule> make_fused_rule(torch::optim::Optimizer& inner);
std::unique_ptr<UpdateRule> make_libtorch_rule(torch::optim::Optimizer& inner);

/// Refuse numbers no step makes sense with: a negative or non-finite rate, decay, eps or momentum,
/// betas outside [0, 1), Nesterov without momentum.
/// @param where the param group or the optimizer, for the message
/// @throws ConfigurationError
void check_options(const torch::optim::OptimizerOptions& options, const std::string& where);
/// Append names and numbers of the options to `bytes`, to compare ranks by a hash of them.
void append_options(const torch::optim::OptimizerOptions& options, std::string& bytes);
/// The numbers of a param group by name ("lr", "beta1", "momentum", …; switches are 0 or 1).
std::map<std::string, double> read_options(const torch::optim::OptimizerOptions& options);
/// @throws ArgumentError when a number of this kind of options is missing
void write_options(torch::optim::OptimizerOptions& options,
                   const std::map<std::string, double>& numbers);

}  // namespace vsr::optim
