// SPDX-License-Identifier: Apache-2.0
// Layers kept in FP32 between reduced ones: which are kept, where casts are made, and that a layer
// no cast can reach is refused with a remedy.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/error.hpp"
#include "runtime/precision/borders.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/half_kernels.hpp"

namespace vsr::runtime {
namespace {

namespace nn = torch::nn;
using test::expect_in;
using torch::Tensor;

bool is_rounded(const Tensor& x) {
  return torch::equal(x, x.to(at::kHalf).to(at::kFloat));
}

/// Passes its input on and remembers in which dtype it came.
struct ProbeImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    seen = x.scalar_type();
    return x;
  }
  at::ScalarType seen = at::kByte;
};
TORCH_MODULE(Probe);

TEST(KeepInFp32, KnowsTheGroups) {
  using Maker = std::shared_ptr<nn::Module>;
  for (const Maker& loss :
       std::vector<Maker>{nn::L1Loss().ptr(),
                          nn::KLDivLoss().ptr(),
                          nn::MSELoss().ptr(),
                          nn::BCELoss().ptr(),
                          nn::HingeEmbeddingLoss().ptr(),
                          nn::MultiMarginLoss().ptr(),
                          nn::CosineEmbeddingLoss().ptr(),
                          nn::SmoothL1Loss().ptr(),
                          nn::HuberLoss().ptr(),
                          nn::MultiLabelMarginLoss().ptr(),
                          nn::SoftMarginLoss().ptr(),
                          nn::MultiLabelSoftMarginLoss().ptr(),
                          nn::TripletMarginLoss().ptr(),
                          nn::TripletMarginWithDistanceLoss().ptr(),
                          nn::CTCLoss().ptr(),
                          nn::PoissonNLLLoss().ptr(),
                          nn::MarginRankingLoss().ptr(),
                          nn::NLLLoss().ptr(),
                          nn::CrossEntropyLoss().ptr(),
                          nn::BCEWithLogitsLoss().ptr(),
                          nn::AdaptiveLogSoftmaxWithLoss(4, 6, std::vector<std::int64_t>{2}).ptr()})
    EXPECT_TRUE(is_loss(*loss)) << loss->name();
  for (const Maker& layer : std::vector<Maker>{nn::Softmax(1).ptr(), nn::Softmax2d().ptr(),
                                               nn::LogSoftmax(1).ptr(), nn::Softmin(1).ptr()})
    EXPECT_TRUE(is_softmax(*layer)) << layer->name();
  for (const Maker& layer : std::vector<Maker>{
           nn::BatchNorm1d(2).ptr(), nn::BatchNorm2d(2).ptr(), nn::BatchNorm3d(2).ptr(),
           nn::InstanceNorm1d(2).ptr(), nn::InstanceNorm2d(2).ptr(), nn::InstanceNorm3d(2).ptr(),
           nn::LayerNorm(nn::LayerNormOptions({2})).ptr(), nn::GroupNorm(1, 2).ptr(),
           nn::LocalResponseNorm(2).ptr(), nn::CrossMapLRN2d(2).ptr()})
    EXPECT_TRUE(is_normalisation(*layer)) << layer->name();
  const nn::Linear linear(2, 2);
  EXPECT_FALSE(is_loss(*linear) || is_softmax(*linear) || is_normalisation(*linear));
}

TEST(Borders, SoftmaxInASequentialComputesInFp32) {
  torch::manual_seed(1);
  nn::Linear layer(4, 9);
  Fp16Module wrapped(nn::Sequential(layer, nn::Softmax(1)));
  const Tensor x = torch::randn({3, 4});
  const Tensor y = wrapped(x);
  const Tensor scores = layer->forward(x.to(at::kHalf));
  ASSERT_EQ(scores.scalar_type(), at::kHalf);
  EXPECT_TRUE(torch::equal(y, torch::softmax(scores.to(at::kFloat), 1)));
  EXPECT_FALSE(is_rounded(y));
  Fp16Module reduced(nn::Sequential(nn::Linear(4, 9), nn::Softmax(1)), Precision::fp16,
                     {.softmax = false});
  EXPECT_TRUE(is_rounded(reduced(x)));
}

