// SPDX-License-Identifier: Apache-2.0
// The bodies of the CUDA kernels, run by plain loops over teams and threads, against the kernels of
// the CPU (the cases stand in device_*_cases.cpp): what nvcc compiles is tested where there is no
// GPU. Threads run in changing orders and scratch memory starts as NaNs, so that a missing barrier
// or a value that nobody wrote shows. And: arguments that do not fit are refused before a launch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "comm/error.hpp"
#include "optim/cuda/launch_plan.hpp"
#include "optim/cuda/step_body.hpp"
#include "tests/support/device_cases.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/gradient_bytes.hpp"

namespace vsr::optim {
namespace {

using detail::ArrayLaunch;
using detail::kTeamThreads;

// Forwards, backwards, and in large steps, in turn.
class EmulatedTeam {
 public:
  template <typename Phase>
  void all(const Phase& phase) {
    static unsigned turn = 0;
    ++turn;
    for (int i = 0; i < kTeamThreads; ++i) {
      const int backwards = kTeamThreads - 1 - i;
      const int scattered = i * 77 % kTeamThreads;
      phase(turn % 3 == 0 ? i : turn % 3 == 1 ? backwards : scattered);
    }
  }
};

template <typename Scratch>
Scratch unwritten() {
  Scratch scratch;
  std::memset(static_cast<void*>(&scratch), 0xff, sizeof scratch);
  return scratch;
}

// Every thread of every team, the last team first.
template <typename Action>
void for_each_thread(int teams, const Action& action) {
  EmulatedTeam team;
  for (int index = teams - 1; index >= 0; --index)
    team.all([&](int thread) { action(index, thread); });
}

template <typename T, detail::NormKind kNorm>
void emulate_sum(const detail::SumLaunch& a) {
  EmulatedTeam team;
  for (int index = teams_of(a) - 1; index >= 0; --index) {
    auto scratch = unwritten<detail::SumScratch>();
    detail::sum_body<T, kNorm>(a, index, scratch, team);
  }
}

template <typename T>
void emulate_norm(const detail::SumLaunch& a) {
  switch (a.norm) {
    case detail::NormKind::one:
      return emulate_sum<T, detail::NormKind::one>(a);
    case detail::NormKind::infinity:
      return emulate_sum<T, detail::NormKind::infinity>(a);
    case detail::NormKind::power:
      return emulate_sum<T, detail::NormKind::power>(a);
    default:
      return emulate_sum<T, detail::NormKind::two>(a);
  }
}

template <typename Rule>
void emulate_steps(const std::vector<detail::PieceLaunch<Rule, void>>& plan) {
  for (const auto& a : plan)
    with_element(a.shard.type, [&](auto type) {
      for_each_thread(a.teams, [&](int team, int thread) {
        detail::step_body<decltype(type)>(a, team, thread);
      });
    });
}

class EmulatedDevice final : public test::Device {
 public:
  // Each on its own, so that a sanitizer sees what reaches too far.
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, size_bytes) != 0) throw std::bad_alloc();
    return {static_cast<std::byte*>(memory), [](std::byte* bytes) { std::free(bytes); }};
  }
  void upload(std::span<const std::byte> host, std::span<std::byte> device) override {
    if (!host.empty()) std::memcpy(device.data(), host.data(), host.size());
  }
  void download(std::span<const std::byte> device, std::span<std::byte> host) override {
    if (!host.empty()) std::memcpy(host.data(), device.data(), host.size());
  }
  void sum_leaves(const DeviceSum& sweep) override {
    for (const detail::SumLaunch& a : detail::plan_sum(sweep))
      with_element(a.type, [&](auto type) { emulate_norm<decltype(type)>(a); });
  }
  void adam(const DeviceShard& shard, std::span<const AdamPiece> pieces) override {
    emulate_steps(detail::plan_adam(shard, pieces));
  }
  void sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces) override {
    emulate_steps(detail::plan_sgd(shard, pieces));
  }
  void lamb_moments(const DeviceShard& shard, std::span<const LambPiece> pieces,
                    std::span<LambBlock> blocks) override {
    EmulatedTeam team;
    for (const auto& a : detail::plan_lamb_moments(shard, pieces, blocks))
      with_element(a.shard.type, [&](auto type) {
        for (int index = 0; index < a.teams; ++index) {
          auto scratch = unwritten<detail::LambScratch>();
          detail::lamb_moments_body<decltype(type)>(a, index, scratch, team);
        }
      });
  }
  void lamb_apply(const DeviceShard& shard, std::span<const LambPiece> pieces) override {
    emulate_steps(detail::plan_lamb_apply(shard, pieces));
  }
  void mean_gradient(const DeviceShard& shard, std::span<const comm::Interval> pieces,
                     std::span<float> gradient) override {
    for (const auto& a : detail::plan_mean_gradient(shard, pieces, gradient))
      with_element(a.shard.type, [&](auto type) {
        for_each_thread(a.teams, [&](int team, int thread) {
          detail::mean_gradient_body<decltype(type)>(a, team, thread);
        });
      });
  }
  void ema(std::span<const float> master, std::span<float> ema, double decay) override {
    for (const ArrayLaunch& a : detail::plan_ema(master, ema, decay))
      for_each_thread(teams_of(a),
                      [&](int team, int thread) { detail::ema_body(a, team, thread); });
  }
  void round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded) override {
    for (const ArrayLaunch& a : detail::plan_round_to(dtype, values, rounded))
      with_element(a.type, [&](auto type) {
        for_each_thread(teams_of(a), [&](int team, int thread) {
          detail::round_to_body<decltype(type)>(a, team, thread);
        });
      });
  }
  void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened) override {
    for (const ArrayLaunch& a : detail::plan_widen(dtype, values, widened))
      with_element(a.type, [&](auto type) {
        for_each_thread(teams_of(a), [&](int team, int thread) {
          detail::widen_body<decltype(type)>(a, team, thread);
        });
      });
  }
};

}  // namespace

