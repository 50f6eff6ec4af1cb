// SPDX-License-Identifier: Apache-2.0
// LibTorch's Adam, AdamW and SGD and our Lamb, stepped by the kernels of this library.
#include <algorithm>

#include "comm/error.hpp"
#include "optim/lamb.hpp"
#include "optim/update_rule.hpp"

namespace vsr::optim {
namespace {

template <typename Options>
const Options& options_of(const torch::optim::Optimizer& inner, std::size_t group) {
  return static_cast<const Options&>(inner.param_groups()[group].options());
}

// One set of constants a parameter; a frozen one outside all groups has defaults.
template <typename Rule, typename Read>
std::vector<Rule> rules_of(GroupOf group_of, const Read& read) {
  std::vector<Rule> rules;
  for (const std::ptrdiff_t group : group_of)
    rules.push_back(group < 0 ? Rule() : read(static_cast<std::size_t>(group)));
  return rules;
}

template <typename Options>
bool uses_amsgrad(const torch::optim::Optimizer& inner) {
  for (std::size_t g = 0; g < inner.param_groups().size(); ++g)
    if (options_of<Options>(inner, g).amsgrad()) return true;
  return false;
}

// Rules with two moments and a step count, as Adam's.
template <typename Options, typename State>
class TwoMomentUpdate : public UpdateRule {
 public:
  explicit TwoMomentUpdate(torch::optim::Optimizer& inner) : inner_(inner) {}

  std::vector<std::string> moments() const override { return {"exp_avg", "exp_avg_sq"}; }

  ParameterState read_state(torch::optim::OptimizerParamState& base,
                            std::size_t group) const override {
    auto& state = static_cast<State&>(base);
    const auto [beta1, beta2] = options(group).betas();
    return {state.step(), beta1, beta2, {state.exp_avg(), state.exp_avg_sq()}};
  }

 protected:
  const Options& options(std::size_t group) const { return options_of<Options>(inner_, group); }
  const torch::optim::Optimizer& inner() const { return inner_; }

 private:
  torch::optim::Optimizer& inner_;
};

template <typename Options, typename State>
class AdamUpdate : public TwoMomentUpdate<Options, State> {
 public:
  using TwoMomentUpdate<Options, State>::TwoMomentUpdate;

  void check_arrays() const override {
    if (uses_amsgrad<Options>(this->inner()))
      throw ConfigurationError(
          "a param group asks for amsgrad, for which the optimizer was made without an array; give "
          "amsgrad to a group from the start");
  }

  void step(MasterShard& shard, const StepInput& input, GroupOf group_of) override {
    step_adam(shard, input, rules_of<AdamRule>(group_of, [&](std::size_t g) { return rule(g); }));
  }

 private:
  AdamRule rule(std::size_t group) const {
    const Options& o = this->options(group);
    return {o.lr(),  std::get<0>(o.betas()), std::get<1>(o.betas()),
            o.eps(), o.weight_decay(),       std::is_same_v<Options, torch::optim::AdamWOptions>};
  }
};

class SgdUpdate : public UpdateRule {
 public:
  explicit SgdUpdate(torch::optim::Optimizer& inner) : inner_(inner) { remember_groups(); }

  std::vector<std::string> moments() const override {
    const bool any = std::ranges::find(has_momentum_, true) != has_momentum_.end();
    return any ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>();
  }

  ParameterState read_state(torch::optim::OptimizerParamState& base, std::size_t) const override {
    auto& state = static_cast<torch::optim::SGDParamState&>(base);
    const std::int64_t steps = state.momentum_buffer().defined() ? 1 : 0;
    if (moments().empty()) return {steps, 1.0, 1.0, {}};
    return {steps, 0.0, 1.0, {state.momentum_buffer()}};  // 0: the momentum began
  }

  void attach(MasterShard&, GroupOf) override { remember_groups(); }

  void check_arrays() const override {
    for (std::size_t g = 0; g < inner_.param_groups().size(); ++g) {
      if (options_of<torch::optim::SGDOptions>(inner_, g).momentum() == 0.0) continue;
      const bool is_new = g >= has_momentum_.size();
      if (is_new ? moments().empty() : !has_momentum_[g])
        throw ConfigurationError(
            "param group " + std::to_string(g) + " of SGD " +
            (is_new ? "asks for momentum, but the optimizer was made without; give momentum to a "
                      "group from the start"
                    : "began without momentum and has some now; set it before the optimizer is "
                      "made"));
    }
  }

  void step(MasterShard& shard, const StepInput& input, GroupOf group_of) override {
    step_sgd(shard, input, rules_of<SgdRule>(group_of, [&](std::size_t g) { return rule(g); }));
  }

 private:
  void remember_groups() {
    for (std::size_t g = has_momentum_.size(); g < inner_.param_groups().size(); ++g)
      has_momentum_.push_back(options_of<torch::optim::SGDOptions>(inner_, g).momentum() != 0.0);
  }

  SgdRule rule(std::size_t group) const {
    const auto& o = options_of<torch::optim::SGDOptions>(inner_, group);
    return {o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov()};
  }

  torch::optim::Optimizer& inner_;
  std::vector<bool> has_momentum_;  // of each group, when it was met first
};

class LambUpdate : public TwoMomentUpdate<LambOptions, LambParamState> {
 public:
  using TwoMomentUpdate::TwoMomentUpdate;

  void step(MasterShard& shard, const StepInput& input, GroupOf group_of) override {
    step_lamb(shard, input, rules_of<LambRule>(group_of, [&](std::size_t group) -> LambRule {
                const LambOptions& o = options(group);
                return {o.lr(),  std::get<0>(o.betas()), std::get<1>(o.betas()),
                        o.eps(), o.weight_decay(),       o.adapt_always()};
              }));
  }
};

}  // namespace

std::unique_ptr<UpdateRule> make_fused_rule(torch::optim::Optimizer& inner) {
  using namespace torch::optim;
  if (typeid(inner) == typeid(Adam) && !uses_amsgrad<AdamOptions>(inner))
    return std::make_unique<AdamUpdate<AdamOptions, AdamParamState>>(inner);
  if (typeid(inner) == typeid(AdamW) && !uses_amsgrad<AdamWOptions>(inner))
    return std::make_unique<AdamUpdate<AdamWOptions, AdamWParamState>>(inner);
  if (typeid(inner) == typeid(SGD)) return std::make_unique<SgdUpdate>(inner);
  if (typeid(inner) == typeid(Lamb)) return std::make_unique<LambUpdate>(inner);
  return nullptr;
}

}  // namespace vsr::optim
