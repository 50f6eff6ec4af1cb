// SPDX-License-Identifier: Apache-2.0
// Both sweeps on a device against the kernels of the CPU: equal bits, for every element type, norm
// and rule, pieces cut anywhere, and what is to be left alone.
#include "tests/support/device_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/gradient_bytes.hpp"

namespace vsr::optim::test {
namespace {

// Gradients of many magnitudes, with zeros of both signs and the smallest values of their type.
Bytes leaf_of(Dtype dtype, std::size_t elements, unsigned seed) {
  Bytes leaf = gradients(dtype, elements, seed);
  const float smallest = dtype == Dtype::fp16 ? 0x1p-24F : 1e-40F;
  for (std::size_t i = seed % 7; i < elements; i += 37)
    put(dtype, leaf, i, i % 4 == 0 ? 0.0F : i % 4 == 1 ? -0.0F : i % 4 == 2 ? smallest : -smallest);
  return leaf;
}

// Leaves on the host and on the device.
struct Leaves {
  Leaves(Dtype dtype, std::size_t elements, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      host.push_back(leaf_of(dtype, elements, static_cast<unsigned>(100 * count + i)));
    place();
  }
  // Once the leaves are as the case wants them.
  void place() {
    buffers.clear();
    slices.assign(host.begin(), host.end());
    on_device.clear();
    for (const Bytes& leaf : host) {
      buffers.emplace_back(leaf);
      on_device.push_back(buffers.back().span());
    }
  }
  std::vector<Bytes> host;
  Slices slices;
  std::vector<Buffer<std::byte>> buffers;
  Slices on_device;
};

struct SumResult {
  std::vector<double> sums, norms;
  Census census;
};

// Field by field, because a NaN differs from itself and payloads are the device's.
void expect_equal(const Census& a, const Census& b) {
  EXPECT_EQ(a.inf_count, b.inf_count);
  EXPECT_EQ(a.nan_count, b.nan_count);
  EXPECT_EQ(a.first_element, b.first_element);
  EXPECT_EQ(a.first_slice, b.first_slice);
}

SumResult sum_on_cpu(SumLeaves sweep, std::size_t blocks, bool keeps_sums) {
  SumResult result = {
      std::vector<double>(keeps_sums ? 1024 * blocks : 0, 0.25), std::vector<double>(blocks), {}};
  sweep.accumulator = result.sums;
  sweep.block_norms = result.norms;
  result.census = optim::sum_leaves(sweep, active_isa());
  return result;
}

SumResult sum_on_device(const SumLeaves& like, const Slices& slices, std::size_t blocks,
                        bool keeps_sums) {
  const Buffer<double> sums(std::vector<double>(keeps_sums ? 1024 * blocks : 0, 0.25));
  const Buffer<double> norms(std::vector<double>(blocks, -1.0));
  const Buffer<CensusRecord> census(std::vector<CensusRecord>(1));
  device_under_test().sum_leaves({.dtype = like.dtype,
                                  .slices = slices,
                                  .accumulator = sums.span(),
                                  .accumulate = like.accumulate,
                                  .norm = like.norm,
                                  .power = like.power,
                                  .block_norms = norms.span(),
                                  .census = census.span().first<1>()});
  return {sums.values(), norms.values(), census_of(census.values()[0])};
}

TEST(DeviceConversions, EveryPatternOfSixteenBitsWidensAndRoundsAlike) {
  std::vector<std::uint16_t> patterns(65536 + 3);  // the last group is no whole one
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const Bytes bytes(std::as_bytes(std::span(patterns)).begin(),
                    std::as_bytes(std::span(patterns)).end());
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    std::vector<float> expected(patterns.size());
    widen(dtype, bytes, expected, active_isa());
    const Buffer<std::byte> input(bytes);
    const Buffer<float> widened(std::vector<float>(patterns.size(), -1.0F));
    device_under_test().widen(dtype, input.span(), widened.span());
    EXPECT_TRUE(same_bits(widened.values(), expected)) << dtype_name(dtype);

    Bytes rounded_on_cpu(bytes.size());
    round_to(dtype, expected, rounded_on_cpu, active_isa());
    const Buffer<std::byte> rounded(Bytes(bytes.size(), std::byte{0x5a}));
    device_under_test().round_to(dtype, widened.span(), rounded.span());
    EXPECT_TRUE(same_bits(rounded.values(), rounded_on_cpu)) << dtype_name(dtype);
  }
}

TEST(DeviceConversions, RandomBitsRoundAlike) {
  std::mt19937 random(7);
  std::vector<float> values(200001);
  for (float& value : values) value = float_of(static_cast<std::uint32_t>(random()));
  for (std::size_t i = 0; i < 100000; ++i)  // the range in which binary16 rounds
    values[i] = std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 64) - 8);
  const Buffer<float> input(values);
  for (const Dtype dtype : kTypes) {
    Bytes expected(values.size() * element_bytes(dtype));
    round_to(dtype, values, expected, active_isa());
    const Buffer<std::byte> rounded{Bytes(expected.size())};
    device_under_test().round_to(dtype, input.span(), rounded.span());
    EXPECT_TRUE(same_bits(rounded.values(), expected)) << dtype_name(dtype);
  }
}