test::Device& test::device_under_test() {
  static EmulatedDevice device;
  return device;
}

namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

// What fits; each test spoils one thing.
class LaunchPlan : public testing::Test {
 protected:
  DeviceShard shard() {
    return {.slices = slices,
            .master = master,
            .moment1 = moment1,
            .moment2 = moment2,
            .destinations = destinations};
  }
  std::string refusal(const DeviceShard& spoilt, const std::vector<AdamPiece>& pieces) {
    return message_of<ArgumentError>([&] { detail::plan_adam(spoilt, pieces); });
  }
  test::Bytes leaf = test::Bytes(2048 * 2);
  test::Slices slices = {leaf};
  std::vector<float> master = std::vector<float>(2048);
  std::vector<float> moment1 = std::vector<float>(2048);
  std::vector<float> moment2 = std::vector<float>(2048);
  test::Bytes replica = test::Bytes(2048 * 2);
  std::vector<std::span<std::byte>> destinations = {replica};
  std::vector<double> norms = std::vector<double>(2);
  std::vector<CensusRecord> census = std::vector<CensusRecord>(1);
};

TEST_F(LaunchPlan, OneTeamForEachBlockThatAPieceTouches) {
  const std::vector<AdamPiece> pieces = {{{0, 8}}, {{8, 8}}, {{8, 1025}}, {{1025, 2048}}};
  const auto plan = detail::plan_adam(shard(), pieces);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].pieces, 3);
  EXPECT_EQ(plan[0].teams, 1 + 2 + 1);
  EXPECT_EQ(plan[0].entries[2].first_team, 3);
  EXPECT_TRUE(detail::plan_adam(shard(), {}).empty());
}

TEST_F(LaunchPlan, LengthsThatDoNotMatchAreNamed) {
  DeviceShard spoilt = shard();
  spoilt.moment2 = spoilt.moment2.first(8);
  expect_in("second moments: got 8 elements, expected 2048", refusal(spoilt, {}));
  spoilt = shard();
  spoilt.dtype = Dtype::fp32;
  expect_in("gradient slice 0: got 4096 bytes, expected 8192", refusal(spoilt, {}));
  spoilt = shard();
  destinations[0] = destinations[0].first(16);
  expect_in("destination 0: got 16 bytes, expected 4096", refusal(spoilt, {}));
  const std::vector<double> sums(16);
  spoilt = shard();
  spoilt.sums = sums;
  expect_in("sums: got 16 elements, expected 2048", refusal(spoilt, {}));
  std::vector<float> few(7);
  expect_in("averages: got 7 elements, expected 2048",
            message_of<ArgumentError>([&] { detail::plan_ema(master, few, 0.9); }));
  expect_in("bytes of rounded values: got 4096 elements, expected 8192",
            message_of<ArgumentError>([&] { detail::plan_round_to(Dtype::fp32, master, leaf); }));
  expect_in("bytes of values: got 4096 elements, expected 8192",
            message_of<ArgumentError>([&] { detail::plan_widen(Dtype::fp32, leaf, master); }));
}

