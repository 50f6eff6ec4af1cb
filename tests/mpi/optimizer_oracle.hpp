// SPDX-License-Identifier: Apache-2.0
// A small network whose data are closed forms, and the step as one plain loop of a single process:
// all leaves one after the other, FP64 sums, Adam element by element. The optimizer must give its
// bits on any number of ranks.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "optim/fp16_optimizer.hpp"
#include "optim/hash.hpp"
#include "optim/update_rules.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::optim::test {

using torch::Tensor;
using vsr::test::world;

/// A closed-form FP32 tensor in about [-1, 1].
inline Tensor wave(std::vector<std::int64_t> shape, double phase) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) numel *= extent;
  Tensor values = torch::empty({numel}, torch::kFloat);
  float* const first = values.data_ptr<float>();
  for (std::int64_t i = 0; i < numel; ++i)
    first[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + phase));
  return values.reshape(shape);
}

/// Two layers with weights in `type` and FP32 biases, one parameter no leaf uses, one frozen, one
/// without elements, and statistics like those of a batch norm.
struct Net {
  explicit Net(torch::ScalarType type_, double phase = 0.0) : type(type_) {
    add("first.weight", wave({100, 20}, phase) * 0.3, type);
    add("first.bias", wave({100}, phase + 1) * 0.1, torch::kFloat);
    add("second.weight", wave({30, 100}, phase + 2) * 0.2, type);
    add("unused", wave({7, 3}, phase + 3), type);
    add("empty", torch::zeros({0, 4}), type);
    add("frozen", wave({30}, phase + 4), type);
    add("second.bias", wave({30}, phase + 5) * 0.1, torch::kFloat);
    parameters[5].replica.set_requires_grad(false);
    statistics = torch::zeros({100});
    calls = torch::zeros({1}, torch::kLong);
  }

  void add(const std::string& name, const Tensor& master, torch::ScalarType dtype) {
    parameters.push_back({name, master.to(dtype).set_requires_grad(true), master.clone()});
  }
  const Tensor& operator[](std::size_t i) const { return parameters[i].replica; }

  /// Mean loss of leaf `leaf` in step `step`; moves the statistics as a forward pass does.
  Tensor loss(int step, int leaf) const {
    const Tensor x = wave({4, 20}, 10.0 * step + leaf).to(type);
    const Tensor hidden = torch::tanh(torch::linear(x, (*this)[0]).to(torch::kFloat) + (*this)[1]);
    {
      const torch::NoGradGuard no_grad;
      statistics.mul_(0.9).add_(hidden.mean(0), 0.1);
      calls.add_(1);
    }
    const Tensor y = torch::linear(hidden.to(type), (*this)[2]).to(torch::kFloat) + (*this)[6] +
                     (*this)[5].to(torch::kFloat);
    return (y - wave({4, 30}, 3.0 * step - leaf)).square().mean();
  }

  std::vector<NamedBuffer> buffers() const {
    return {{"statistics", statistics}, {"calls", calls}};
  }
  std::vector<Tensor> trainable() const {
    std::vector<Tensor> tensors;
    for (const NamedParameter& parameter : parameters)
      if (parameter.replica.requires_grad()) tensors.push_back(parameter.replica);
    return tensors;
  }

  torch::ScalarType type;
  std::vector<NamedParameter> parameters;
  Tensor statistics;
  Tensor calls;
};

inline std::unique_ptr<Fp16Optimizer> make_optimizer(const Net& net, Fp16OptimizerOptions options,
                                                     double weight_decay = 0.01) {
  options.parameters = net.parameters;
  options.buffers = net.buffers();
  auto adam = std::make_unique<torch::optim::Adam>(
      net.trainable(), torch::optim::AdamOptions(1e-2).weight_decay(weight_decay));
  return std::make_unique<Fp16Optimizer>(std::move(adam), world(), std::move(options));
}

