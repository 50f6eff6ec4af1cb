// SPDX-License-Identifier: Apache-2.0
// The wrapper that takes FP32 to a reduced network and back, and autocast in its place.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/error.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/half_kernels.hpp"

namespace vsr::runtime {
namespace {

using torch::Tensor;

TEST(PrecisionNames, RoundTripAndRefuse) {
  for (const char* name : {"fp32", "fp16", "bf16", "amp"})
    EXPECT_EQ(name_of(precision_from_name(name)), name);
  EXPECT_THROW(precision_from_name("half"), UsageError);
  EXPECT_NE(test::message_of<Error>([] { precision_from_name("half"); }).find("'half'"),
            std::string::npos);
}

torch::nn::Sequential conv_bn_net(bool affine = true) {
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
      torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(8).affine(affine)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).padding(1)));
}

TEST(Fp16Module, HandsOutTheValuesFromBeforeRounding) {
  const auto net = conv_bn_net();
  std::vector<Tensor> originals;
  for (const auto& parameter : net->parameters()) originals.push_back(parameter.detach().clone());
  Fp16Module wrapped(net);
  const auto parameters = wrapped.named_parameters_with_masters();
  ASSERT_EQ(parameters.size(), originals.size());
  EXPECT_EQ(parameters[0].name, "0.weight");
  EXPECT_EQ(parameters[2].name, "1.weight");
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const bool kept = parameters[i].name.rfind("1.", 0) == 0;
    EXPECT_TRUE(torch::equal(parameters[i].master, originals[i])) << parameters[i].name;
    EXPECT_EQ(parameters[i].replica.scalar_type(), kept ? at::kFloat : at::kHalf);
    EXPECT_TRUE(
        torch::equal(parameters[i].replica, originals[i].to(kept ? at::kFloat : at::kHalf)));
    EXPECT_TRUE(parameters[i].replica.is_same(net->parameters()[i]));
    EXPECT_FALSE(parameters[i].master.requires_grad());
  }
  EXPECT_THROW(wrapped.named_parameters_with_masters(), ArgumentError);
}

TEST(Fp16Module, NormalisationKeepsFp32InTrainingAndEvaluation) {
  for (const bool affine : {true, false}) {
    Fp16Module wrapped(conv_bn_net(affine));
    Fp16Module reference(conv_bn_net(affine), Precision::fp32);
    // Variance 9e4 is beyond FP16, the values are not.
    const Tensor x = 300 * torch::randn({2, 3, 10, 10});
    for (const bool training : {true, false}) {
      wrapped.train(training);
      reference.train(training);
      const Tensor y = wrapped(x);
      ASSERT_EQ(y.scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::allclose(y, reference(x), 1e-2, 1e-2));
      y.square().mean().backward();
      for (const auto& parameter : wrapped.parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
      }
    }
    const auto buffers = wrapped.named_buffers();
    ASSERT_EQ(buffers.size(), 3U);
    EXPECT_EQ(buffers[0].name, "1.running_mean");
    EXPECT_EQ(buffers[1].value.scalar_type(), at::kFloat);
    EXPECT_TRUE(buffers[1].value.isfinite().all().item<bool>());
    EXPECT_EQ(buffers[2].value.item<std::int64_t>(), 1) << "evaluation leaves the statistics alone";
  }
}

/// A network of somebody else: knows nothing of borders.
struct ForeignImpl : torch::nn::Module {
  ForeignImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    group = register_module("group", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)));
    mean = register_buffer("mean", torch::full({1}, 0.1F));
  }
  Tensor forward(const Tensor& x) {
    seen = x.scalar_type();
    auto y = group(norm(conv(x - mean)));
    inside = y.scalar_type();
    return y;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::GroupNorm group{nullptr};
  Tensor mean;
  at::ScalarType seen = at::kByte;
  at::ScalarType inside = at::kByte;
};
TORCH_MODULE(Foreign);

TEST(Fp16Module, ForeignNetworksRunNormalisationOnReducedInput) {
  for (const auto precision : {Precision::fp16, Precision::bf16}) {
    Fp16Module wrapped(Foreign(), precision);
    for (const bool training : {true, false}) {
      wrapped.train(training);
      const Tensor y = wrapped(torch::randn({2, 2, 6, 6}));
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      y.sum().backward();
    }
    EXPECT_EQ(wrapped.net().seen, replica_dtype(precision));
    EXPECT_EQ(wrapped.net().inside, replica_dtype(precision));
    EXPECT_EQ(wrapped.net().mean.scalar_type(), replica_dtype(precision));
    EXPECT_EQ(wrapped.net().norm->running_var.scalar_type(), at::kFloat);
  }
}