TEST(Borders, NestedSequentialsAreReached) {
  const Probe before;
  const Probe kept;
  const Probe after;
  const NestedSequential inner(nn::Softmax(1), NestedSequential(after));
  const NestedSequential keeping(nn::BatchNorm1d(4), kept);
  nn::Sequential net;
  net->push_back("first", NestedSequential(nn::Linear(4, 4), before));
  net->push_back("kept", keeping);
  net->push_back("inner", inner);
  net->push_back("last", nn::Linear(4, 2));
  Fp16Module wrapped(net, Precision::fp16, {.names = {"kept"}});
  const Tensor y = wrapped(torch::randn({5, 4}));
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{5, 2}));
  EXPECT_EQ(before->seen, at::kHalf);
  EXPECT_EQ(kept->seen, at::kFloat);
  EXPECT_EQ(after->seen, at::kHalf) << "reduced again behind softmax";
  y.square().mean().backward();
  for (const auto& parameter : wrapped.parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
}

/// As LibTorch advises for nesting: a class with a forward of its own.
struct ResidualImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& x) { return x + SequentialImpl::forward(x); }
};
TORCH_MODULE(Residual);

TEST(Borders, ClassesDerivedFromSequentialKeepTheirForward) {
  const nn::Sequential net(Residual(nn::BatchNorm1d(2), nn::Identity()), nn::Identity());
  Fp16Module wrapped(net);
  wrapped.eval();
  const Tensor x = torch::tensor({{1.0F, -2.0F}});
  EXPECT_TRUE(torch::allclose(wrapped(x), 2 * x, 0, 1e-3));
  expect_in("'0.0'", test::message_of<ConfigurationError>([] {
              Fp16Module(nn::Sequential(Residual(nn::Linear(2, 2))), Precision::fp16,
                         {.names = {"0.0"}});
            }));
  const auto copy =
      std::dynamic_pointer_cast<NestedSequentialImpl>(NestedSequential(nn::Linear(2, 2))->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->forward(x).sizes(), x.sizes());
}

TEST(Borders, KeepsByType) {
  const Probe probe;
  const nn::Sequential net(nn::Embedding(3, 4), nn::Linear(4, 4), probe, nn::Linear(4, 4));
  Fp16Module wrapped(net, Precision::bf16, {.also = keep_types<nn::Embedding, ProbeImpl>()});
  EXPECT_EQ(wrapped(torch::arange(3)).scalar_type(), at::kFloat);
  EXPECT_EQ(probe->seen, at::kFloat);
  EXPECT_EQ(wrapped.parameters()[0].scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped.parameters()[1].scalar_type(), at::kBFloat16);
}

/// Takes what LSTM gives.
struct FirstOfImpl : nn::Module {
  using State = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
  Tensor forward(const State& value) {
    seen = std::get<1>(std::get<1>(value)).scalar_type();
    return std::get<0>(value);
  }
  at::ScalarType seen = at::kByte;
};
TORCH_MODULE(FirstOf);

struct RecurrentImpl : nn::Module {
  FirstOfImpl::State forward(const Tensor& x, const Tensor& offset) {
    return {x + offset, {x, offset}};
  }
};
TORCH_MODULE(Recurrent);

TEST(Borders, SeveralInputsAndTuplesPassASequential) {
  const FirstOf first;
  Fp16Module wrapped(nn::Sequential(Recurrent(), first, nn::Linear(2, 2)), Precision::fp16,
                     {.names = {"0"}});
  EXPECT_EQ(wrapped(torch::ones({1, 2}), torch::ones({2})).sizes(), (at::IntArrayRef{1, 2}));
  EXPECT_EQ(first->seen, at::kHalf);
  EXPECT_THROW(Fp16Module(nn::Sequential())(torch::ones({1})), ArgumentError);
}

TEST(Borders, LibTorchsRecurrentNetworksTakeTheirState) {
  torch::manual_seed(2);
  Fp16Module wrapped(nn::LSTM(3, 4));
  const auto [y, state] = wrapped(torch::randn({5, 2, 3}));
  const auto state_again = std::make_optional(state);
  const auto [z, unused] = wrapped(torch::randn({5, 2, 3}), state_again);
  EXPECT_EQ(std::get<0>(state).scalar_type(), at::kFloat);
  EXPECT_EQ(z.scalar_type(), at::kFloat);
  EXPECT_TRUE(is_rounded(y));
}

TEST(Borders, ALossAloneGetsFp32) {
  // 300² is beyond FP16.
  const Tensor x = torch::full({4}, 300.0F);
  const Tensor zero = torch::zeros({4});
  EXPECT_EQ(Fp16Module(nn::MSELoss())(x, zero).item<float>(), 9e4F);
  Fp16Module reduced(nn::MSELoss(), Precision::fp16, {.losses = false});
  EXPECT_TRUE(std::isinf(reduced(x, zero).item<float>()));
  const Tensor weight = torch::tensor({1.0F, 1.0F + 0x1p-20F});
  Fp16Module weighted(nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(weight)));
  EXPECT_TRUE(torch::equal(weighted.named_buffers().at(0).value, weight));
}

