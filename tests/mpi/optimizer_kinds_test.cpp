// SPDX-License-Identifier: Apache-2.0
// Every kind of inner optimizer: the bits of a single rank on any number of ranks, through
// clipping, a skipped step, freezing and thawing; and the values of LibTorch's own optimizers.
#include "tests/mpi/optimizer_kinds.hpp"
#include "comm/error.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/solo_world.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

// My pieces of every array hold the bits that a single rank has there.
void expect_equal_shards(Fp16Optimizer& many, Fp16Optimizer& solo) {
  const ShardView mine = many.shard();
  const ShardView all = solo.shard();
  ASSERT_EQ(mine.arrays, all.arrays);
  for (const ShardPiece& piece : mine.pieces) {
    const auto whole = std::ranges::find(all.pieces, piece.parameter, &ShardPiece::parameter);
    ASSERT_NE(whole, all.pieces.end());
    const auto offset = static_cast<std::size_t>(piece.logical.begin - whole->logical.begin);
    for (std::size_t array = 0; array < mine.arrays.size(); ++array) {
      const std::span<float> expected =
          whole->values[array].subspan(offset, piece.values[array].size());
      EXPECT_EQ(std::memcmp(expected.data(), piece.values[array].data(), expected.size_bytes()), 0)
          << mine.arrays[array] << " of parameter " << piece.parameter;
    }
  }
}

class Kinds : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, Kinds, testing::ValuesIn(kinds()), kind_name);

TEST_P(Kinds, GiveTheBitsOfOneRankOnAnyNumber) {
  torch::set_num_threads(1);
  const Fp16OptimizerOptions options = {
      .dynamic_loss_scale = true, .leaves = 4, .replica_check_steps = 1, .ema_decay = 0.9};
  vsr::test::SoloWorld alone;
  const NormNet solo_net, net;
  const auto solo = make_optimizer(GetParam(), solo_net, alone, options);
  const auto many = make_optimizer(GetParam(), net, world(), options);
  const auto run = [&](const NormNet& of, Fp16Optimizer& optimizer, int step) {
    of[3].set_requires_grad(step != 3 && step != 4);
    optimizer.set_loss_scale(512);
    run_leaves(of, optimizer, step, step == 2 ? 1 : -1);
    if (step == 1 || step == 5) optimizer.clip_fp32_grads(0.1);
    return optimizer.step();
  };
  for (int step = 0; step < 7; ++step) {
    const StepReport expected = run(solo_net, *solo, step);
    const StepReport report = run(net, *many, step);
    EXPECT_EQ(report.applied, step != 2);
    EXPECT_EQ(report.grad_norm, expected.grad_norm);
    EXPECT_EQ(report.clip_factor, expected.clip_factor);
    EXPECT_EQ(report.clip_factor < 1.0, step == 1 || step == 5);
    EXPECT_EQ(many->masters_hash(), solo->masters_hash()) << "step " << step;
    expect_equal_shards(*many, *solo);
    EXPECT_EQ(many->state(), solo->state());
    EXPECT_EQ(many->replica_hash(), solo->replica_hash());
    EXPECT_TRUE(torch::equal(net.mean, solo_net.mean) &&
                torch::equal(net.variance, solo_net.variance));
  }
  EXPECT_EQ(many->state().parameters[0].steps, 6);
  EXPECT_EQ(many->state().parameters[3].steps, 4);  // frozen in two steps, one was skipped
}

// The same mean gradients go to LibTorch's optimizer on FP32 parameters. RMSprop, Adagrad and
// amsgrad are LibTorch's own loops; ours round once more or less where LibTorch fuses multiply and
// add, so a few units in the last place of values around 0.3 are allowed for each of six steps.
TEST_P(Kinds, FollowLibTorchOnFp32Parameters) {
  const NormNet net(torch::kFloat), plain(torch::kFloat);
  const auto optimizer = make_optimizer(GetParam(), net, world(), {.leaves = 3});
  const auto reference = GetParam().make({plain[0], plain[3]}, {plain[1], plain[2]});
  for (int step = 0; step < 6; ++step) {
    run_leaves(net, *optimizer, step);
    const std::vector<Tensor> gradients = optimizer->inspect_fp32_grad_data();
    for (std::size_t i = 0; i < gradients.size(); ++i) plain[i].mutable_grad() = gradients[i];
    EXPECT_TRUE(optimizer->step().applied);
    reference->step();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_LT((net[i] - plain[i]).abs().max().item<float>(), 1e-6) << "step " << step;
  }
}

TEST_P(Kinds, TakeOverStateOfTheInnerOptimizer) {
  const NormNet net(torch::kFloat), plain(torch::kFloat);
  auto inner = GetParam().make({net[0], net[3]}, {net[1], net[2]});
  const auto reference = GetParam().make({plain[0], plain[3]}, {plain[1], plain[2]});
  const auto step_plainly = [](const NormNet& of, torch::optim::Optimizer& by, int step) {
    by.zero_grad();
    of.loss(step, 0).backward();
    by.step();
  };
  for (int step = 0; step < 3; ++step) {
    step_plainly(net, *inner, step);
    step_plainly(plain, *reference, step);
  }
  Fp16OptimizerOptions options = {.leaves = 1, .buffers = net.buffers()};
  for (const NamedParameter& parameter : net.parameters)
    options.parameters.push_back({parameter.name, parameter.replica, {}});
  Fp16Optimizer optimizer(std::move(inner), world(), std::move(options));
  for (int step = 3; step < 6; ++step) {
    run_leaves(net, optimizer, step);
    optimizer.step();
    step_plainly(plain, *reference, step);
  }
  for (std::size_t i = 0; i < net.parameters.size(); ++i)
    EXPECT_LT((net[i] - plain[i]).abs().max().item<float>(), 3e-6);
  // SGD counts no steps: one stands for the momentum that is there.
  const std::int64_t steps = optimizer.state().parameters[0].steps;
  EXPECT_TRUE(steps == 6 || (GetParam().name.starts_with("Sgd") && (steps == 4 || steps == 3)));
}

