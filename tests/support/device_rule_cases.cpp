// SPDX-License-Identifier: Apache-2.0
// The second sweep on a device against the kernels of the CPU: equal bits for every rule, pieces
// cut anywhere, and what lies outside them left alone.
#include "tests/support/device_cases.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace vsr::optim::test {
namespace {

// The rules, for pieces cut anywhere.

constexpr std::size_t kElements = 6 * 1024;
constexpr double kFactor = 0.37 / (1024.0 * 3.0);

// Cuts at odd places, gaps, a piece over several blocks, and more pieces than one launch takes.
std::vector<comm::Interval> cut_anywhere() {
  std::vector<comm::Interval> pieces = {{0, 1},       {1, 3},       {3, 8},       {9, 64},
                                        {64, 1023},   {1023, 1024}, {1024, 1025}, {1025, 1025},
                                        {1026, 4097}, {4099, 4099}};
  for (std::int64_t begin = 4100; begin + 17 < 6000; begin += 19)
    pieces.push_back({begin, begin + 17});
  return pieces;
}

// Aligned starts, as parameters have them.
std::vector<comm::Interval> cut_at_parameters() {
  std::vector<comm::Interval> pieces = {{0, 5}, {64, 1999}, {2048, 5000}};
  for (std::int64_t begin = 5056; begin + 24 <= 6144; begin += 24)
    pieces.push_back({begin, begin + 21});
  return pieces;
}

struct Where {
  Dtype dtype;
  bool from_sums;
  bool factor_on_device;
  int destinations;
};

std::vector<Where> places() {
  std::vector<Where> all;
  for (const Dtype dtype : kTypes)
    for (const bool from_sums : {false, true})
      for (const int destinations : {0, 1, 3})
        all.push_back({dtype, from_sums, destinations == 1, destinations});
  return all;
}

// The state of one shard twice: stepped by the CPU, and on the device.
class Twin {
 public:
  explicit Twin(const Where& where)
      : where_(where),
        leaves_(where.dtype, kElements, 3),
        expected_(initial_state(kElements)),
        master_(expected_.master),
        moment1_(expected_.moment1),
        moment2_(expected_.moment2),
        factor_(std::vector<double>{kFactor}),
        replica_(kElements * element_bytes(where.dtype), std::byte{0x5a}),
        sums_(kElements, 0.0) {
    for (const Bytes& leaf : leaves_.host)
      for (std::size_t i = 0; i < kElements; ++i) sums_[i] += value_at(where.dtype, leaf, i);
    sums_on_device_.emplace_back(sums_);
    for (int i = 0; i < where.destinations; ++i) {
      replicas_.emplace_back(replica_);
      destinations_.push_back(replicas_.back().span());
    }
  }

  UpdatePiece piece(comm::Interval interval) {
    places_ = {std::span(replica_)};
    return {.dtype = where_.dtype,
            .piece = interval,
            .slices = leaves_.slices,
            .factor = kFactor,
            .master = expected_.master,
            .moment1 = expected_.moment1,
            .moment2 = expected_.moment2,
            .destinations = places_};
  }
  DeviceShard shard() const {
    return {.dtype = where_.dtype,
            .slices = leaves_.on_device,
            .sums = where_.from_sums ? sums_on_device_[0].span() : std::span<double>(),
            .factor = {.value = where_.factor_on_device ? 77.0 : kFactor,
                       .on_device = where_.factor_on_device ? factor_.span().data() : nullptr},
            .master = master_.span(),
            .moment1 = moment1_.span(),
            .moment2 = moment2_.span(),
            .destinations = destinations_};
  }
  void expect_same() const {
    EXPECT_TRUE(same_bits(master_.values(), expected_.master)) << dtype_name(where_.dtype);
    EXPECT_TRUE(same_bits(moment1_.values(), expected_.moment1)) << dtype_name(where_.dtype);
    EXPECT_TRUE(same_bits(moment2_.values(), expected_.moment2)) << dtype_name(where_.dtype);
    for (const Buffer<std::byte>& replica : replicas_)
      EXPECT_TRUE(same_bits(replica.values(), replica_)) << dtype_name(where_.dtype);
  }