/// Calls its layers directly, as most networks do.
struct PlainImpl : nn::Module {
  PlainImpl() {
    fc = register_module("fc", nn::Linear(4, 4));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    softmax = register_module("softmax", nn::Softmax(1));
  }
  Tensor forward(const Tensor& x) { return softmax(norm(fc(x))); }
  nn::Linear fc{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Softmax softmax{nullptr};
};
TORCH_MODULE(Plain);

TEST(Borders, LayersThatNoCastReachesAreRefused) {
  const auto message = test::message_of<ConfigurationError>(
      [] { Fp16Module(Plain(), Precision::fp16, {.names = {"fc"}}); });
  expect_in("'fc' (torch::nn::LinearImpl)", message);
  expect_in("PlainImpl", message);
  expect_in("run_at_border", message);
  const auto nested = test::message_of<ConfigurationError>([] {
    Fp16Module(nn::Sequential(nn::Linear(4, 4), Plain()), Precision::fp16,
               {.also = keep_types<nn::Softmax>()});
  });
  expect_in("'1.softmax'", nested);
  expect_in("'1' (", nested);
  // Without reduced dtypes there is nothing to cast.
  EXPECT_NO_THROW(Fp16Module(Plain(), Precision::fp32, {.names = {"fc"}}));
  EXPECT_NO_THROW(Fp16Module(Plain(), Precision::amp, {.names = {"fc"}}));
}

TEST(Borders, ARefusedNetworkIsLeftAsItWas) {
  const Plain net;
  EXPECT_THROW(Fp16Module(net, Precision::fp16, {.names = {"fc"}}), ConfigurationError);
  net->norm->weight.set_data(net->norm->weight.to(at::kDouble));
  EXPECT_THROW(Fp16Module{net}, ConfigurationError);
  EXPECT_EQ(net->fc->weight.scalar_type(), at::kFloat);
}

TEST(Borders, DefaultGroupsWorkInPlainNetworks) {
  torch::manual_seed(3);
  Fp16Module wrapped(Plain{});
  const Tensor y = wrapped(torch::randn({2, 4}));
  EXPECT_TRUE(torch::allclose(y.sum(1), torch::ones({2}), 0, 2e-3));
  EXPECT_EQ(wrapped.net().norm->weight.scalar_type(), at::kFloat);
}

/// A layer on the meta device, which stands for any device but the CPU.
struct ElsewhereImpl : nn::Module {
  struct Norm : nn::LayerNormImpl {
    Norm() : LayerNormImpl(nn::LayerNormOptions({4}).elementwise_affine(false)) {
      register_parameter("scale", torch::ones({4}, at::kMeta));
    }
  };
  ElsewhereImpl() { norm = register_module("norm", std::make_shared<Norm>()); }
  Tensor forward(const Tensor& x) { return norm->forward(x); }
  std::shared_ptr<Norm> norm;
};
TORCH_MODULE(Elsewhere);

TEST(Borders, LayerNormIsRefusedWhereLibTorchTakesNoMixture) {
  const auto message = test::message_of<ConfigurationError>([] { Fp16Module(Elsewhere{}); });
  expect_in("'norm'", message);
  expect_in("KeepInFp32::normalisation = false", message);
}

struct LossInsideImpl : nn::Module {
  LossInsideImpl() { loss = register_module("loss", nn::MSELoss()); }
  Tensor forward(const std::map<std::string, Tensor>& named) {
    return loss(named.at("prediction"), named.at("target"));
  }
  nn::MSELoss loss{nullptr};
};
TORCH_MODULE(LossInside);

TEST(Borders, ALossThatNoCastReachesIsRefused) {
  const auto message = test::message_of<ConfigurationError>([] { Fp16Module(LossInside{}); });
  expect_in("'loss' (torch::nn::MSELossImpl)", message);
  expect_in("KeepInFp32::losses = false", message);
  Fp16Module reduced(LossInside(), Precision::fp16, {.losses = false});
  const std::map<std::string, Tensor> named{{"prediction", torch::full({2}, 3.0F)},
                                            {"target", torch::zeros({2})}};
  EXPECT_EQ(reduced(named).item<float>(), 9.0F);
}

/// Draws its own borders; its arguments have names.
struct OwnImpl : nn::Module, DrawsBorders {
  struct Input {
    Tensor frame;
    Tensor target;
    auto fields() { return std::tie(frame, target); }
  };
  OwnImpl() {
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(4, 4));
    tail = register_module("tail", nn::Sequential(nn::Softmax(1), probe));
    loss = register_module("loss", nn::MSELoss());
  }
  std::tuple<Tensor, Tensor> forward(const Input& input) {
    Tensor x = input.frame;
    dtypes.clear();
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = run_at_border(layers->at<nn::LinearImpl>(i), x);
      dtypes.push_back(x.scalar_type());
    }
    x = run_at_border(tail, x);
    if (fail) throw DataError("asked to fail");
    return {x, run_at_border(loss, 300 * torch::ones_like(input.target), input.target)};
  }
  nn::ModuleList layers{nullptr};
  Probe probe;
  nn::Sequential tail{nullptr};
  nn::MSELoss loss{nullptr};
  std::vector<at::ScalarType> dtypes;
  bool fail = false;
};
TORCH_MODULE(Own);

