// SPDX-License-Identifier: Apache-2.0
// Optimizers without kernels of ours: FP32 tensors over the shard stand in for the parameters,
// their state lies in the shard's moments, and LibTorch's own step runs on them. It costs an FP32
// gradient array more (4 bytes an element of the shard) and one sweep an operation.
#include <algorithm>
#include <array>
#include <typeinfo>

#include "comm/error.hpp"
#include "optim/large_array.hpp"
#include "optim/update_rule.hpp"

namespace vsr::optim {
namespace {

// What a kind keeps for each element: names, accessors, and whether the options call for it.

struct RMSpropKind {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr std::array kNames = {"square_avg", "momentum_buffer", "grad_avg"};
  static torch::Tensor& moment(State& s, std::size_t i) {
    return i == 0 ? s.square_avg() : i == 1 ? s.momentum_buffer() : s.grad_avg();
  }
  static bool wants(const Options& o, std::size_t i) {
    return i == 0 || (i == 1 ? o.momentum() > 0 : o.centered());
  }
  static double initial(const Options&) { return 0.0; }
};

struct AdagradKind {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr std::array kNames = {"sum"};
  static torch::Tensor& moment(State& s, std::size_t) { return s.sum(); }
  static bool wants(const Options&, std::size_t) { return true; }
  static double initial(const Options& o) { return o.initial_accumulator_value(); }
};

template <typename OptionsType, typename StateType>
struct AmsgradKind {
  using Options = OptionsType;
  using State = StateType;
  static constexpr std::array kNames = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static torch::Tensor& moment(State& s, std::size_t i) {
    return i == 0 ? s.exp_avg() : i == 1 ? s.exp_avg_sq() : s.max_exp_avg_sq();
  }
  static bool wants(const Options& o, std::size_t i) { return i < 2 || o.amsgrad(); }
  static double initial(const Options&) { return 0.0; }
};

torch::Tensor tensor_over(std::span<float> values) {
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kFloat);
}

template <typename Kind>
class LibTorchUpdate : public UpdateRule {
 public:
  explicit LibTorchUpdate(torch::optim::Optimizer& inner) : inner_(inner) {
    for (std::size_t i = 0; i < Kind::kNames.size(); ++i)
      if (is_wanted(i)) kept_.push_back(i);
  }

  std::vector<std::string> moments() const override {
    std::vector<std::string> names;
    for (const std::size_t i : kept_) names.emplace_back(Kind::kNames[i]);
    return names;
  }

  ParameterState read_state(torch::optim::OptimizerParamState& base, std::size_t) const override {
    auto& state = static_cast<typename Kind::State&>(base);
    ParameterState found{state.step(), 1.0, 1.0, {}};
    for (const std::size_t i : kept_) found.moments.push_back(Kind::moment(state, i));
    return found;
  }

  // LibTorch starts all groups with the default of the optimizer.
  float initial_moment() const override {
    return static_cast<float>(
        Kind::initial(static_cast<const typename Kind::Options&>(inner_.defaults())));
  }

  void attach(MasterShard& shard, GroupOf group_of) override {
    gradients_ = LargeArray<float>(shard.elements());
    masters_.clear();
    inner_.state().clear();
    for (auto& group : inner_.param_groups()) group.params().clear();
    for (const Piece& piece : shard.pieces()) {
      masters_.push_back(tensor_over(shard.part(MasterShard::kMaster, piece)));
      const std::ptrdiff_t group = group_of[piece.parameter];
      if (group < 0) continue;
      inner_.param_groups()[static_cast<std::size_t>(group)].params().push_back(masters_.back());
      auto state = std::make_unique<typename Kind::State>();
      for (std::size_t i = 0; i < kept_.size(); ++i)
        Kind::moment(*state, kept_[i]) =
            tensor_over(shard.part(MasterShard::kFirstMoment + i, piece));
      inner_.state()[masters_.back().unsafeGetTensorImpl()] = std::move(state);
    }
  }

  bool is_state_ours() const noexcept override { return true; }

  void check_arrays() const override {
    for (std::size_t i = 0; i < Kind::kNames.size(); ++i)
      if (is_wanted(i) && std::ranges::find(kept_, i) == kept_.end())
        throw ConfigurationError(std::string("the options of a param group call for ") +
                                 Kind::kNames[i] +
                                 ", which they did not when the optimizer was made; give them to a "
                                 "group from the start");
  }

  void step(MasterShard& shard, const StepInput& input, GroupOf) override {
    take_gradients(shard, input);
    inner_.step();
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      masters_[i].mutable_grad().reset();
      const Piece& piece = shard.pieces()[i];
      if (input.used[piece.parameter] != 0)
        shard.round_piece(MasterShard::kMaster, piece, input.publisher);
    }
    shard.count_step(input.used, nullptr);
  }

 private:
  const typename Kind::Options& options(std::size_t group) const {
    return static_cast<const typename Kind::Options&>(inner_.param_groups()[group].options());
  }

  bool is_wanted(std::size_t moment) const {
    for (std::size_t g = 0; g < inner_.param_groups().size(); ++g)
      if (Kind::wants(options(g), moment)) return true;
    return false;
  }

  void take_gradients(MasterShard& shard, const StepInput& input) {
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      const Piece& piece = shard.pieces()[i];
      if (input.used[piece.parameter] == 0) continue;
      mean_gradient(update_piece(shard, piece, input),
                    shard.part(gradients_.span(), shard.segment_of(piece)), shard.isa());
      masters_[i].mutable_grad() = tensor_over(shard.part(gradients_.span(), piece));
      const auto state = inner_.state().find(masters_[i].unsafeGetTensorImpl());
      if (state != inner_.state().end())
        static_cast<typename Kind::State&>(*state->second)
            .step(shard.counters()[piece.parameter].steps);
    }
  }

  torch::optim::Optimizer& inner_;
  std::vector<std::size_t> kept_;  // moments that have an array
  LargeArray<float> gradients_;
  std::vector<torch::Tensor> masters_;  // one a piece
};

}  // namespace

std::unique_ptr<UpdateRule> make_libtorch_rule(torch::optim::Optimizer& inner) {
  using namespace torch::optim;
  if (typeid(inner) == typeid(RMSprop)) return std::make_unique<LibTorchUpdate<RMSpropKind>>(inner);
  if (typeid(inner) == typeid(Adagrad)) return std::make_unique<LibTorchUpdate<AdagradKind>>(inner);
  if (typeid(inner) == typeid(Adam))
    return std::make_unique<LibTorchUpdate<AmsgradKind<AdamOptions, AdamParamState>>>(inner);
  if (typeid(inner) == typeid(AdamW))
    return std::make_unique<LibTorchUpdate<AmsgradKind<AdamWOptions, AdamWParamState>>>(inner);
  return nullptr;
}

}  // namespace vsr::optim
