// SPDX-License-Identifier: Apache-2.0
// The FP16 and BF16 kernels against FP64, in two ways: on values whose sums are exact in FP32 the
// result must be the FP64 result rounded once, bit for bit; on random values it must lie within the
// bound of one FP32 summation plus one rounding.
#include "runtime/precision/cpu_kernels.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace vsr::runtime {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Convolution {
  std::string name;
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> weight;
  bool bias = true;
  std::vector<std::int64_t> stride;
  std::vector<std::int64_t> padding;
  std::vector<std::int64_t> dilation;
  bool transposed = false;
  std::vector<std::int64_t> output_padding;
  std::int64_t groups = 1;
};

const std::vector<Convolution>& convolutions() {
  static const std::vector<Convolution> cases{
      {"3x3", {2, 9, 12, 11}, {16, 9, 3, 3}, true, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1},
      {"5x5", {1, 3, 9, 9}, {8, 3, 5, 5}, false, {1, 1}, {2, 2}, {1, 1}, false, {0, 0}, 1},
      {"strided", {2, 4, 13, 10}, {6, 4, 3, 3}, true, {2, 3}, {1, 0}, {1, 1}, false, {0, 0}, 1},
      {"dilated", {1, 8, 14, 14}, {8, 8, 3, 3}, true, {1, 1}, {2, 2}, {2, 2}, false, {0, 0}, 1},
      {"grouped", {2, 8, 9, 9}, {12, 2, 3, 3}, true, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 4},
      {"depthwise", {1, 8, 9, 9}, {8, 1, 3, 3}, false, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 8},
      {"transposed", {2, 6, 7, 8}, {6, 5, 4, 4}, true, {2, 2}, {1, 1}, {1, 1}, true, {1, 0}, 1},
      {"one-d", {2, 5, 40}, {7, 5, 3}, true, {1}, {1}, {1}, false, {0}, 1},
      {"three-d",
       {1, 4, 5, 6, 7},
       {6, 4, 3, 3, 3},
       true,
       {1, 1, 1},
       {1, 1, 1},
       {1, 1, 1},
       false,
       {0, 0, 0},
       1},
      {"one pixel", {1, 3, 1, 1}, {4, 3, 3, 3}, true, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1},
  };
  return cases;
}

/// Result, then the gradients of all inputs that want one.
Tensors run(const std::function<Tensor(const Tensors&)>& operation, const Tensors& inputs,
            const Tensor& seed) {
  Tensors leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  Tensors results{operation(leaves)};
  results[0].backward(seed.to(results[0].scalar_type()).expand_as(results[0]).contiguous());
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  results[0] = results[0].detach();
  return results;
}

struct Operation {
  std::string name;
  Tensors inputs;  // FP64
  std::function<Tensor(const Tensors&)> call;
};

Operation as_operation(const Convolution& c, const std::function<Tensor(at::IntArrayRef)>& draw) {
  Operation operation{c.name, {draw(c.input), draw(c.weight)}, nullptr};
  if (c.bias) operation.inputs.push_back(draw({c.transposed ? c.weight[1] : c.weight[0]}));
  operation.call = [c](const Tensors& t) {
    return at::convolution(t[0], t[1], c.bias ? std::optional(t[2]) : std::nullopt, c.stride,
                           c.padding, c.dilation, c.transposed, c.output_padding, c.groups);
  };
  return operation;
}

std::vector<Operation> operations(const std::function<Tensor(at::IntArrayRef)>& draw) {
  std::vector<Operation> list;
  for (const Convolution& c : convolutions()) list.push_back(as_operation(c, draw));
  list.push_back({"mm", {draw({17, 33}), draw({33, 9})}, [](const Tensors& t) {
                    return torch::mm(t[0], t[1]);
                  }});
  list.push_back({"bmm", {draw({3, 7, 20}), draw({3, 20, 5})}, [](const Tensors& t) {
                    return torch::bmm(t[0], t[1]);
                  }});
  list.push_back({"addmm", {draw({5}), draw({6, 12}), draw({12, 5})}, [](const Tensors& t) {
                    return torch::addmm(t[0], t[1], t[2], 0.5, 2);
                  }});
  list.push_back({"linear", {draw({2, 6, 12}), draw({5, 12}), draw({5})}, [](const Tensors& t) {
                    return torch::linear(t[0], t[1], t[2]);
                  }});
  return list;
}

/// Multiples of 1/8 in [-1, 1]: every product and every sum of a test fits 24 bits.
Tensor draw_exact(at::IntArrayRef shape) {
  return torch::randint(-8, 9, shape, at::kDouble) / 8;
}

