// SPDX-License-Identifier: Apache-2.0
// Networks and losses: sizes, shapes, the bicubic start, seeds, and the published vectors of the
// bicubic kernel and of the Charbonnier loss.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "runtime/models/bicubic.hpp"
#include "runtime/models/losses.hpp"
#include "runtime/models/vsr_net.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/half_kernels.hpp"

namespace vsr::runtime {
namespace {

using torch::Tensor;

ModelOptions options_of(const std::string& name, int scale = 4, std::uint64_t seed = 0) {
  ModelOptions options;
  options.name = name;
  options.scale = scale;
  options.seed = seed;
  return options;
}

Tensor window(const VsrNet& net, std::int64_t batch, std::int64_t height, std::int64_t width) {
  torch::manual_seed(7);
  return torch::rand({batch, net.options().num_frame, 3, height, width});
}

/// The bytes of the published vectors: s = 1664525 s + 1013904223 mod 2^32, byte s >> 24.
Tensor lcg_bytes(std::uint32_t seed, at::IntArrayRef shape) {
  std::vector<float> bytes;
  for (std::int64_t i = 0; i < c10::multiply_integers(shape); ++i) {
    seed = 1664525U * seed + 1013904223U;
    bytes.push_back(static_cast<float>(seed >> 24));
  }
  return torch::tensor(bytes).view(shape);
}

TEST(Bicubic, EqualsTheVectorsOfImresize) {
  const Tensor small = lcg_bytes(3, {3, 4, 3}).permute({2, 0, 1}).unsqueeze(0).contiguous();
  const Tensor large = bicubic_upscale(small, 4);
  ASSERT_EQ(large.sizes(), (at::IntArrayRef{1, 3, 12, 16}));
  const std::vector<double> row0_red{33.835144043,  42.852233887,  63.004058838,  101.551116943,
                                     146.695098877, 183.915008545, 199.896453857, 196.701934814,
                                     184.895843506, 174.874176025, 175.707885742, 184.339111328,
                                     195.774047852, 205.732421875, 210.73651123,  212.926452637};
  const std::vector<double> row5_green{204.135566711, 194.838264465, 173.939061165, 133.536475182,
                                       86.470414162,  48.543841362,  33.985641479,  39.656539917,
                                       55.51335144,   72.031661987,  81.541157722,  89.038123131,
                                       95.531159401,  100.552111626, 103.720603943, 105.270713806};
  for (int x = 0; x < 16; ++x) {
    EXPECT_NEAR(large[0][0][0][x].item<double>(), row0_red[x], 2e-4) << x;
    EXPECT_NEAR(large[0][1][5][x].item<double>(), row5_green[x], 2e-4) << x;
  }
  EXPECT_NEAR(large.sum().item<double>(), 74672.0, 0.05);
  EXPECT_NEAR(large.min().item<double>(), -2.179893494, 2e-4);
  EXPECT_NEAR(large.max().item<double>(), 275.432891846, 2e-4);
}

TEST(Bicubic, KeepsConstantsAtEverySizeAndScale) {
  for (const int scale : {1, 2, 3, 4})
    for (const std::int64_t height : {1, 2, 5})
      for (const std::int64_t width : {1, 3}) {
        const Tensor large = bicubic_upscale(torch::full({2, 1, height, width}, 0.25F), scale);
        EXPECT_TRUE(torch::allclose(
            large, torch::full({2, 1, height * scale, width * scale}, 0.25F), 0, 1e-6))
            << scale << " " << height << " " << width;
      }
}

TEST(Bicubic, RefusesOtherInput) {
  EXPECT_THROW(bicubic_upscale(torch::ones({3, 4, 4}), 2), ArgumentError);
  EXPECT_THROW(bicubic_upscale(torch::ones({1, 3, 4, 4}, at::kHalf), 2), ArgumentError);
  EXPECT_THROW(bicubic_upscale(torch::ones({1, 3, 4, 4}), 0), ArgumentError);
  EXPECT_THROW(bicubic_upscale(torch::ones({1, 3, 0, 4}), 2), ArgumentError);
}

TEST(Networks, HaveTheirParameterCounts) {
  // Sums of in·out·k² + out over the layers.
  EXPECT_EQ(parameter_count(*make_network(options_of("espcn", 4))), 4864 + 18464 + 13872);
  EXPECT_EQ(parameter_count(*make_network(options_of("espcn", 2))), 4864 + 18464 + 3468);
  EXPECT_EQ(parameter_count(*make_network(options_of("vespcn", 4))), 2624 + 8 * 9248 + 13872);
  EXPECT_EQ(parameter_count(*make_network(options_of("vespcn", 3))), 2624 + 8 * 9248 + 7803);
  ModelOptions small = options_of("vespcn", 2);
  small.num_frame = 5;
  small.channels = 8;
  small.blocks = 1;
  EXPECT_EQ(parameter_count(*make_network(small)), (15 * 8 * 9 + 8) + 2 * 584 + (8 * 12 * 9 + 12));
}

TEST(Networks, EnlargeAnySizeByEveryScale) {
  for (const auto& name : model_names())
    for (const int scale : {2, 3, 4})
      for (const auto precision :
           {Precision::fp32, Precision::fp16, Precision::bf16, Precision::amp}) {
        Fp16Module<VsrNet> net(make_network(options_of(name, scale)), precision);
        for (const auto& [height, width] : {std::pair{1, 1}, std::pair{5, 7}, std::pair{2, 9}}) {
          const Tensor y = net(window(net.net(), 2, height, width));
          EXPECT_EQ(y.sizes(), (at::IntArrayRef{2, 3, height * scale, width * scale})) << name;
          EXPECT_EQ(y.scalar_type(), at::kFloat);
          EXPECT_TRUE(y.requires_grad());
        }
      }
}

TEST(Networks, StartAtBicubic) {
  for (const auto& name : model_names())
    for (const auto precision : {Precision::fp32, Precision::fp16}) {
      Fp16Module<VsrNet> net(make_network(options_of(name)), precision);
      const Tensor x = window(net.net(), 1, 24, 20);
      const Tensor base = bicubic_upscale(x.select(1, net.net().options().num_frame / 2), 4);
      EXPECT_LT((net(x) - base).abs().max().item<double>(), 1.0 / 255) << name;
    }
}

TEST(Networks, AddTheSkipInFp32) {
  for (const auto& name : model_names()) {
    Fp16Module<VsrNet> net(make_network(options_of(name)), Precision::fp16);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.zero_();
    const Tensor x = window(net.net(), 2, 9, 8);
    const Tensor base = bicubic_upscale(x.select(1, net.net().options().num_frame / 2), 4);
    EXPECT_TRUE(torch::equal(net(x), base)) << "a residual of 0 leaves every bit of bicubic";
  }
}

TEST(Networks, DependOnTheSeedAlone) {
  for (const auto& name : model_names()) {
    torch::manual_seed(1);
    const auto first = make_network(options_of(name, 4, 3));
    torch::manual_seed(2);
    const auto second = make_network(options_of(name, 4, 3));
    const auto other = make_network(options_of(name, 4, 4));
    for (std::size_t i = 0; i < first->parameters().size(); ++i) {
      const Tensor value = first->parameters()[i];
      EXPECT_TRUE(torch::equal(value, second->parameters()[i]));
      // Biases start at zero whatever the seed.
      EXPECT_EQ(torch::equal(value, other->parameters()[i]), value.dim() == 1);
    }
  }
}

TEST(Networks, GiveEveryParameterAGradientAtOnce) {
  for (const auto& name : model_names())
    for (const auto precision : {Precision::fp32, Precision::fp16, Precision::amp}) {
      Fp16Module<VsrNet> net(make_network(options_of(name)), precision);
      const Tensor x = window(net.net(), 2, 16, 16);
      (charbonnier_loss(net(x), torch::rand({2, 3, 64, 64})) * 65536).backward();
      for (const auto& item : net.net().named_parameters()) {
        ASSERT_TRUE(item.value().grad().defined()) << name << " " << item.key();
        EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
        EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << name << " " << item.key();
      }
    }
}

TEST(Networks, UseEveryFrame) {
  const auto net = make_network(options_of("vespcn"));
  const Tensor x = window(*net, 1, 8, 8).requires_grad_();
  net->forward(x).square().sum().backward();
  for (int frame = 0; frame < 3; ++frame)
    EXPECT_GT(x.grad()[0][frame].abs().max().item<double>(), 0) << frame;
}

TEST(Networks, KeepALayerInFp32ByName) {
  Fp16Module<VsrNet> net(make_network(options_of("vespcn")), Precision::fp16,
                         {.names = {"pixels", "block_0"}});
  net(window(net.net(), 1, 6, 6)).sum().backward();
  for (const auto& item : net.net().named_parameters()) {
    const bool kept = item.key().rfind("pixels", 0) == 0 || item.key().rfind("block_0", 0) == 0;
    EXPECT_EQ(item.value().scalar_type(), kept ? at::kFloat : at::kHalf) << item.key();
    EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type());
  }
}

TEST(Networks, Fp16FollowsFp32) {
  for (const auto& name : model_names()) {
    Fp16Module<VsrNet> wide(make_network(options_of(name)), Precision::fp32);
    Fp16Module<VsrNet> half(make_network(options_of(name)), Precision::fp16);
    const Tensor x = window(wide.net(), 2, 16, 16);
    const Tensor target = torch::rand({2, 3, 64, 64});
    (mean_square_loss(wide(x), target) * 65536).backward();
    (mean_square_loss(half(x), target) * 65536).backward();
    for (std::size_t i = 0; i < wide.parameters().size(); ++i) {
      const Tensor expected = wide.parameters()[i].grad();
      const Tensor got = half.parameters()[i].grad().to(at::kFloat);
      // About one ReLU in 2^11 switches where rounding moves its input across zero; uncorrelated
      // errors of that share of the terms come to a few per cent of the norm.
      EXPECT_LT((got - expected).norm().item<double>(), 0.05 * expected.norm().item<double>())
          << name << " " << i;
    }
  }
}

TEST(Networks, LearnInFp32) {
  ModelOptions options = options_of("vespcn", 2);
  options.channels = 8;
  options.blocks = 1;
  const auto net = make_network(options);
  torch::optim::Adam adam(net->parameters(), 5e-3);
  torch::manual_seed(9);
  const Tensor sharp = torch::rand({2, 3, 32, 32}).round();
  const Tensor small = torch::avg_pool2d(sharp, 2).unsqueeze(1).expand({2, 3, 3, 16, 16});
  const double before = mean_square_loss(net->forward(small), sharp).item<double>();
  for (int step = 0; step < 60; ++step) {
    adam.zero_grad();
    mean_square_loss(net->forward(small), sharp).backward();
    adam.step();
  }
  EXPECT_LT(mean_square_loss(net->forward(small), sharp).item<double>(), 0.9 * before);
}

TEST(Networks, RefuseImpossibleOptions) {
  const auto message = test::message_of<Error>([] { make_network(options_of("edsr")); });
  EXPECT_NE(message.find("'edsr'"), std::string::npos) << message;
  EXPECT_NE(message.find("espcn, vespcn"), std::string::npos) << message;
  EXPECT_THROW(make_network(options_of("edsr")), UsageError);
  EXPECT_THROW(make_network(options_of("vespcn", 5)), UsageError);
  const auto with = [](const std::string& name, int ModelOptions::*field, int value) {
    ModelOptions options = options_of(name);
    options.*field = value;
    return test::message_of<Error>([&] { make_network(options); });
  };
  EXPECT_NE(with("espcn", &ModelOptions::num_frame, 3).find("number of frames is 3, expected 1"),
            std::string::npos);
  EXPECT_NE(with("vespcn", &ModelOptions::num_frame, 4).find("odd"), std::string::npos);
  EXPECT_NE(with("espcn", &ModelOptions::blocks, 2).find("blocks is 2"), std::string::npos);
  EXPECT_NE(with("vespcn", &ModelOptions::channels, -1).find("width is -1"), std::string::npos);
}

TEST(Networks, RefuseOtherWindows) {
  const auto net = make_network(options_of("vespcn"));
  const auto message = test::message_of<Error>([&] { net->forward(torch::ones({1, 2, 3, 4, 4})); });
  EXPECT_NE(message.find("[1, 2, 3, 4, 4]"), std::string::npos) << message;
  EXPECT_NE(message.find("N×3×3×h×w"), std::string::npos) << message;
  EXPECT_THROW(net->forward(torch::ones({3, 3, 4, 4})), ArgumentError);
  EXPECT_THROW(net->forward(torch::ones({1, 3, 1, 4, 4})), ArgumentError);
  EXPECT_THROW(net->forward(torch::ones({1, 3, 3, 4, 4}, at::kHalf)), ArgumentError);
}

TEST(Networks, FillInDefaults) {
  const ModelOptions full = make_network(options_of("vespcn"))->options();
  EXPECT_EQ(full.num_frame, 3);
  EXPECT_EQ(full.channels, 32);
  EXPECT_EQ(full.blocks, 4);
  EXPECT_EQ(complete(options_of("espcn")).num_frame, 1);
}

TEST(Losses, CharbonnierEqualsTheVectors) {
  const Tensor a = (lcg_bytes(21, {4, 5, 3}) / 255).requires_grad_();
  const Tensor b = lcg_bytes(22, {4, 5, 3}) / 255;
  struct Vector {
    double eps2, mean, sum, second_gradient, third_gradient;
  };
  for (const Vector& v : {Vector{1e-12, 0.342483693, 20.549021608, -0.016666667, -0.016666667},
                          Vector{1e-9, 0.342484718, 20.54908307, -0.016666666, -0.016666667},
                          Vector{1e-6, 0.3425206, 20.551235979, -0.016665726, -0.016666649}}) {
    a.mutable_grad() = Tensor();
    const Tensor loss = charbonnier_loss(a, b, v.eps2);
    EXPECT_NEAR(loss.item<double>(), v.mean, 1e-6);
    EXPECT_NEAR(loss.item<double>() * 60, v.sum, 2e-5);
    loss.backward();
    const Tensor gradient = a.grad().flatten();
    EXPECT_EQ(gradient[0].item<double>(), 0.0);
    EXPECT_NEAR(gradient[1].item<double>(), v.second_gradient, 1e-8);
    EXPECT_NEAR(gradient[2].item<double>(), v.third_gradient, 1e-8);
  }
  EXPECT_NEAR(charbonnier_loss(a, a).item<double>(), 1e-6, 1e-12);
}

TEST(Losses, L1AndMseHaveClosedForms) {
  const Tensor prediction = torch::tensor({1.0F, 2.0F, -3.0F, 0.0F}).requires_grad_();
  const Tensor target = torch::tensor({0.0F, 2.0F, 1.0F, 0.5F});
  const Tensor l1 = make_loss("l1")(prediction, target);
  EXPECT_EQ(l1.item<float>(), 1.375F);
  l1.backward();
  EXPECT_TRUE(torch::equal(prediction.grad(), torch::tensor({0.25F, 0.0F, -0.25F, -0.25F})));
  prediction.mutable_grad() = Tensor();
  const Tensor mse = make_loss("mse")(prediction, target);
  EXPECT_EQ(mse.item<float>(), 4.3125F);
  mse.backward();
  EXPECT_TRUE(torch::equal(prediction.grad(), torch::tensor({0.5F, 0.0F, -2.0F, -0.25F})));
}

TEST(Losses, AreComputedInFp32) {
  // In FP16 the square of 300 is infinite and a mean of 1e5 values could not be told from zero.
  const Tensor half = torch::full({100000}, 300, at::kHalf);
  for (const auto& name : loss_names()) {
    const Tensor loss = make_loss(name)(half, torch::zeros({100000}, at::kHalf));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), name == "mse" ? 90000 : 300, 0.1) << name;
  }
}

TEST(Losses, RefuseUnknownNamesAndUnequalShapes) {
  EXPECT_THROW(make_loss("psnr"), UsageError);
  EXPECT_NE(test::message_of<Error>([] { make_loss("psnr"); }).find("charbonnier, l1 or mse"),
            std::string::npos);
  const auto message = test::message_of<Error>([] {
    mean_absolute_loss(torch::ones({2, 1}), torch::ones({2, 3}));
  });
  EXPECT_NE(message.find("[2, 1]"), std::string::npos) << message;
  EXPECT_THROW(mean_square_loss(torch::ones({2, 1}), torch::ones({2, 3})), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