TEST(Fp16Module, FrozenNormalisationInTrainingWorks) {
  Fp16Module wrapped(Foreign{});
  for (auto& parameter : wrapped.net().norm->parameters()) parameter.set_requires_grad(false);
  wrapped.net().norm->eval();
  wrapped(torch::randn({2, 2, 6, 6})).sum().backward();
  EXPECT_FALSE(wrapped.net().norm->weight.grad().defined());
  EXPECT_TRUE(wrapped.net().conv->weight.grad().defined());
}

TEST(Fp16Module, KeepsModulesByName) {
  Fp16Module wrapped(conv_bn_net(), Precision::fp16, {.names = {"3"}});
  EXPECT_EQ(wrapped.parameters()[0].scalar_type(), at::kHalf);
  EXPECT_EQ(wrapped.parameters()[4].scalar_type(), at::kFloat);
  const Tensor x = torch::randn({1, 3, 5, 5});
  wrapped(x).sum().backward();
  EXPECT_EQ(wrapped.parameters()[4].grad().scalar_type(), at::kFloat);
  // The last layer was not rounded: its output has values that FP16 has not.
  const Tensor y = wrapped(x);
  EXPECT_FALSE(torch::equal(y, y.to(at::kHalf).to(at::kFloat)));
  Fp16Module all(conv_bn_net());
  const Tensor z = all(x);
  EXPECT_TRUE(torch::equal(z, z.to(at::kHalf).to(at::kFloat)));
}

TEST(Fp16Module, NamesMatchWholePathElements) {
  torch::nn::Sequential net;
  net->push_back("head", torch::nn::Linear(2, 2));
  net->push_back("header", torch::nn::Linear(2, 2));
  Fp16Module wrapped(net, Precision::fp16, {.names = {"head"}});
  EXPECT_EQ(wrapped.parameters()[0].scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped.parameters()[2].scalar_type(), at::kHalf);
  EXPECT_EQ(wrapped(torch::ones({1, 2})).scalar_type(), at::kFloat);
}

TEST(Fp16Module, UnknownNamesAreListed) {
  const auto message = test::message_of<Error>(
      [] { Fp16Module(conv_bn_net(), Precision::fp16, {.names = {"tail"}}); });
  EXPECT_NE(message.find("'tail'"), std::string::npos) << message;
  EXPECT_NE(message.find("0, 1, 2, 3"), std::string::npos) << message;
}

TEST(Fp16Module, KeepsModulesByPredicate) {
  KeepInFp32 keep;
  keep.normalisation = false;
  keep.also = [](const std::string&, const torch::nn::Module& module) {
    const auto* layer = module.as<torch::nn::Conv2dImpl>();
    return layer != nullptr && layer->options.out_channels() == 4;
  };
  Fp16Module wrapped(conv_bn_net(), Precision::fp16, keep);
  EXPECT_EQ(wrapped.parameters()[2].scalar_type(), at::kHalf) << "normalisation was not kept";
  EXPECT_EQ(wrapped.named_buffers()[0].value.scalar_type(), at::kHalf);
  EXPECT_EQ(wrapped.parameters()[4].scalar_type(), at::kFloat);
  EXPECT_TRUE(wrapped(torch::randn({2, 3, 6, 6})).isfinite().all().item<bool>());
}

struct NestedImpl : torch::nn::Module {
  using Value = std::tuple<Tensor, std::map<std::string, Tensor>>;
  Value forward(const Value& value, int factor) {
    const auto& [x, more] = value;
    inside = {x.scalar_type(), more.at("y").scalar_type(), more.at("n").scalar_type()};
    return {x * factor, {{"y", more.at("y") + 1}, {"n", more.at("n")}}};
  }
  std::vector<at::ScalarType> inside;
};
TORCH_MODULE(Nested);

TEST(Fp16Module, TakesAndGivesNestedValues) {
  Fp16Module wrapped(Nested{});
  const NestedImpl::Value value{torch::ones({2}),
                                {{"y", torch::ones({1})}, {"n", torch::arange(2)}}};
  const auto [x, more] = wrapped(value, 3);
  EXPECT_EQ(wrapped.net().inside, (std::vector{at::kHalf, at::kHalf, at::kLong}));
  EXPECT_TRUE(torch::equal(x, torch::full({2}, 3.0F)));
  EXPECT_TRUE(torch::equal(more.at("y"), torch::full({1}, 2.0F)));
  EXPECT_EQ(more.at("n").scalar_type(), at::kLong);
}