 private:
  Where where_;
  Leaves leaves_;
  ShardState expected_;
  Buffer<float> master_, moment1_, moment2_;
  Buffer<double> factor_;
  Bytes replica_;
  std::vector<double> sums_;
  std::vector<Buffer<double>> sums_on_device_;
  std::vector<Buffer<std::byte>> replicas_;
  std::vector<std::span<std::byte>> destinations_;
  std::vector<std::span<std::byte>> places_;
};

TEST(DeviceRules, AdamAndAdamWEqualThoseOfTheCpu) {
  for (const Where& where : places()) {
    Twin twin(where);
    std::vector<AdamPiece> pieces;
    double power = 1.0;
    for (const comm::Interval& interval : cut_anywhere()) {
      const auto kind = pieces.size() % 3;
      const AdamRule rule = {.lr = 1e-3 * static_cast<double>(pieces.size() + 1),
                             .weight_decay = kind == 0 ? 0.0 : 0.01,
                             .decoupled = kind == 2};
      power *= 0.95;
      pieces.push_back({interval, weight_decay_of(rule), adam_coefficients(rule, power, power)});
      update_adam(twin.piece(interval), pieces.back().decay, pieces.back().coefficients,
                  active_isa());
    }
    ASSERT_GT(pieces.size(), 90U);
    device_under_test().adam(twin.shard(), pieces);
    twin.expect_same();
  }
}

// What the contract of the fused rules rests on: IEEE division and square root, no contraction, no
// flushed subnormals, for bits of any kind.
TEST(DeviceRules, AdamOnRandomBitsEqualsThatOfTheCpu) {
  constexpr std::size_t kMany = 256 * 1024;
  std::mt19937 random(11);
  std::vector<float> master(kMany), moment1(kMany), moment2(kMany);
  std::vector<double> sums(kMany);
  const auto finite = [&] {
    float value = 0.0F;
    do value = float_of(static_cast<std::uint32_t>(random()));
    while (!(value - value == 0.0F));
    return value;
  };
  for (std::size_t i = 0; i < kMany; ++i) {
    master[i] = finite();
    moment1[i] = finite() * 0x1p-40F;
    moment2[i] = std::fabs(finite()) * 0x1p-40F;
    sums[i] = static_cast<double>(finite()) * 0x1p-64;
  }
  const AdamCoefficients c = adam_coefficients({.eps = 0x1p-100}, 0.9, 0.999);
  const Buffer<float> w(master), m(moment1), v(moment2);
  const Buffer<double> gradient(sums);
  const AdamPiece piece = {{0, static_cast<std::int64_t>(kMany)}, WeightDecay::none, c};
  device_under_test().adam(
      {.sums = gradient.span(), .master = w.span(), .moment1 = m.span(), .moment2 = v.span()},
      std::span(&piece, 1));
  update_adam({.piece = piece.piece,
               .sums = sums,
               .master = master,
               .moment1 = moment1,
               .moment2 = moment2},
              WeightDecay::none, c, active_isa());
  EXPECT_TRUE(same_bits(m.values(), moment1));
  EXPECT_TRUE(same_bits(v.values(), moment2));
  const std::vector<float> got = w.values();
  for (std::size_t i = 0; i < kMany; ++i) {
    if (master[i] != master[i]) {  // infinity / infinity: the payload is the device's
      ASSERT_TRUE(got[i] != got[i]) << i;
    } else {
      ASSERT_EQ(bits_of(got[i]), bits_of(master[i])) << i;
    }
  }
}

TEST(DeviceRules, SgdEqualsThatOfTheCpu) {
  const std::vector<SgdRule> rules = {
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.01},
      {.momentum = 0.9, .dampening = 0.3},
      {.momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01},
      {.momentum = 0.9, .nesterov = true},
  };
  for (const Where& where : places()) {
    Twin twin(where);
    std::vector<SgdPiece> pieces;
    for (const comm::Interval& interval : cut_anywhere()) {
      pieces.push_back({interval, sgd_coefficients(rules[pieces.size() % rules.size()],
                                                   pieces.size() % 2 == 0)});
      update_sgd(twin.piece(interval), pieces.back().coefficients, active_isa());
    }
    device_under_test().sgd(twin.shard(), pieces);
    twin.expect_same();
  }
}