Tensor draw_random(at::IntArrayRef shape) {
  return torch::randn(shape, at::kDouble);
}

/// FP32 and FP64 results from before the installation, and what it printed.
class BeforeInstallation : public ::testing::Environment, public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warnings.push_back(warning.msg()); }

  void SetUp() override {
    torch::set_num_threads(1);
    for (const auto dtype : {at::kFloat, at::kDouble}) results.push_back(wide_results(dtype));
    c10::WarningUtils::WarningHandlerGuard guard(this);
    install_cpu_half_kernels(HalfKernels::always);
    handler_restored = c10::WarningUtils::get_warning_handler() == this;
  }

  static std::vector<Tensors> wide_results(at::ScalarType dtype) {
    torch::manual_seed(3);
    std::vector<Tensors> list;
    for (const Operation& operation : operations(draw_random)) {
      Tensors inputs;
      for (const Tensor& input : operation.inputs) inputs.push_back(input.to(dtype));
      list.push_back(run(operation.call, inputs, torch::tensor(0.75)));
    }
    return list;
  }

  static std::vector<std::vector<Tensors>> results;
  static std::vector<std::string> warnings;
  static bool handler_restored;
};
std::vector<std::vector<Tensors>> BeforeInstallation::results;
std::vector<std::string> BeforeInstallation::warnings;
bool BeforeInstallation::handler_restored = false;

[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new BeforeInstallation);

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

TEST(CpuKernels, InstallationIsSilentAndLeavesTheWarningHandler) {
  EXPECT_TRUE(BeforeInstallation::warnings.empty()) << BeforeInstallation::warnings[0];
  EXPECT_TRUE(BeforeInstallation::handler_restored);
}

TEST(CpuKernels, InstallsOnceFromAnyThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { install_cpu_half_kernels(); });
  for (auto& thread : threads) thread.join();
  const Tensor a = torch::ones({2, 2}, at::kHalf);
  EXPECT_TRUE(torch::equal(torch::mm(a, a), torch::full({2, 2}, 2, at::kHalf)));
}

TEST(CpuKernels, WideTypesKeepTheirBits) {
  const std::vector<at::ScalarType> dtypes{at::kFloat, at::kDouble};
  for (std::size_t d = 0; d < dtypes.size(); ++d) {
    const auto after = BeforeInstallation::wide_results(dtypes[d]);
    const auto names = operations(draw_exact);
    for (std::size_t i = 0; i < after.size(); ++i)
      for (std::size_t k = 0; k < after[i].size(); ++k)
        EXPECT_TRUE(equal_bits(BeforeInstallation::results[d][i][k], after[i][k]))
            << names[i].name << " result " << k << " " << dtypes[d];
  }
}

class ReducedKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  Tensors rounded(const Tensors& inputs) {
    Tensors result;
    for (const Tensor& input : inputs) result.push_back(input.to(GetParam()));
    return result;
  }

  /// Distance of neighbouring values of the dtype at |x|, as FP64.
  Tensor spacing(const Tensor& x) {
    const int bits = GetParam() == at::kHalf ? 10 : 7;
    const double smallest = GetParam() == at::kHalf ? -14 : -126;
    const Tensor exponent = torch::log2(x.abs().clamp_min(1e-300)).floor().clamp_min(smallest);
    return torch::exp2(exponent - bits);
  }
};

TEST_P(ReducedKernels, ExactSumsAreRoundedOnce) {
  torch::manual_seed(11);
  for (const Operation& operation : operations(draw_exact)) {
    const Tensors inputs = rounded(operation.inputs);
    const Tensor seed = torch::tensor(0.625, at::kDouble);
    const Tensors got = run(operation.call, inputs, seed);
    const Tensors exact = run(operation.call, operation.inputs, seed);
    for (std::size_t k = 0; k < got.size(); ++k)
      EXPECT_TRUE(equal_bits(got[k], exact[k].to(GetParam()))) << operation.name << " result " << k;
  }
}

