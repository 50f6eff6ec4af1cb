// SPDX-License-Identifier: Apache-2.0
// Every kind of inner optimizer, each with two param groups of different options, and a network
// with a real batch norm for them to train.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "optim/fp16_optimizer.hpp"
#include "optim/lamb.hpp"
#include "tests/mpi/optimizer_oracle.hpp"

namespace vsr::optim::test {

/// linear → batch norm → tanh → linear; FP32 batch norm, the weights in `type`.
struct NormNet {
  explicit NormNet(torch::ScalarType type_ = torch::kHalf, double phase = 0.0) : type(type_) {
    add("first.weight", wave({100, 20}, phase) * 0.3, type);
    add("norm.weight", wave({100}, phase + 1) * 0.1 + 1, torch::kFloat);
    add("norm.bias", wave({100}, phase + 2) * 0.1, torch::kFloat);
    add("second.weight", wave({30, 100}, phase + 3) * 0.2, type);
    mean = torch::zeros({100});
    variance = torch::ones({100});
  }

  void add(const std::string& name, const Tensor& master, torch::ScalarType dtype) {
    parameters.push_back({name, master.to(dtype).set_requires_grad(true), master.clone()});
  }
  const Tensor& operator[](std::size_t i) const { return parameters[i].replica; }

  Tensor loss(int step, int leaf) const {
    const Tensor x = wave({6, 20}, 10.0 * step + leaf).to(type);
    const Tensor hidden = torch::linear(x, (*this)[0]).to(torch::kFloat);
    const Tensor normed =
        torch::batch_norm(hidden, (*this)[1], (*this)[2], mean, variance, true, 0.1, 1e-5, false);
    const Tensor y = torch::linear(torch::tanh(normed).to(type), (*this)[3]).to(torch::kFloat);
    return (y - wave({6, 30}, 3.0 * step - leaf)).square().mean();
  }

  std::vector<NamedBuffer> buffers() const {
    return {{"norm.mean", mean}, {"norm.variance", variance}};
  }

  torch::ScalarType type;
  std::vector<NamedParameter> parameters;
  Tensor mean, variance;
};

/// A kind of inner optimizer by name; makes one over two groups of tensors.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> weights,
                                                         std::vector<Tensor> others)>
      make;
  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
};

template <typename Optimizer, typename Options>
Kind kind_of(const std::string& name, const Options& first, const Options& second) {
  return {name, [=](std::vector<Tensor> weights, std::vector<Tensor> others) {
            std::vector<torch::optim::OptimizerParamGroup> groups;
            groups.emplace_back(std::move(weights), std::make_unique<Options>(first));
            groups.emplace_back(std::move(others), std::make_unique<Options>(second));
            return std::make_unique<Optimizer>(std::move(groups), first);
          }};
}

inline std::vector<Kind> kinds() {
  using namespace torch::optim;
  using Adam = torch::optim::Adam;
  using AdamO = torch::optim::AdamOptions;
  return {
      kind_of<Adam>("Adam", AdamO(1e-2).weight_decay(0.01),
                    AdamO(3e-3).betas(std::make_tuple(0.8, 0.99))),
      kind_of<AdamW>("AdamW", AdamWOptions(1e-2), AdamWOptions(3e-3).weight_decay(0)),
      kind_of<Adam>("Amsgrad", AdamO(1e-2).amsgrad(true), AdamO(3e-3).amsgrad(true)),
      kind_of<AdamW>("AmsgradW", AdamWOptions(1e-2).amsgrad(true), AdamWOptions(3e-3)),
      kind_of<SGD>("Sgd", SGDOptions(0.05), SGDOptions(0.01).weight_decay(0.1)),
      kind_of<SGD>("SgdMomentum", SGDOptions(0.05).momentum(0.9).dampening(0.2),
                   SGDOptions(0.01).weight_decay(0.1)),
      kind_of<SGD>("SgdNesterov", SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-3),
                   SGDOptions(0.01).momentum(0.5)),
      kind_of<RMSprop>("RMSprop", RMSpropOptions(1e-3), RMSpropOptions(1e-4).weight_decay(0.01)),
      kind_of<RMSprop>("RMSpropCentered", RMSpropOptions(1e-3).centered(true).momentum(0.9),
                       RMSpropOptions(1e-4)),
      kind_of<Adagrad>("Adagrad", AdagradOptions(1e-2).lr_decay(0.1),
                       AdagradOptions(1e-3).initial_accumulator_value(0.1).weight_decay(0.01)),
      kind_of<Lamb>("Lamb", LambOptions(1e-2).weight_decay(0.01), LambOptions(3e-3)),
      kind_of<Lamb>("LambAlways", LambOptions(1e-2).adapt_always(true),
                    LambOptions(3e-3).weight_decay(0.1).adapt_always(true)),
  };
}

inline std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  return info.param.name;
}

/// An optimizer of this kind over all of `net`: weights in group 0, the batch norm in group 1.
inline std::unique_ptr<Fp16Optimizer> make_optimizer(const Kind& kind, const NormNet& net,
                                                     comm::Communicator& on,
                                                     Fp16OptimizerOptions options) {
  options.parameters = net.parameters;
  options.buffers = net.buffers();
  return std::make_unique<Fp16Optimizer>(kind.make({net[0], net[3]}, {net[1], net[2]}), on,
                                         std::move(options));
}

inline void run_leaves(const NormNet& net, Fp16Optimizer& optimizer, int step, int spoilt = -1) {
  optimizer.zero_grad();
  for (const int leaf : optimizer.my_leaves()) {
    const Tensor loss = net.loss(step, leaf);
    optimizer.backward(leaf == spoilt ? loss * 1e9F : loss);
  }
}

}  // namespace vsr::optim::test