TEST_F(LaunchPlan, MemoryThatIsNotAlignedIsNamed) {
  DeviceShard spoilt = shard();
  spoilt.master = spoilt.master.subspan(1);
  expect_in("masters does not begin at a multiple of 16 bytes", message_of<ArgumentError>([&] {
              spoilt.slices = {};
              spoilt.sums = {};
              spoilt.destinations = {};
              detail::plan_sgd(spoilt, {});
            }));
  test::Bytes wide(4096 + 2);
  slices[0] = std::span(wide).subspan(2);
  expect_in("gradient slice 0 does not begin at a multiple of 16 bytes", refusal(shard(), {}));
}

TEST_F(LaunchPlan, PiecesThatOverlapOrLieOutsideAreNamed) {
  const std::vector<AdamPiece> crossing = {{{1000, 1008}}, {{8, 1001}}};
  expect_in("[8, 1001) and [1000, 1008) overlap", refusal(shard(), crossing));
  const std::vector<AdamPiece> outside = {{{8, 2049}}};
  expect_in("[8, 2049) lies outside the shard of 2048 elements", refusal(shard(), outside));
}

TEST_F(LaunchPlan, TooManySlicesOrDestinationsAreRefused) {
  slices.assign(65, slices[0]);
  expect_in("got 65 gradient slices, a kernel takes up to 64", refusal(shard(), {}));
  slices.resize(1);
  destinations.assign(17, destinations[0]);
  expect_in("got 17 destinations, a kernel takes up to 16", refusal(shard(), {}));
  const test::Slices many(65, leaf);
  expect_in("got 65 gradient slices; more than 64 need an accumulator",
            message_of<ArgumentError>([&] {
              detail::plan_sum(
                  {.slices = many, .block_norms = norms, .census = std::span(census).first<1>()});
            }));
}

TEST_F(LaunchPlan, SumsThatContradictThemselvesAreRefused) {
  const auto refused = [&](DeviceSum sweep) {
    sweep.slices = slices;
    return message_of<ArgumentError>([&] { detail::plan_sum(sweep); });
  };
  const auto record = std::span(census).first<1>();
  expect_in("accumulate needs an accumulator",
            refused({.accumulate = true, .block_norms = norms, .census = record}));
  expect_in("p above 0",
            refused({.norm = Norm::power, .power = 0.0, .block_norms = norms, .census = record}));
  std::vector<double> accumulator(1024);
  expect_in("the accumulator has another length",
            refused({.accumulator = accumulator, .block_norms = norms, .census = record}));
}

TEST_F(LaunchPlan, LambNeedsABlockForEachTeamAndAlignedPieces) {
  std::vector<LambBlock> blocks(1);
  const std::vector<LambPiece> two = {{{8, 1025}}};
  expect_in("got 1 norm blocks, expected 2",
            message_of<ArgumentError>([&] { detail::plan_lamb_moments(shard(), two, blocks); }));
  const std::vector<LambPiece> inside = {{{4, 16}}};
  expect_in("[4, 16) begins inside the lanes",
            message_of<ArgumentError>([&] { detail::plan_lamb_moments(shard(), inside, blocks); }));
}

TEST(CensusRecords, ZeroBytesSayThatNothingWasFound) {
  const Census nothing = census_of({});
  EXPECT_EQ(nothing.inf_count + nothing.nan_count, 0);
  EXPECT_EQ(nothing.first_element, -1);
  EXPECT_EQ(nothing.first_slice, -1);
  const Census census = census_of({2, 3, ~((5ULL << 16) | 7ULL)});
  EXPECT_EQ(census.inf_count, 2);
  EXPECT_EQ(census.nan_count, 3);
  EXPECT_EQ(census.first_element, 5);
  EXPECT_EQ(census.first_slice, 7);
}

}  // namespace
}  // namespace vsr::optim