TEST(Borders, OwnNetworksKeepAnyLayer) {
  Fp16Module wrapped(Own(), Precision::fp16, {.names = {"layers.1"}});
  const auto [y, loss] = wrapped(OwnImpl::Input{torch::randn({2, 4}), torch::zeros({2})});
  EXPECT_EQ(wrapped.net().dtypes, (std::vector{at::kHalf, at::kFloat, at::kHalf}));
  EXPECT_EQ(wrapped.net().probe->seen, at::kHalf);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.item<float>(), 9e4F) << "computed in FP32";
  EXPECT_EQ(wrapped.parameters()[2].scalar_type(), at::kFloat);
  (y.sum() + loss).backward();
  EXPECT_EQ(wrapped.parameters()[2].grad().scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped.parameters()[4].grad().scalar_type(), at::kHalf);
}

TEST(Borders, OwnNetworksRunWithoutAWrapperAndInOtherModes) {
  const OwnImpl::Input input{torch::randn({2, 4}), torch::zeros({2})};
  EXPECT_EQ(std::get<1>(Own()->forward(input)).item<float>(), 9e4F);
  for (const auto precision : {Precision::fp32, Precision::amp, Precision::bf16}) {
    Fp16Module wrapped(Own(), precision, {.names = {"tail"}});
    EXPECT_EQ(std::get<0>(wrapped(input)).scalar_type(), at::kFloat) << name_of(precision);
    // Autocast decides for each operation, whatever is kept.
    if (precision != Precision::amp) {
      EXPECT_EQ(wrapped.net().probe->seen, at::kFloat);
    }
  }
}

/// Asks a network that is none of its parts, as a student asks its teacher.
struct AsksImpl : nn::Module {
  explicit AsksImpl(Own other) : teacher(std::move(other)) {}
  Tensor forward(const Tensor& x) {
    return x + std::get<0>(teacher->forward({x.to(at::kFloat), torch::zeros({1})}));
  }
  Own teacher;
};
TORCH_MODULE(Asks);

TEST(Borders, NetworksThatAreNotWrappedRunAsTheyAre) {
  Own teacher;
  Fp16Module wrapped(Asks{teacher});
  wrapped(torch::ones({1, 4}));
  EXPECT_EQ(teacher->dtypes, (std::vector{at::kFloat, at::kFloat, at::kFloat}));
  EXPECT_EQ(teacher->probe->seen, at::kFloat);
}

TEST(Borders, EndWithAnException) {
  Fp16Module wrapped(Own{});
  wrapped.net().fail = true;
  EXPECT_THROW(wrapped(OwnImpl::Input{torch::ones({1, 4}), torch::ones({1})}), DataError);
  EXPECT_EQ(Borders::current(), nullptr);
}

struct SharingImpl : nn::Module {
  explicit SharingImpl(const Tensor& shared) { weight = register_parameter("weight", shared); }
  Tensor forward(const Tensor& x) { return torch::linear(x, weight); }
  Tensor weight;
};
TORCH_MODULE(Sharing);

TEST(Borders, ASharedParameterHasOneDtype) {
  const nn::Linear first(4, 4);
  const nn::Sequential net(first, Sharing(first->weight));
  const auto message = test::message_of<ConfigurationError>(
      [&] { Fp16Module(net, Precision::fp16, {.names = {"0"}}); });
  expect_in("'1.weight'", message);
  expect_in("keep both", message);
  Fp16Module both(net, Precision::fp16, {.names = {"0", "1"}});
  EXPECT_EQ(both(torch::ones({1, 4})).sizes(), (at::IntArrayRef{1, 4}));
  EXPECT_EQ(both.named_parameters_with_masters().size(), 2U) << "weight once, bias";
}

}  // namespace
}  // namespace vsr::runtime