TEST_P(ReducedKernels, RandomSumsStayWithinOneSummationAndOneRounding) {
  torch::manual_seed(12);
  for (const Operation& operation : operations(draw_random)) {
    const Tensors inputs = rounded(operation.inputs);
    Tensors wide;
    Tensors magnitude;
    for (const Tensor& input : inputs) {
      wide.push_back(input.to(at::kDouble));
      magnitude.push_back(wide.back().abs());
    }
    const Tensor seed = torch::tensor(0.75, at::kDouble);
    const Tensors got = run(operation.call, inputs, seed);
    const Tensors exact = run(operation.call, wide, seed);
    // Sums of absolute values: what a summation error is relative to. No sum has 4096 terms.
    const Tensors scale = run(operation.call, magnitude, seed);
    for (std::size_t k = 0; k < got.size(); ++k) {
      const Tensor summation = scale[k] * (4096 * std::exp2(-24));
      const Tensor bound = summation + 0.5 * spacing(exact[k].abs() + summation);
      const Tensor error = (got[k].to(at::kDouble) - exact[k]).abs();
      EXPECT_TRUE((error <= bound).all().item<bool>())
          << operation.name << " result " << k << ": " << (error / bound).max().item<double>();
    }
  }
}

TEST_P(ReducedKernels, AccumulateInFp32AndRoundOverflowToInfinity) {
  // Adding ones in FP16 stalls at 2048 and in BF16 at 256.
  const Tensor ones = torch::ones({1, 4096}, GetParam());
  EXPECT_EQ(torch::mm(ones, ones.t()).item<double>(), 4096);
  const Tensor large = torch::full({1, 1, 1, 2}, 300, GetParam());
  const double product = torch::conv2d(large, large).item<double>();
  if (GetParam() == at::kHalf)
    EXPECT_EQ(product, INFINITY);
  else
    EXPECT_EQ(product, 180224);  // 180000 to the nearest multiple of 1024
}

TEST_P(ReducedKernels, OutVariantsWriteAndResize) {
  torch::manual_seed(13);
  const Tensor a = draw_random({3, 4}).to(GetParam());
  const Tensor b = draw_random({4, 5}).to(GetParam());
  const Tensor c = draw_random({5}).to(GetParam());
  Tensor out = torch::empty({0}, GetParam());
  torch::mm_out(out, a, b);
  EXPECT_TRUE(equal_bits(out, torch::mm(a, b)));
  torch::addmm_out(out, c, a, b);
  EXPECT_TRUE(equal_bits(out, torch::addmm(c, a, b)));
  Tensor batch = torch::empty({0}, GetParam());
  torch::bmm_out(batch, a.unsqueeze(0), b.unsqueeze(0));
  EXPECT_TRUE(equal_bits(batch[0], torch::mm(a, b)));
}

TEST_P(ReducedKernels, GradientsExistOnlyWhereWanted) {
  const Tensor x = draw_exact({1, 2, 5, 5}).to(GetParam());
  Tensor w = draw_exact({3, 2, 3, 3}).to(GetParam()).requires_grad_();
  Tensor b = draw_exact({3}).to(GetParam());
  torch::conv2d(x, w, b).sum().backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(b.grad().defined());
  EXPECT_EQ(w.grad().scalar_type(), GetParam());
}

TEST_P(ReducedKernels, MixedDtypesAreRefused) {
  const Tensor x = torch::ones({1, 2, 5, 5}, GetParam());
  EXPECT_THROW(torch::conv2d(x, torch::ones({3, 2, 3, 3})), c10::Error);
  EXPECT_THROW(torch::mm(torch::ones({2, 2}, GetParam()), torch::ones({2, 2})), c10::Error);
}

TEST_P(ReducedKernels, SameBitsWhereverTheTensorsLie) {
  torch::manual_seed(14);
  const Operation operation = as_operation(convolutions()[0], draw_random);
  const Tensor seed = torch::tensor(0.75, at::kDouble);
  const Tensors expected = run(operation.call, rounded(operation.inputs), seed);
  for (const std::int64_t shift : {1, 3, 17}) {
    Tensors moved;
    for (const Tensor& input : rounded(operation.inputs)) {
      Tensor room = torch::empty({input.numel() + shift}, GetParam());
      moved.push_back(room.narrow(0, shift, input.numel()).view(input.sizes()).copy_(input));
    }
    Tensors leaves;
    for (Tensor& tensor : moved) leaves.push_back(tensor.requires_grad_());
    const Tensor result = operation.call(leaves);
    result.backward(seed.to(GetParam()).expand_as(result).contiguous());
    EXPECT_TRUE(equal_bits(result.detach(), expected[0])) << shift;
    for (std::size_t k = 0; k < leaves.size(); ++k)
      EXPECT_TRUE(equal_bits(leaves[k].grad(), expected[k + 1])) << shift << " input " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ReducedKernels, ::testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

}  // namespace
}  // namespace vsr::runtime
