// SPDX-License-Identifier: Apache-2.0
#include "optim/update_rule.hpp"

#include <cmath>
#include <limits>
#include <string_view>
#include <tuple>
#include <typeinfo>

#include "comm/error.hpp"
#include "optim/lamb.hpp"

namespace vsr::optim {
namespace {

// Calls field(name, number) for each option; what the field leaves in `number` is kept.

template <typename Options, typename Field>
void visit_betas(Options& o, const Field& field) {
  auto [beta1, beta2] = o.betas();
  field("beta1", beta1);
  field("beta2", beta2);
  o.betas(std::make_tuple(beta1, beta2));
}

template <typename Field>
bool visit_switch(bool value, const char* name, const Field& field) {
  double number = value ? 1.0 : 0.0;
  field(name, number);
  return number != 0.0;
}

template <typename Options, typename Field>
void visit_adam(Options& o, const Field& field) {
  visit_betas(o, field);
  field("eps", o.eps());
  o.amsgrad(visit_switch(o.amsgrad(), "amsgrad", field));
}
template <typename Field>
void visit(torch::optim::AdamOptions& o, const Field& field) {
  visit_adam(o, field);
}
template <typename Field>
void visit(torch::optim::AdamWOptions& o, const Field& field) {
  visit_adam(o, field);
}
template <typename Field>
void visit(torch::optim::SGDOptions& o, const Field& field) {
  field("momentum", o.momentum());
  field("dampening", o.dampening());
  o.nesterov(visit_switch(o.nesterov(), "nesterov", field));
}
template <typename Field>
void visit(LambOptions& o, const Field& field) {
  visit_betas(o, field);
  field("eps", o.eps());
  o.adapt_always(visit_switch(o.adapt_always(), "adapt_always", field));
}
template <typename Field>
void visit(torch::optim::RMSpropOptions& o, const Field& field) {
  field("alpha", o.alpha());
  field("eps", o.eps());
  field("momentum", o.momentum());
  o.centered(visit_switch(o.centered(), "centered", field));
}
template <typename Field>
void visit(torch::optim::AdagradOptions& o, const Field& field) {
  field("lr_decay", o.lr_decay());
  field("initial_accumulator_value", o.initial_accumulator_value());
  field("eps", o.eps());
}

template <typename Options, typename Field>
bool visit_if(torch::optim::OptimizerOptions& base, const Field& field) {
  auto* const options = dynamic_cast<Options*>(&base);
  if (options == nullptr) return false;
  field("lr", options->lr());
  field("weight_decay", options->weight_decay());
  visit(*options, field);
  return true;
}

template <typename Field>
void visit_any(torch::optim::OptimizerOptions& o, const Field& field) {
  const bool is_known = visit_if<torch::optim::AdamOptions>(o, field) ||
                        visit_if<torch::optim::AdamWOptions>(o, field) ||
                        visit_if<torch::optim::SGDOptions>(o, field) ||
                        visit_if<LambOptions>(o, field) ||
                        visit_if<torch::optim::RMSpropOptions>(o, field) ||
                        visit_if<torch::optim::AdagradOptions>(o, field);
  VSR_CHECK(is_known, "options of an unknown kind of optimizer");
}

// Where a number may lie: from 0 to `end`, which belongs to it or not.
struct Range {
  double end = std::numeric_limits<double>::infinity();
  bool is_end_inside = false;
  bool holds(double number) const {
    return number >= 0.0 && (number < end || (is_end_inside && number == end));
  }
  std::string text() const {
    if (std::isinf(end)) return "a finite number of at least 0";
    return "a number in [0, " + std::to_string(static_cast<int>(end)) + (is_end_inside ? "]" : ")");
  }
};

Range range_of(std::string_view name) {
  if (name == "beta1" || name == "beta2") return {1.0, false};
  if (name == "alpha") return {1.0, true};
  return {};
}

}  // namespace

float UpdateRule::initial_moment() const {
  return 0.0F;
}

void UpdateRule::attach(MasterShard&, GroupOf) {}

void UpdateRule::check_arrays() const {}

std::unique_ptr<UpdateRule> make_update_rule(torch::optim::Optimizer& inner) {
  if (auto rule = make_fused_rule(inner)) return rule;
  if (auto rule = make_libtorch_rule(inner)) return rule;
  if (typeid(inner) == typeid(torch::optim::LBFGS))
    throw ConfigurationError(
        "LBFGS cannot be sharded: its step mixes all parameters (dot products, line search) and "
        "calls the closure several times; use Adam, AdamW, SGD, Lamb, RMSprop or Adagrad");
  throw ConfigurationError(
      "the inner optimizer is of a type this library does not know, so whether it steps element by "
      "element, and what state a checkpoint must hold, is unknown; use Adam, AdamW, SGD, Lamb, "
      "RMSprop or Adagrad");
}

void check_options(const torch::optim::OptimizerOptions& options, const std::string& where) {
  const std::map<std::string, double> numbers = read_options(options);
  for (const auto& [name, number] : numbers) {
    const bool holds = name == "dampening" ? std::isfinite(number) : range_of(name).holds(number);
    if (!holds)
      throw ConfigurationError(where + ": " + name + " is " + std::to_string(number) +
                               ", expected " + range_of(name).text());
  }
  const auto nesterov = numbers.find("nesterov");
  if (nesterov == numbers.end() || nesterov->second == 0.0) return;
  if (numbers.at("momentum") == 0.0 || numbers.at("dampening") != 0.0)
    throw ConfigurationError(where + ": nesterov needs momentum above 0 and no dampening");
}

void append_options(const torch::optim::OptimizerOptions& options, std::string& bytes) {
  const auto copy = options.clone();
  visit_any(*copy, [&](const char* name, double& number) {
    bytes += name;
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  });
}

std::map<std::string, double> read_options(const torch::optim::OptimizerOptions& options) {
  std::map<std::string, double> numbers;
  const auto copy = options.clone();
  visit_any(*copy, [&](const char* name, double& number) { numbers[name] = number; });
  return numbers;
}

void write_options(torch::optim::OptimizerOptions& options,
                   const std::map<std::string, double>& numbers) {
  visit_any(options, [&](const char* name, double& number) {
    const auto found = numbers.find(name);
    VSR_CHECK(found != numbers.end(), std::string("the state of a param group lacks ") + name);
    number = found->second;
  });
}

}  // namespace vsr::optim