/// The plain loop. `net` is its own copy of the network, its FP32 masters in `masters`.
class Oracle {
 public:
  Oracle(torch::ScalarType type, int leaves) : net(type), leaves_(leaves) {
    for (const NamedParameter& parameter : net.parameters) {
      const Tensor& values = parameter.master;
      masters.emplace_back(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
      first.emplace_back(masters.back().size());
      second.emplace_back(masters.back().size());
    }
  }

  /// Gradient sums of all leaves, without a step.
  void sum_leaves(int step, float scale) {
    sums.assign(masters.size(), {});
    for (std::size_t i = 0; i < masters.size(); ++i) sums[i].assign(masters[i].size(), 0.0);
    const Tensor start = net.statistics.clone();
    std::vector<double> mean(100, 0.0);
    loss = 0.0;
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      for (NamedParameter& p : net.parameters) p.replica.mutable_grad().reset();
      const Tensor value = net.loss(step, leaf);
      (value * scale).backward();
      loss += value.item<double>();
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const Tensor grad = net[i].grad();
        if (!grad.defined()) continue;
        const Tensor wide = grad.to(torch::kFloat).contiguous();
        for (std::size_t j = 0; j < masters[i].size(); ++j) sums[i][j] += wide.data_ptr<float>()[j];
      }
      for (std::size_t j = 0; j < 100; ++j) mean[j] += net.statistics.data_ptr<float>()[j];
      net.statistics.copy_(start);
    }
    loss /= leaves_;
    for (std::size_t j = 0; j < 100; ++j)
      net.statistics.data_ptr<float>()[j] = static_cast<float>(mean[j] / leaves_);
  }

  /// 2-norm of the mean gradient, with blocks as the layout defines them.
  double norm(float scale) const {
    std::vector<double> blocks;
    for (const bool singles : {false, true}) {  // type of the segment: weights first, then biases
      std::vector<double> flat;
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const bool is_single = i == 1 || i == 6;
        if (net.type != torch::kFloat && is_single != singles) continue;
        if (net.type == torch::kFloat && singles) continue;
        flat.resize((flat.size() + 63) / 64 * 64);
        flat.insert(flat.end(), sums[i].begin(), sums[i].end());
      }
      flat.resize((flat.size() + 1023) / 1024 * 1024);
      for (std::size_t begin = 0; begin < flat.size(); begin += 1024) {
        std::array<double, 8> lane = {};
        for (std::size_t i = 0; i < 1024; ++i) lane[i % 8] += flat[begin + i] * flat[begin + i];
        blocks.push_back(((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                         ((lane[1] + lane[5]) + (lane[3] + lane[7])));
      }
    }
    double total = 0.0;
    for (const double block : blocks) total += block;
    return std::sqrt(total) / (static_cast<double>(scale) * leaves_);
  }

  /// One step; `max_norm` 0: no clipping.
  void step(int step, float scale, double max_norm) {
    sum_leaves(step, scale);
    const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm(scale) + 1e-6)) : 1.0;
    const double factor = clip / (static_cast<double>(scale) * leaves_);
    const AdamRule options = {.lr = 1e-2, .weight_decay = 0.01};
    beta1_power *= options.beta1;
    beta2_power *= options.beta2;
    const AdamCoefficients c = adam_coefficients(options, beta1_power, beta2_power);
    const torch::NoGradGuard no_grad;
    for (const std::size_t i : {0U, 1U, 2U, 6U}) {
      for (std::size_t j = 0; j < masters[i].size(); ++j)
        adam_step<WeightDecay::into_gradient, ScalarMath>(
            masters[i][j], first[i][j], second[i][j], static_cast<float>(sums[i][j] * factor), c);
      net.parameters[i].replica.copy_(
          torch::from_blob(masters[i].data(), net[i].sizes(), torch::kFloat));
    }
  }

  /// The design's hash, spelled out; names here in bytewise order.
  std::string hash() const {
    Xxh3Stream stream;
    for (const std::size_t i : {4U, 1U, 0U, 6U, 2U, 3U}) {
      const std::string& name = net.parameters[i].name;
      std::vector<std::int64_t> shape = {net[i].dim()};
      for (const std::int64_t extent : net[i].sizes()) shape.push_back(extent);
      stream.update(std::as_bytes(std::span(name.c_str(), name.size() + 1)));
      stream.update(std::as_bytes(std::span(shape)));
      stream.update(std::as_bytes(std::span(masters[i])));
    }
    return stream.hex();
  }

  Net net;
  std::vector<std::vector<float>> masters, first, second;
  std::vector<std::vector<double>> sums;
  double loss = 0.0;
  double beta1_power = 1.0, beta2_power = 1.0;

 private:
  int leaves_;
};

/// Run the leaves of this rank; `spoil` multiplies the loss of leaf `spoilt`.
inline void run_leaves(const Net& net, Fp16Optimizer& optimizer, int step, int spoilt = -1,
                       float spoil = 1.0F) {
  optimizer.zero_grad();
  for (const int leaf : optimizer.my_leaves()) {
    const Tensor loss = net.loss(step, leaf);
    optimizer.backward(leaf == spoilt ? loss * spoil : loss);
  }
}

inline void expect_equal_replicas(const Fp16Optimizer& optimizer) {
  for (const std::uint64_t hash : world().all_gather(optimizer.replica_hash()))
    EXPECT_EQ(hash, optimizer.replica_hash());
}

/// All that a skipped step must leave alone, as bits.
struct Snapshot {
  Snapshot(const Net& net, Fp16Optimizer& optimizer)
      : state(optimizer.state()), replica(optimizer.replica_hash()) {
    for (const ShardPiece& piece : optimizer.shard().pieces)
      for (const std::span<float> values : piece.values)
        for (const float value : values) shard.push_back(std::bit_cast<std::uint32_t>(value));
    const float* const values = net.statistics.const_data_ptr<float>();
    statistics.assign(values, values + net.statistics.numel());
    calls = net.calls.item<std::int64_t>();
  }
  OptimizerState state;
  std::uint64_t replica;
  std::vector<std::uint32_t> shard;
  std::vector<float> statistics;
  std::int64_t calls;
};

}  // namespace vsr::optim::test