TEST(DeviceSums, SumsAndNormsEqualThoseOfTheCpu) {
  for (const Dtype dtype : kTypes) {
    for (const std::size_t blocks : {1U, 4U, 9U}) {
      for (const std::size_t count : {0U, 1U, 2U, 5U, 8U}) {
        const Leaves leaves(dtype, 1024 * blocks, count);
        for (const Norm norm : {Norm::one, Norm::two, Norm::infinity}) {
          for (const int sums : {0, 1, 2}) {  // none, stored, added to
            const SumLeaves sweep = {
                .dtype = dtype, .slices = leaves.slices, .accumulate = sums == 2, .norm = norm};
            const SumResult expected = sum_on_cpu(sweep, blocks, sums > 0);
            const SumResult got = sum_on_device(sweep, leaves.on_device, blocks, sums > 0);
            ASSERT_TRUE(same_bits(got.sums, expected.sums)) << dtype_name(dtype) << ' ' << count;
            ASSERT_TRUE(same_bits(got.norms, expected.norms)) << dtype_name(dtype) << ' ' << count;
            ASSERT_EQ(got.census.first_element, -1);
          }
        }
      }
    }
  }
}

// The bits of a p-norm depend on the pow of the machine; a few units in the last place is what
// such functions promise.
TEST(DeviceSums, APNormIsCloseToThatOfTheCpu) {
  for (const Dtype dtype : kTypes) {
    const Leaves leaves(dtype, 2048, 2);
    for (const double power : {0.5, 3.0}) {
      const SumLeaves sweep = {
          .dtype = dtype, .slices = leaves.slices, .norm = Norm::power, .power = power};
      const SumResult expected = sum_on_cpu(sweep, 2, false);
      const SumResult got = sum_on_device(sweep, leaves.on_device, 2, false);
      for (std::size_t block = 0; block < 2; ++block)
        EXPECT_NEAR(got.norms[block] / expected.norms[block], 1.0, 1e-14);
    }
  }
}

TEST(DeviceSums, MoreSlicesThanAKernelTakesGiveTheSumOfAll) {
  for (const Dtype dtype : kTypes) {
    Leaves leaves(dtype, 2048, 130);
    put(dtype, leaves.host[77], 1030, std::numeric_limits<float>::infinity());
    put(dtype, leaves.host[129], 1030, std::nanf(""));
    leaves.place();
    const SumLeaves sweep = {.dtype = dtype, .slices = leaves.slices};
    const SumResult expected = sum_on_cpu(sweep, 2, true);
    const SumResult got = sum_on_device(sweep, leaves.on_device, 2, true);
    EXPECT_EQ(got.norms[0], expected.norms[0]);
    EXPECT_TRUE(std::isnan(got.norms[1]));
    std::vector<double> sums = got.sums;
    sums[1030] = expected.sums[1030];  // NaN on both, with payloads of their own
    EXPECT_TRUE(std::isnan(got.sums[1030]));
    EXPECT_TRUE(same_bits(sums, expected.sums)) << dtype_name(dtype);
    expect_equal(got.census, {1, 1, 1030, 77});
  }
}

TEST(DeviceSums, TheCensusCountsInputsAsTheCpuDoes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Dtype dtype : kTypes) {
    for (const Norm norm : {Norm::one, Norm::two, Norm::infinity}) {
      Leaves leaves(dtype, 6 * 1024, 2);
      put(dtype, leaves.host[0], 1500, kInf);
      put(dtype, leaves.host[1], 1500, -kInf);  // the sum is NaN, the inputs are two infinities
      put(dtype, leaves.host[1], 1401, std::nanf(""));
      put(dtype, leaves.host[0], 6143, -kInf);
      for (std::size_t i = 4096; i < 5120; ++i) put(dtype, leaves.host[0], i, std::nanf(""));
      leaves.place();
      const SumLeaves sweep = {.dtype = dtype, .slices = leaves.slices, .norm = norm};
      const SumResult expected = sum_on_cpu(sweep, 6, false);
      const SumResult got = sum_on_device(sweep, leaves.on_device, 6, false);
      expect_equal(got.census, expected.census);
      expect_equal(got.census, {3, 1025, 1401, 1});
      EXPECT_EQ(got.norms[0], expected.norms[0]);
    }
  }
}

// The rules, for pieces cut anywhere.

constexpr std::size_t kElements = 6 * 1024;
constexpr double kFactor = 0.37 / (1024.0 * 3.0);

struct State {
  std::vector<float> master, moment1, moment2;
};

State initial_state() {
  State state;
  for (std::size_t i = 0; i < kElements; ++i) {
    const auto x = static_cast<float>(i % 1000);
    state.master.push_back(x / 512.0F - 1.0F);
    state.moment1.push_back(1e-3F * (x - 300.0F));
    state.moment2.push_back(i % 41 == 0 ? 1e-41F : 1e-6F * x * x);
  }
  return state;
}

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
        expected_(initial_state()),
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
  State expected_;
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
  const State state = initial_state();
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
