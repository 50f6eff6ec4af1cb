// SPDX-License-Identifier: Apache-2.0
// The second sweep of every rule on every instruction set of this machine against a plain loop, for
// pieces cut anywhere: equal bits.
#include "optim/update_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "tests/support/gradient_bytes.hpp"

namespace vsr::optim {
namespace {

using test::Bytes;
using test::gradients;
using test::isas;
using test::kTypes;
using test::put;
using test::Slices;
using test::value_at;

constexpr std::size_t kElements = 4096;
constexpr double kFactor = 0.37 / (1024.0 * 3.0);

using State = test::ShardState;

State initial_state() {
  return test::initial_state(kElements);
}

// A rule twice: element by element, and as the kernel under test.
struct Rule {
  std::string name;
  std::function<void(State&, std::size_t, float)> one;
  std::function<void(const UpdatePiece&, Isa)> kernel;
};

template <WeightDecay kDecay>
Rule adam_rule(const std::string& name, bool decoupled) {
  const AdamRule rule = {.weight_decay = kDecay == WeightDecay::none ? 0.0 : 0.01,
                         .decoupled = decoupled};
  const AdamCoefficients c = adam_coefficients(rule, 0.9 * 0.9, 0.999 * 0.999);
  EXPECT_EQ(weight_decay_of(rule), kDecay);
  return {name,
          [c](State& s, std::size_t i, float g) {
            adam_step<kDecay, ScalarMath>(s.master[i], s.moment1[i], s.moment2[i], g, c);
          },
          [c](const UpdatePiece& piece, Isa isa) { update_adam(piece, kDecay, c, isa); }};
}

Rule sgd_rule(const std::string& name, const SgdRule& rule, bool is_first) {
  const SgdCoefficients c = sgd_coefficients(rule, is_first);
  return {name,
          [c](State& s, std::size_t i, float g) { sgd_step(s.master[i], s.moment1[i], g, c); },
          [c](const UpdatePiece& piece, Isa isa) { update_sgd(piece, c, isa); }};
}

Rule lamb_apply_rule() {
  const LambCoefficients c =
      lamb_coefficients({.weight_decay = 0.01}, 0.9 * 0.9, 0.999 * 0.999, 1.7);
  return {"lamb_apply",
          [c](State& s, std::size_t i, float) {
            s.master[i] += lamb_direction<ScalarMath>(s.master[i], s.moment1[i], s.moment2[i], c) *
                           c.negative_step_size;
          },
          [c](const UpdatePiece& piece, Isa isa) { apply_lamb(piece, c, isa); }};
}

std::vector<Rule> rules() {
  return {adam_rule<WeightDecay::none>("adam", false),
          adam_rule<WeightDecay::into_gradient>("adam_l2", false),
          adam_rule<WeightDecay::decoupled>("adamw", true),
          sgd_rule("sgd", {.lr = 0.1}, false),
          sgd_rule("sgd_decay", {.lr = 0.1, .weight_decay = 0.01}, true),
          sgd_rule("momentum_first", {.momentum = 0.9, .dampening = 0.3}, true),
          sgd_rule("momentum", {.momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01}, false),
          sgd_rule("nesterov", {.momentum = 0.9, .nesterov = true}, false),
          lamb_apply_rule()};
}

struct Inputs {
  explicit Inputs(Dtype dtype, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      leaves.push_back(gradients(dtype, kElements, static_cast<unsigned>(i)));
    slices.assign(leaves.begin(), leaves.end());
    sums.resize(kElements);
    for (const Bytes& leaf : leaves)
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += value_at(dtype, leaf, i);
  }
  std::vector<Bytes> leaves;
  Slices slices;
  std::vector<double> sums;
};

UpdatePiece piece_of(Dtype dtype, const Inputs& inputs, State& state, comm::Interval piece) {
  return {.dtype = dtype,
          .piece = piece,
          .slices = inputs.slices,
          .factor = kFactor,
          .master = state.master,
          .moment1 = state.moment1,
          .moment2 = state.moment2};
}

class UpdateKernels : public testing::TestWithParam<Rule> {};

TEST_P(UpdateKernels, EqualThePlainLoopInsideThePieceAndLeaveTheRest) {
  const Rule& rule = GetParam();
  for (const Dtype dtype : kTypes) {
    for (std::size_t count = 1; count <= 5; ++count) {
      const Inputs inputs(dtype, count);
      State expected = initial_state();
      Bytes replica(kElements * element_bytes(dtype), std::byte{0x5a});
      const Bytes untouched = replica;
      for (std::size_t i = 64; i < 1999; ++i) {
        rule.one(expected, i, unscaled(inputs.sums[i], kFactor));
        put(dtype, replica, i, expected.master[i]);
      }
      for (const Isa isa : isas()) {
        for (const bool from_sums : {false, true}) {
          State state = initial_state();
          Bytes mine = untouched;
          Bytes peer = untouched;
          const std::vector<std::span<std::byte>> destinations = {mine, peer};
          UpdatePiece piece = piece_of(dtype, inputs, state, {64, 1999});
          if (from_sums) piece.sums = inputs.sums;
          piece.destinations = destinations;
          rule.kernel(piece, isa);
          ASSERT_TRUE(state == expected) << isa_name(isa) << ' ' << dtype_name(dtype);
          ASSERT_EQ(mine, replica);
          ASSERT_EQ(peer, replica);
        }
      }
    }
  }
}

TEST_P(UpdateKernels, GiveTheSameBitsForAnyCut) {
  const Rule& rule = GetParam();
  const Inputs inputs(Dtype::fp16, 3);
  State whole = initial_state();
  rule.kernel(piece_of(Dtype::fp16, inputs, whole, {0, 4096}), isas().back());
  for (const std::vector<std::int64_t>& borders :
       {std::vector<std::int64_t>{0, 1024, 4096}, {0, 1024, 2048, 3072, 4096}, {0, 64, 67, 4096}}) {
    State cut = initial_state();
    for (std::size_t i = 0; i + 1 < borders.size(); ++i)
      rule.kernel(piece_of(Dtype::fp16, inputs, cut, {borders[i], borders[i + 1]}), isas().front());
    EXPECT_TRUE(cut == whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateKernels, testing::ValuesIn(rules()),
                         [](const auto& one) { return one.param.name; });

double fold(const std::array<double, 8>& lane) {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

TEST(LambMoments, MomentsAndSquareSumsEqualThePlainLoop) {
  const LambCoefficients c = lamb_coefficients({.weight_decay = 0.01}, 0.81, 0.998, 1.0);
  for (const Dtype dtype : kTypes) {
    const Inputs inputs(dtype, 2);
    const comm::Interval piece = {960, 3001};
    State expected = initial_state();
    std::vector<LambBlock> sums;
    for (std::int64_t begin = piece.begin; begin < piece.end;) {
      const std::int64_t end = std::min<std::int64_t>((begin / 1024 + 1) * 1024, piece.end);
      std::array<double, 8> masters = {}, directions = {};
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        lamb_moments(expected.moment1[i], expected.moment2[i], unscaled(inputs.sums[i], kFactor),
                     c);
        const double w = expected.master[i];
        const double u = lamb_direction<ScalarMath>(expected.master[i], expected.moment1[i],
                                                    expected.moment2[i], c);
        masters[i % 8] += w * w;
        directions[i % 8] += u * u;
      }
      sums.push_back({fold(masters), fold(directions)});
      begin = end;
    }
    ASSERT_EQ(blocks_touched(piece), sums.size());
    for (const Isa isa : isas()) {
      State state = initial_state();
      std::vector<LambBlock> blocks(sums.size());
      step_lamb_moments(piece_of(dtype, inputs, state, piece), c, blocks, isa);
      EXPECT_TRUE(state == expected) << isa_name(isa);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        EXPECT_EQ(blocks[i].master, sums[i].master) << isa_name(isa) << ' ' << i;
        EXPECT_EQ(blocks[i].direction, sums[i].direction) << isa_name(isa) << ' ' << i;
      }
    }
  }
}

TEST(MeanGradient, IsTheSumTimesTheFactorRoundedOnce) {
  for (const Dtype dtype : kTypes) {
    const Inputs inputs(dtype, 3);
    State state = initial_state();
    for (const Isa isa : isas()) {
      std::vector<float> gradient(kElements, -1.0F);
      mean_gradient(piece_of(dtype, inputs, state, {5, 999}), gradient, isa);
      for (std::size_t i = 0; i < kElements; ++i)
        ASSERT_EQ(gradient[i], i >= 5 && i < 999 ? unscaled(inputs.sums[i], kFactor) : -1.0F);
    }
  }
}

TEST(Ema, MovesTowardsTheMastersAndKeepsAConstantToTheBit) {
  const State state = initial_state();
  for (const Isa isa : isas()) {
    std::vector<float> ema(kElements, 0.5F);
    update_ema(state.master, ema, 0.999, isa);
    for (std::size_t i = 0; i < kElements; ++i)
      ASSERT_EQ(ema[i], 0.5F + (state.master[i] - 0.5F) * static_cast<float>(1.0 - 0.999));
    std::vector<float> same = state.master;
    update_ema(state.master, same, 0.999, isa);
    EXPECT_EQ(same, state.master);
  }
}

// T42 of the reference: ratios are per tensor; one over both would be 3.5532.
TEST(Lamb, TrustRatioIsTheQuotientOfTheNorms) {
  const LambRule rule = {.weight_decay = 0.01};
  EXPECT_DOUBLE_EQ(lamb_trust_ratio(rule, std::hypot(3.0, 4.0), 1.0), 5.0);
  EXPECT_DOUBLE_EQ(lamb_trust_ratio(rule, std::hypot(0.3, 0.4), 1.0), 0.5);
  EXPECT_EQ(lamb_trust_ratio(rule, 0.0, 1.0), 1.0);
  EXPECT_EQ(lamb_trust_ratio(rule, 1.0, 0.0), 1.0);
  EXPECT_EQ(lamb_trust_ratio({}, 5.0, 1.0), 1.0);
  EXPECT_EQ(lamb_trust_ratio({.adapt_always = true}, 5.0, 1.0), 5.0);
}

TEST(UpdatePieces, WhatDoesNotFitIsRefused) {
  const Inputs inputs(Dtype::fp16, 1);
  State state = initial_state();
  const AdamCoefficients adam;
  EXPECT_THROW(update_adam(piece_of(Dtype::fp16, inputs, state, {0, 4097}), WeightDecay::none, adam,
                           Isa::scalar),
               ArgumentError);
  EXPECT_THROW(update_adam(piece_of(Dtype::fp32, inputs, state, {0, 8}), WeightDecay::none, adam,
                           Isa::scalar),
               ArgumentError);
  UpdatePiece piece = piece_of(Dtype::fp16, inputs, state, {0, 8});
  piece.moment2 = {};
  EXPECT_THROW(update_adam(piece, WeightDecay::none, adam, Isa::scalar), ArgumentError);
  EXPECT_NO_THROW(update_sgd(piece, sgd_coefficients({}, true), Isa::scalar));
  std::vector<LambBlock> blocks(2);
  EXPECT_THROW(
      step_lamb_moments(piece_of(Dtype::fp16, inputs, state, {0, 1024}), {}, blocks, Isa::scalar),
      ArgumentError);
  EXPECT_THROW(
      step_lamb_moments(piece_of(Dtype::fp16, inputs, state, {4, 1500}), {}, blocks, Isa::scalar),
      ArgumentError);
}

}  // namespace
}  // namespace vsr::optim
