// SPDX-License-Identifier: Apache-2.0
// The launchers on a real GPU against the kernels of the CPU: the cases of device_*_cases.cpp,
// which CI runs without a GPU, and what only a device can show: many teams at once, work that waits
// on a stream for what comes before it, and faults.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/error.hpp"
#include "optim/cuda/device_memory.hpp"
#include "tests/support/device_cases.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/gradient_bytes.hpp"

namespace vsr::optim {
namespace {

class CudaDevice final : public test::Device {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override {
    auto array = std::make_shared<DeviceArray<std::byte>>(size_bytes);
    std::byte* const begin = array->span().data();
    return {std::move(array), begin};
  }
  void upload(std::span<const std::byte> host, std::span<std::byte> device) override {
    enqueue_upload(host, device, stream());
    stream_.synchronize();
  }
  void download(std::span<const std::byte> device, std::span<std::byte> host) override {
    enqueue_download(device, host, stream());
    stream_.synchronize();
  }
  void sum_leaves(const DeviceSum& sweep) override { enqueue_sum_leaves(sweep, stream()); }
  void adam(const DeviceShard& shard, std::span<const AdamPiece> pieces) override {
    enqueue_adam(shard, pieces, stream());
  }
  void sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces) override {
    enqueue_sgd(shard, pieces, stream());
  }
  void lamb_moments(const DeviceShard& shard, std::span<const LambPiece> pieces,
                    std::span<LambBlock> blocks) override {
    enqueue_lamb_moments(shard, pieces, blocks, stream());
  }
  void lamb_apply(const DeviceShard& shard, std::span<const LambPiece> pieces) override {
    enqueue_lamb_apply(shard, pieces, stream());
  }
  void mean_gradient(const DeviceShard& shard, std::span<const comm::Interval> pieces,
                     std::span<float> gradient) override {
    enqueue_mean_gradient(shard, pieces, gradient, stream());
  }
  void ema(std::span<const float> master, std::span<float> ema, double decay) override {
    enqueue_ema(master, ema, decay, stream());
  }
  void round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded) override {
    enqueue_round_to(dtype, values, rounded, stream());
  }
  void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened) override {
    enqueue_widen(dtype, values, widened, stream());
  }
  CudaStream stream() const { return stream_.get(); }

 private:
  OwnedStream stream_;
};

CudaDevice& device() {
  static CudaDevice the_device;
  return the_device;
}

}  // namespace

test::Device& test::device_under_test() {
  return device();
}

namespace {

using test::Buffer;
using test::same_bits;

// Both sweeps and both copies on one stream without a wait in between; the factor of the second
// sweep is written by the stream too. Large enough for thousands of teams.
TEST(CudaKernels, AWholeStepOfALargeShardEqualsThatOfTheCpuTwice) {
  constexpr std::size_t kElements = 2049 * 1024;
  constexpr double kFactor = 0.25 / 4096.0;
  const test::Bytes first = test::gradients(Dtype::fp16, kElements, 1);
  const test::Bytes second = test::gradients(Dtype::fp16, kElements, 2);
  const AdamCoefficients c = adam_coefficients({.weight_decay = 0.01}, 0.9, 0.999);
  constexpr auto kDecay = WeightDecay::into_gradient;
  const comm::Interval whole = {0, static_cast<std::int64_t>(kElements) - 3};

  std::vector<float> master(kElements, 0.5F), moment1(kElements), moment2(kElements);
  test::Bytes replica(kElements * 2);
  std::vector<double> norms(kElements / 1024);
  const test::Slices slices = {first, second};
  const std::vector<std::span<std::byte>> destinations = {replica};
  sum_leaves({.slices = slices, .block_norms = norms}, active_isa());
  update_adam({.piece = whole,
               .slices = slices,
               .factor = kFactor,
               .master = master,
               .moment1 = moment1,
               .moment2 = moment2,
               .destinations = destinations},
              kDecay, c, active_isa());

  for (int repeat = 0; repeat < 2; ++repeat) {
    const Buffer<std::byte> a(first), b(second), out{test::Bytes(kElements * 2)};
    const Buffer<float> w{std::vector<float>(kElements, 0.5F)}, m{std::vector<float>(kElements)},
        v{std::vector<float>(kElements)};
    const Buffer<double> block_norms(std::vector<double>(kElements / 1024)),
        factor(std::vector<double>{-1.0});
    const Buffer<CensusRecord> census(std::vector<CensusRecord>{{7, 7, 7}});
    const test::Slices on_device = {a.span(), b.span()};
    const std::vector<std::span<std::byte>> targets = {out.span()};
    const AdamPiece piece = {whole, kDecay, c};

    enqueue_zero(std::as_writable_bytes(census.span()), device().stream());
    enqueue_sum_leaves({.slices = on_device,
                        .block_norms = block_norms.span(),
                        .census = census.span().first<1>()},
                       device().stream());
    enqueue_upload(std::as_bytes(std::span(&kFactor, 1)), std::as_writable_bytes(factor.span()),
                   device().stream());
    enqueue_adam({.slices = on_device,
                  .factor = {.on_device = factor.span().data()},
                  .master = w.span(),
                  .moment1 = m.span(),
                  .moment2 = v.span(),
                  .destinations = targets},
                 std::span(&piece, 1), device().stream());
    EXPECT_TRUE(same_bits(block_norms.values(), norms));
    EXPECT_EQ(census_of(census.values()[0]).first_element, -1);
    EXPECT_TRUE(same_bits(w.values(), master));
    EXPECT_TRUE(same_bits(m.values(), moment1));
    EXPECT_TRUE(same_bits(v.values(), moment2));
    EXPECT_TRUE(same_bits(out.values(), replica));
  }
}

TEST(CudaKernels, WrongArgumentsAreRefusedBeforeALaunch) {
  const Buffer<float> values(std::vector<float>(8));
  const Buffer<float> few(std::vector<float>(4));
  EXPECT_THROW(enqueue_ema(values.span(), few.span(), 0.9, device().stream()), ArgumentError);
  EXPECT_THROW(enqueue_ema(values.span().subspan(1, 4), few.span(), 0.9, device().stream()),
               ArgumentError);
  EXPECT_EQ(few.values(), std::vector<float>(4));  // the stream still works
}

TEST(CudaKernels, NoRoomNamesTheSize) {
  vsr::test::expect_in(
      "cudaMalloc of 1125899906842624 bytes failed on CUDA device 0",
      vsr::test::message_of<CudaError>([] { DeviceArray<std::byte>(std::size_t{1} << 50); }));
  EXPECT_NO_THROW(DeviceArray<std::byte>(16));
}

}  // namespace
}  // namespace vsr::optim