TEST(Fp16Module, TiedParametersCountOnce) {
  auto net = std::make_shared<torch::nn::Module>();
  auto layer = std::make_shared<torch::nn::LinearImpl>(3, 3);
  net->register_module("a", layer);
  net->register_module("b", layer);
  struct Wrapper : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  auto outer = std::make_shared<Wrapper>();
  outer->register_module("net", net);
  Fp16Module<Wrapper> wrapped(outer);
  const auto parameters = wrapped.named_parameters_with_masters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0].name, "net.a.weight");
  EXPECT_EQ(parameters[0].master.scalar_type(), at::kFloat);
}

TEST(Fp16Module, RefusesDoublePrecision) {
  torch::nn::Linear layer(2, 2);
  layer->to(at::kDouble);
  const auto message = test::message_of<Error>([&] { Fp16Module wrapped(layer); });
  EXPECT_NE(message.find("parameter weight is Double"), std::string::npos) << message;
}

TEST(Fp16Module, Fp32ChangesNothing) {
  auto net = conv_bn_net();
  net->eval();
  const Tensor x = torch::randn({1, 3, 6, 6});
  const Tensor expected = net->forward(x);
  Fp16Module wrapped(net, Precision::fp32);
  EXPECT_TRUE(torch::equal(wrapped(x), expected));
  for (const auto& parameter : wrapped.named_parameters_with_masters())
    EXPECT_EQ(parameter.master.data_ptr(), parameter.replica.data_ptr()) << "no copy where exact";
}

/// Normalisation as a Sequential runs it, cast before and behind, and as other networks do.
struct CallsNormImpl : torch::nn::Module {
  explicit CallsNormImpl(const torch::nn::BatchNorm2d& layer) {
    norm = register_module("norm", layer);
  }
  Tensor forward(const Tensor& x) { return norm(x); }
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(CallsNorm);

torch::nn::BatchNorm2d norm_of_everything(bool affine) {
  // Momentum 1: the running statistics are those of the last batch.
  return torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(1).affine(affine).momentum(1.0));
}

/// ±300 in turns: mean 0, variance 9e4.
Tensor wide_values() {
  return (300 * (2 * (torch::arange(32, at::kFloat).remainder(2)) - 1)).view({2, 1, 4, 4});
}

void check_wide_norm(torch::nn::BatchNorm2d norm, const std::function<Tensor(const Tensor&)>& run) {
  const Tensor x = wide_values().requires_grad_();
  for (const bool training : {true, false}) {
    norm->train(training);
    const Tensor y = run(x);
    ASSERT_EQ(y.scalar_type(), at::kFloat);
    // In evaluation the statistics are those of training: variance 9e4 · 32/31.
    const double expected = training ? 1.0 : std::sqrt(31.0 / 32.0);
    EXPECT_TRUE(torch::allclose(y, x.sign() * expected, 0, 1e-3)) << training;
    EXPECT_EQ(norm->running_var.scalar_type(), at::kFloat);
    EXPECT_NEAR(norm->running_var.item<float>(), 9e4 * 32 / 31, 0.1);
    EXPECT_EQ(norm->running_mean.item<float>(), 0.0F);
    y.sum().backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  }
}

TEST(BatchNorm, VariancesBeyondFp16AreFinite) {
  for (const bool affine : {true, false}) {
    const auto in_sequence = norm_of_everything(affine);
    Fp16Module sequence(torch::nn::Sequential(in_sequence, torch::nn::Identity()));
    check_wide_norm(in_sequence, [&](const Tensor& x) { return sequence(x); });
    const auto in_class = norm_of_everything(affine);
    Fp16Module plain(CallsNorm{in_class});
    check_wide_norm(in_class, [&](const Tensor& x) { return plain(x); });
  }
  // What keeping it is for.
  const auto reduced = norm_of_everything(true);
  Fp16Module wrapped(torch::nn::Sequential(reduced), Precision::fp16, {.normalisation = false});
  wrapped(wide_values());
  EXPECT_TRUE(std::isinf(reduced->running_var.to(at::kFloat).item<float>()));
}

TEST(BatchNorm, RunningMeansMoveBySmallSteps) {
  const Tensor x = torch::full({2, 1, 2, 2}, 1.0F + 0x1p-9F);
  for (const bool affine : {true, false})
    for (const bool kept : {true, false}) {
      const torch::nn::BatchNorm2d norm(torch::nn::BatchNormOptions(1).affine(affine));
      norm->running_mean.fill_(1.0F);
      Fp16Module wrapped(CallsNorm(norm), Precision::fp16, {.normalisation = kept});
      wrapped(x);
      EXPECT_NEAR(norm->running_mean.item<float>(), kept ? 1.0 + 0.1 * 0x1p-9 : 1.0, 1e-7);
    }
}