TEST_P(Kinds, GoOnBitForBitFromAStateDict) {
  const NormNet net, other(torch::kHalf, 40.0);
  const Fp16OptimizerOptions options = {.dynamic_loss_scale = true, .leaves = 3, .ema_decay = 0.5};
  const auto optimizer = make_optimizer(GetParam(), net, world(), options);
  optimizer->set_loss_scale(256);
  optimizer->inner().param_groups()[1].options().set_lr(5e-4);
  for (int step = 0; step < 2; ++step) {
    run_leaves(net, *optimizer, step);
    optimizer->step();
  }
  const StateDict dict = optimizer->state_dict();
  const auto resumed = make_optimizer(GetParam(), other, world(), options);
  resumed->load_state_dict(dict);
  EXPECT_EQ(resumed->inner().param_groups()[1].options().get_lr(), 5e-4);
  EXPECT_EQ(resumed->replica_hash(), optimizer->replica_hash());
  other.mean.copy_(net.mean);
  other.variance.copy_(net.variance);
  for (int step = 2; step < 4; ++step) {
    run_leaves(net, *optimizer, step);
    run_leaves(other, *resumed, step);
    EXPECT_TRUE(optimizer->step().applied);
    EXPECT_TRUE(resumed->step().applied);
  }
  EXPECT_EQ(resumed->masters_hash(), optimizer->masters_hash());
  EXPECT_EQ(resumed->state_dict().arrays, optimizer->state_dict().arrays);
  EXPECT_EQ(resumed->state(), optimizer->state());
}

// Group 1 comes after two steps, against an optimizer that had it, frozen, from the start.
TEST_P(Kinds, ReceiveAParamGroupLater) {
  const NormNet net, expected_net;
  const auto expected = make_optimizer(GetParam(), expected_net, world(), {.leaves = 2});
  const auto template_of = GetParam().make({}, {net[1], net[2]});
  auto first = GetParam().make({net[0], net[3]}, {});
  first->param_groups().pop_back();
  Fp16OptimizerOptions options = {.leaves = 2, .buffers = net.buffers()};
  options.parameters = {net.parameters[0], net.parameters[3]};
  Fp16Optimizer optimizer(std::move(first), world(), std::move(options));
  for (int step = 0; step < 4; ++step) {
    for (const std::size_t i : {1U, 2U}) {
      expected_net[i].set_requires_grad(step >= 2);
      net[i].set_requires_grad(step >= 2);
    }
    if (step == 2)
      optimizer.add_param_group(template_of->param_groups()[1], {"norm.weight", "norm.bias"});
    run_leaves(expected_net, *expected, step);
    run_leaves(net, optimizer, step);
    EXPECT_TRUE(expected->step().applied);
    EXPECT_TRUE(optimizer.step().applied);
    for (std::size_t i = 0; i < net.parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(net[i], expected_net[i])) << net.parameters[i].name << ' ' << step;
  }
  EXPECT_EQ(optimizer.masters_hash(), expected->masters_hash());
  EXPECT_EQ(optimizer.layout().parameters()[2].name, "norm.weight");
  EXPECT_EQ(optimizer.state().parameters[2].steps, 2);
  EXPECT_EQ(optimizer.state().parameters[0].steps, 4);
  const std::string message =
      message_of<AgreedError>([&] { optimizer.add_param_group(template_of->param_groups()[1]); });
  expect_in("norm.weight is in a param group already", message);
}

TEST(Lamb, HasOneTrustRatioForEachParameter) {
  // Two parameters of which one is a hundred times larger: updates differ as much.
  const Tensor large = torch::full({3000}, 1.0F).set_requires_grad(true);
  const Tensor small = torch::full({3000}, 0.01F).set_requires_grad(true);
  Fp16Optimizer optimizer(std::make_unique<Lamb>(std::vector<Tensor>{large, small},
                                                 LambOptions(0.1).adapt_always(true)),
                          world(), {.static_loss_scale = 4096, .leaves = 1});
  optimizer.zero_grad();
  if (world().rank() == 0) optimizer.backward((large + small).sum());
  optimizer.step();
  EXPECT_NEAR(large[0].item<float>(), 0.9F, 1e-5);
  EXPECT_NEAR(small[2999].item<float>(), 0.009F, 1e-7);
}

TEST(Lamb, RefusesOptionsThatCannotWork) {
  const std::vector<Tensor> none;
  EXPECT_THROW(Lamb(none, LambOptions(-1.0)), ConfigurationError);
  EXPECT_THROW(Lamb(none, LambOptions(0.1).betas(std::make_tuple(0.9, 1.0))), ConfigurationError);
  EXPECT_THROW(Lamb(none, LambOptions(0.1).eps(-1)), ConfigurationError);
}

TEST(Sgd, MomentumThatComesLaterIsRefused) {
  const NormNet net;
  const Kind kind = kinds()[4];
  const auto optimizer = make_optimizer(kind, net, world(), {.leaves = 1});
  static_cast<torch::optim::SGDOptions&>(optimizer->inner().param_groups()[0].options())
      .momentum(0.9);
  run_leaves(net, *optimizer, 0);
  expect_in("began without momentum", message_of<ConfigurationError>([&] { optimizer->step(); }));
}

}  // namespace
}  // namespace vsr::optim::test
