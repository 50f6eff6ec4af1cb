// SPDX-License-Identifier: Apache-2.0
// Adam against an FP64 reference, the worked numbers, and LibTorch's own optimizers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "optim/update_rules.hpp"

namespace vsr::optim {
namespace {

struct Element {
  float master = 0.0F, exp_avg = 0.0F, exp_avg_sq = 0.0F;
  double beta1_power = 1.0, beta2_power = 1.0;
};

void step(Element& e, float gradient, const AdamRule& options) {
  e.beta1_power *= options.beta1;
  e.beta2_power *= options.beta2;
  const AdamCoefficients c = adam_coefficients(options, e.beta1_power, e.beta2_power);
  switch (weight_decay_of(options)) {
    case WeightDecay::none:
      return adam_step<WeightDecay::none, ScalarMath>(e.master, e.exp_avg, e.exp_avg_sq, gradient,
                                                      c);
    case WeightDecay::into_gradient:
      return adam_step<WeightDecay::into_gradient, ScalarMath>(e.master, e.exp_avg, e.exp_avg_sq,
                                                               gradient, c);
    default:
      return adam_step<WeightDecay::decoupled, ScalarMath>(e.master, e.exp_avg, e.exp_avg_sq,
                                                           gradient, c);
  }
}

TEST(Adam, ASkippedStepDoesNotCount) {
  Element e;
  const AdamRule options = {.lr = 0.1};
  step(e, 1.0F, options);
  step(e, 1.0F, options);  // the overflow between them calls nothing
  EXPECT_NEAR(e.master, -0.199999998F, 1e-7);
}

TEST(Adam, AMissingUnscaleShowsWithALargeEps) {
  for (const double eps : {1e-8, 1e-3}) {
    Element unscaled_gradient;
    step(unscaled_gradient, 1e-3F, {.lr = 1.0, .eps = eps});
    EXPECT_NEAR(-unscaled_gradient.master, eps == 1e-8 ? 0.999990000099999 : 0.5, 1e-6);
  }
}

TEST(Adam, FirstStepOfTheReference) {
  Element e;
  e.master = 1.0F;
  step(e, unscaled(8.0, 1.0 / 4.0), {.lr = 0.1});
  EXPECT_NEAR(e.master, 0.9F, 1e-6);
  EXPECT_NEAR(e.exp_avg, 0.2F, 1e-6);
}

// FP64 throughout, pow instead of running products.
double reference(double master, const std::vector<double>& gradients, const AdamRule& o) {
  double m = 0.0, v = 0.0;
  for (std::size_t t = 1; t <= gradients.size(); ++t) {
    double g = gradients[t - 1];
    if (o.decoupled)
      master -= o.lr * o.weight_decay * master;
    else
      g += o.weight_decay * master;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, static_cast<double>(t)));
    const double v_hat = v / (1 - std::pow(o.beta2, static_cast<double>(t)));
    master -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
  return master;
}

TEST(Adam, FollowsTheFp64Reference) {
  for (const bool decoupled : {false, true}) {
    for (const double decay : {0.0, 0.05}) {
      const AdamRule options = {
          .lr = 1e-3, .beta2 = 0.99, .weight_decay = decay, .decoupled = decoupled};
      for (int k = 0; k < 50; ++k) {
        Element e;
        e.master = 0.02F * static_cast<float>(k) - 0.5F;
        const double start = e.master;
        std::vector<double> gradients;
        for (int t = 0; t < 200; ++t) {
          const auto g = static_cast<float>(std::sin(0.37 * t + k) * std::exp2(k % 20 - 15));
          gradients.push_back(g);
          step(e, g, options);
        }
        EXPECT_NEAR(e.master, reference(start, gradients, options), 2e-6) << k;
      }
    }
  }
}

// LibTorch may fuse multiply and add, so a few units in the last place are allowed, no more.
template <typename Optimizer, typename Options>
void compare_with_libtorch(bool decoupled, double decay) {
  const AdamRule options = {
      .lr = 2e-3, .beta2 = 0.99, .weight_decay = decay, .decoupled = decoupled};
  torch::manual_seed(3);
  torch::Tensor parameter = torch::randn({1024}).set_requires_grad(true);
  std::vector<Element> elements(1024);
  for (std::size_t i = 0; i < elements.size(); ++i)
    elements[i].master = parameter[static_cast<std::int64_t>(i)].item<float>();
  Optimizer optimizer(
      {parameter},
      Options(options.lr).betas(std::make_tuple(options.beta1, options.beta2)).weight_decay(decay));
  for (int t = 0; t < 20; ++t) {
    const torch::Tensor gradient = torch::randn({1024}) * 0.1;
    parameter.mutable_grad() = gradient;
    optimizer.step();
    const float* const g = gradient.const_data_ptr<float>();
    for (std::size_t i = 0; i < elements.size(); ++i) step(elements[i], g[i], options);
  }
  const float* const expected = parameter.const_data_ptr<float>();
  for (std::size_t i = 0; i < elements.size(); ++i)
    EXPECT_NEAR(elements[i].master, expected[i], 1e-6) << i;
}

TEST(Adam, FollowsLibTorchAdam) {
  compare_with_libtorch<torch::optim::Adam, torch::optim::AdamOptions>(false, 0.0);
  compare_with_libtorch<torch::optim::Adam, torch::optim::AdamOptions>(false, 0.01);
}

TEST(Adam, FollowsLibTorchAdamW) {
  compare_with_libtorch<torch::optim::AdamW, torch::optim::AdamWOptions>(true, 0.01);
}

TEST(Fp16Conversion, EqualsLibTorchForAllFinitePatterns) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00U) == 0x7c00U && (bits & 0x03ffU) != 0) continue;
    const c10::Half half(static_cast<std::uint16_t>(bits), c10::Half::from_bits());
    ASSERT_EQ(bits_of(static_cast<float>(half)), bits_of(fp16_to_float(half.x)));
  }
}

}  // namespace
}  // namespace vsr::optim