TEST(BatchNorm, FrozenLayersPassGradientsOn) {
  for (const bool training : {true, false})
    for (const bool affine : {true, false}) {
      torch::nn::BatchNorm2d norm(torch::nn::BatchNormOptions(2).affine(affine));
      for (auto& parameter : norm->parameters()) parameter.set_requires_grad(false);
      norm->running_var.fill_(4.0F);
      const torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 2, 1));
      Fp16Module wrapped(torch::nn::Sequential(conv, CallsNorm(norm)));
      norm->train(training);
      wrapped(torch::arange(8, at::kFloat).view({2, 1, 2, 2})).square().sum().backward();
      EXPECT_EQ(conv->weight.grad().scalar_type(), at::kHalf);
      EXPECT_TRUE(conv->weight.grad().isfinite().all().item<bool>());
      for (const auto& parameter : norm->parameters()) EXPECT_FALSE(parameter.grad().defined());
      EXPECT_EQ(norm->running_var[0].item<float>() == 4.0F, !training);
    }
}

struct ProbeImpl : torch::nn::Module {
  ProbeImpl() { layer = register_module("layer", torch::nn::Conv2d(2, 2, 1)); }
  Tensor forward(const Tensor& x) {
    if (fail) throw DataError("asked to fail");
    const Tensor y = layer(x);
    inside = y.scalar_type();
    return y;
  }
  torch::nn::Conv2d layer{nullptr};
  at::ScalarType inside = at::kByte;
  bool fail = false;
};
TORCH_MODULE(Probe);

TEST(Fp16Module, AmpCastsOperationsAndKeepsParameters) {
  Fp16Module wrapped(Probe(), Precision::amp);
  const Tensor x = torch::randn({1, 2, 3, 3});
  const Tensor y = wrapped(x);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped.net().inside, at::kHalf);
  EXPECT_EQ(wrapped.parameters()[0].scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(wrapped.parameters()[0].grad().scalar_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // A weight changed between two steps is seen: the cache of cast weights does not outlive a
  // forward.
  {
    const torch::NoGradGuard no_grad;
    wrapped.parameters()[0].zero_();
    wrapped.parameters()[1].fill_(0.5);
  }
  EXPECT_TRUE(torch::equal(wrapped(x), torch::full({1, 2, 3, 3}, 0.5F)));
}

TEST(Fp16Module, AmpEndsWithAnExceptionToo) {
  Fp16Module wrapped(Probe(), Precision::amp);
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  wrapped.net().fail = true;
  EXPECT_THROW(wrapped(torch::ones({1, 2, 3, 3})), DataError);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), dtype);
  // Nesting is back at zero: the next scope of somebody else starts from nothing.
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  EXPECT_EQ(at::autocast::decrement_nesting(), 0);
}

TEST(Fp16Module, AmpSeesStepsInsideAScopeOfTheCaller) {
  Fp16Module wrapped(Probe(), Precision::amp);
  torch::optim::SGD optimizer(wrapped.parameters(), 1.0);
  const Tensor x = torch::ones({1, 2, 1, 1});
  const AutocastScope outer(at::kCPU);
  const Tensor before = wrapped(x);
  optimizer.zero_grad();
  before.sum().backward();
  optimizer.step();
  // Every weight moved by 1 and the bias by 1: three units less for each output.
  EXPECT_TRUE(torch::allclose(wrapped(x), before - 3, 0, 1e-2));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU)) << "the caller's scope goes on";
}

TEST(Fp16Module, AmpGradientsSurviveByScaling) {
  Fp16Module wrapped(Probe(), Precision::amp);
  const Tensor x = torch::ones({1, 2, 1, 1});
  const auto gradient = [&](double scale) {
    wrapped.net().zero_grad();
    // The gradient of each output is 2^-26, below FP16.
    (wrapped(x).sum() * 0x1p-26 * scale).backward();
    const Tensor grad = wrapped.parameters()[0].grad();
    EXPECT_EQ(grad.scalar_type(), at::kFloat);
    return grad.flatten()[0].item<float>();
  };
  EXPECT_EQ(gradient(1), 0.0F);
  EXPECT_EQ(gradient(65536), 0x1p-10F);
}

}  // namespace
}  // namespace vsr::runtime