TEST(DeviceRules, SgdWithoutMomentumNeedsNoMoments) {
  Twin twin({Dtype::fp16, false, false, 1});
  const SgdPiece piece = {{5, 4000}, sgd_coefficients({.lr = 0.1}, true)};
  update_sgd(twin.piece(piece.piece), piece.coefficients, active_isa());
  DeviceShard shard = twin.shard();
  shard.moment1 = {};
  shard.moment2 = {};
  device_under_test().sgd(shard, std::span(&piece, 1));
  twin.expect_same();
}

TEST(DeviceRules, BothPassesOfLambEqualThoseOfTheCpu) {
  for (const Where& where : places()) {
    Twin twin(where);
    std::vector<LambPiece> pieces;
    std::vector<LambBlock> expected;
    for (const comm::Interval& interval : cut_at_parameters()) {
      LambRule rule = {.weight_decay = 0.01 * static_cast<double>(pieces.size() % 3)};
      if (pieces.size() % 5 == 4) rule.eps = 0.0;
      const double ratio = 0.5 + static_cast<double>(pieces.size());
      pieces.push_back({interval, lamb_coefficients(rule, 0.81, 0.998, ratio)});
      std::vector<LambBlock> blocks(blocks_touched(interval));
      step_lamb_moments(twin.piece(interval), pieces.back().coefficients, blocks, active_isa());
      expected.insert(expected.end(), blocks.begin(), blocks.end());
    }
    ASSERT_GT(pieces.size(), 40U);
    const Buffer<LambBlock> blocks{std::vector<LambBlock>(expected.size(), {-1.0, -1.0})};
    device_under_test().lamb_moments(twin.shard(), pieces, blocks.span());
    EXPECT_TRUE(same_bits(blocks.values(), expected)) << dtype_name(where.dtype);
    for (const LambPiece& piece : pieces)
      apply_lamb(twin.piece(piece.piece), piece.coefficients, active_isa());
    device_under_test().lamb_apply(twin.shard(), pieces);
    twin.expect_same();
  }
}

TEST(DeviceRules, TheMeanGradientEqualsThatOfTheCpu) {
  for (const Where& where : places()) {
    Twin twin(where);
    std::vector<float> expected(kElements, -1.0F);
    for (const comm::Interval& interval : cut_anywhere())
      mean_gradient(twin.piece(interval), expected, active_isa());
    const Buffer<float> gradient{std::vector<float>(kElements, -1.0F)};
    device_under_test().mean_gradient(twin.shard(), cut_anywhere(), gradient.span());
    EXPECT_TRUE(same_bits(gradient.values(), expected)) << dtype_name(where.dtype);
  }
}

TEST(DeviceRules, AveragesEqualThoseOfTheCpu) {
  const ShardState state = initial_state(kElements);
  for (const std::size_t elements : {std::size_t{0}, std::size_t{3}, kElements - 1}) {
    const std::span<const float> masters(state.master.data(), elements);
    std::vector<float> expected(elements, 0.5F);
    const Buffer<float> master(masters);
    const Buffer<float> ema(expected);
    update_ema(masters, expected, 0.999, active_isa());
    device_under_test().ema(master.span(), ema.span(), 0.999);
    EXPECT_TRUE(same_bits(ema.values(), expected));
  }
}

}  // namespace
}  // namespace vsr::optim::test
