// SPDX-License-Identifier: Apache-2.0
// The parts of training that all ranks take part in, without the program around them: validation
// counts every held-out frame once whatever the number of ranks, and a skipped step changes
// nothing.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include "comm/error.hpp"
#include "optim/lamb.hpp"
#include "runtime/metrics/psnr.hpp"
#include "runtime/metrics/ssim.hpp"
#include "runtime/models/bicubic.hpp"
#include "runtime/train/divergence.hpp"
#include "runtime/train/run_state.hpp"
#include "runtime/train/validation.hpp"
#include "runtime/video/resample.hpp"
#include "runtime/video/test_clip.hpp"
#include "runtime/video/video_writer.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/solo_world.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

/// A clip of 20 frames of 48x64 in rank 0's temporary folder, seen by all ranks of this host.
class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    comm::Communicator& world = test::world();
    folder_ = world.broadcast_string((own_ / "").string(), 0);
    if (world.rank() == 0) {
      const auto writer = open_writer(folder_ / "clip.mp4", {25, 1});
      for (const ImageU8& frame : make_test_clip({3, 20, 48, 64})) writer->write(frame);
      writer->finish();
    }
    world.barrier();
  }
  void TearDown() override { test::world().barrier(); }

  WindowDataset data() const {
    const std::vector<fs::path> clips = {folder_ / "clip.mp4"};
    return WindowDataset(clips, DatasetOptions{.num_frame = 3, .gt_size = 16, .scale = 4});
  }

  fs::path folder_;

 private:
  test::TemporaryFolder own_;
};

torch::Tensor enlarge_centre(const torch::Tensor& window) {
  return bicubic_upscale(window.select(1, window.size(1) / 2), 4);
}

TEST_F(TrainTest, BicubicScoresAsBicubicOnAnyNumberOfRanks) {
  WindowDataset dataset = data();
  double psnr = 0;
  double ssim = 0;
  for (std::int64_t i = 0; i < dataset.held_out_count(); ++i) {
    const HeldOutFrame frame = dataset.held_out(i);
    const ImageU8 enlarged = upscale(frame.lr_frame, 4);
    psnr += psnr_y(enlarged, frame.gt);
    ssim += ssim_y(enlarged, frame.gt);
  }
  const auto frames = static_cast<double>(dataset.held_out_count());

  const ValidationResult result =
      validate(dataset, test::world(), enlarge_centre, folder_ / "val" / "00000001");
  ASSERT_EQ(result.clips.size(), 1U);
  EXPECT_EQ(result.clips[0].name, "clip");
  EXPECT_EQ(result.clips[0].frames, dataset.held_out_count());
  EXPECT_EQ(result.clips[0].exact_frames, 0);
  EXPECT_EQ(result.mean.bicubic_psnr_y, psnr / frames);
  EXPECT_EQ(result.mean.bicubic_ssim_y, ssim / frames);
  // The network's bicubic rounds in FP32, the metric's in FP64: at most a byte here and there.
  EXPECT_NEAR(result.mean.psnr_y, result.mean.bicubic_psnr_y, 0.01);

  test::world().barrier();
  std::ifstream csv(folder_ / "val" / "00000001" / "clip.csv");
  std::int64_t lines = 0;
  for (std::string line; std::getline(csv, line);) ++lines;
  EXPECT_EQ(lines, 1 + dataset.held_out_count());
  EXPECT_TRUE(fs::exists(folder_ / "val" / "00000001" / "clip_strip.png"));
}

TEST_F(TrainTest, ExactFramesAreCountedAndLeftOutOfTheMean) {
  WindowDataset dataset = data();
  // A network that knows the answer of the first held-out frame and is black elsewhere.
  const HeldOutFrame first = dataset.held_out(0);
  torch::Tensor answer = torch::empty({1, 3, first.gt.height, first.gt.width});
  to_planes(first.gt, {answer.data_ptr<float>(), static_cast<std::size_t>(answer.numel())});
  torch::Tensor known = torch::empty({1, 3, 3, first.lr_height, first.lr_width});
  std::copy(first.lr.begin(), first.lr.end(), known.data_ptr<float>());

  const ValidationResult result = validate(
      dataset, test::world(),
      [&](const torch::Tensor& window) {
        return torch::equal(window, known) ? answer : torch::zeros_like(answer);
      },
      std::nullopt);
  EXPECT_EQ(result.clips[0].exact_frames, 1);
  EXPECT_TRUE(std::isfinite(result.mean.psnr_y));
  EXPECT_LT(result.mean.psnr_y, 20.0);
}

TEST_F(TrainTest, AFrameThatFailsOnOneRankEndsAllRanks) {
  WindowDataset dataset = data();
  const int last = std::min(test::world().world(), static_cast<int>(dataset.held_out_count())) - 1;
  try {
    validate(
        dataset, test::world(),
        [&](const torch::Tensor& window) -> torch::Tensor {
          if (test::world().rank() == last) throw DataError("frame 17 is damaged");
          return enlarge_centre(window);
        },
        std::nullopt);
    FAIL() << "no rank threw";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    EXPECT_STREQ(error.what(), "frame 17 is damaged");
    EXPECT_EQ(error.rank(), last);
  }
}

TEST(MatchConfiguration, NamesEveryDifference) {
  const nlohmann::json saved = {{"batch", 2}, {"lr", 2e-4}, {"loss", "l1"}, {"old", 1}};
  EXPECT_NO_THROW(match_configuration(saved, {{"batch", 2}, {"lr", 2e-4}, {"new", 5}}));
  try {
    match_configuration(saved, {{"batch", 4}, {"lr", 2e-4}, {"loss", "mse"}});
    FAIL() << "accepted";
  } catch (const ConfigurationError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("--batch: the run has 2, now 4"), std::string::npos) << text;
    EXPECT_NE(text.find("--loss: the run has \"l1\", now \"mse\""), std::string::npos) << text;
    EXPECT_EQ(text.find("--lr"), std::string::npos) << text;
  }
}

TEST(MatchConfiguration, LetsNamedOnesDriftAndTellsThem) {
  const nlohmann::json saved = {{"batch", 2}, {"lr", 2e-4}};
  const nlohmann::json current = {{"batch", 2}, {"lr", 1e-4}};
  EXPECT_EQ(match_configuration(saved, current, {"lr"}),
            std::vector<std::string>{"--lr: the run has 0.0002, now 0.0001"});
  EXPECT_TRUE(match_configuration(saved, current, {"lr", "batch"}).size() == 1);
  EXPECT_THROW(match_configuration(saved, current, {"batch"}), ConfigurationError);
  EXPECT_THROW(match_configuration(saved, current, {"lr", "rate"}), ConfigurationError);
}

/// One step of a small network from its state, so that a skipped one can be compared with it.
class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() {
    torch::manual_seed(5);
    net_ =
        torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::ReLU(), torch::nn::Linear(5, 1));
    net_->to(torch::kHalf);
    buffer_ = torch::arange(4, torch::kFloat);
    optim::Fp16OptimizerOptions options;
    options.dynamic_loss_scale = true;
    options.leaves = 4;
    options.buffers = {{"statistics", buffer_}};
    for (auto& item : net_->named_parameters())
      options.parameters.push_back({item.key(), item.value(), {}});
    optimizer_ = std::make_unique<optim::Fp16Optimizer>(
        std::make_unique<torch::optim::Adam>(net_->parameters(), 1e-2), test::world(), options);
  }

  optim::StepReport step(double inject = 1.0) {
    optimizer_->zero_grad();
    for (const int leaf : optimizer_->my_leaves()) {
      const torch::Tensor x = torch::full({2, 6}, 0.25 * (leaf + 1), torch::kHalf);
      torch::Tensor loss = net_->forward(x).to(torch::kFloat).square().mean();
      if (leaf == 2) loss = loss * inject;
      optimizer_->backward(loss);
    }
    return optimizer_->step();
  }

  Snapshot snapshot() {
    return take_snapshot(*optimizer_, {{"statistics", buffer_}}, Progress{.iteration = 7},
                         {{"k", 1}});
  }

  torch::nn::Sequential net_{nullptr};
  torch::Tensor buffer_;
  std::unique_ptr<optim::Fp16Optimizer> optimizer_;
};

TEST_F(SnapshotTest, ForcedOverflowInOneLeafChangesNothingButTheScale) {
  ASSERT_TRUE(step().applied);
  const Snapshot before = snapshot();
  const std::uint64_t replica = optimizer_->replica_hash();
  const optim::StepReport report = step(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.first_bad_leaf, 2);
  EXPECT_EQ(report.loss_scale, 65536.0F);
  EXPECT_EQ(report.next_loss_scale, 32768.0F);

  Snapshot after = snapshot();
  EXPECT_EQ(after.shard.arrays, before.shard.arrays);
  EXPECT_EQ(after.parameters, before.parameters);
  EXPECT_EQ(after.buffers, before.buffers);
  EXPECT_EQ(optimizer_->replica_hash(), replica);
  EXPECT_EQ(after.state["applied_steps"], 1);
  EXPECT_EQ(after.state["skipped_steps"], 1);
  const auto scales = test::world().all_gather(optimizer_->loss_scale());
  EXPECT_EQ(scales, std::vector<float>(scales.size(), 32768.0F));
}

TEST_F(SnapshotTest, ASkippedStepAtTheEndIsDivergenceWhereItsLossIsNotFinite) {
  const auto at_the_end = [&](const optim::StepReport& last, std::int64_t skipped_in_row) {
    require_not_diverged({.iteration = 9, .skipped_in_row = skipped_in_row, .last_step = last},
                         *optimizer_, test::world());
  };
  EXPECT_NO_THROW(at_the_end(step(), 0));
  // The gradient of leaf 2 overflows FP16, its loss does not.
  const optim::StepReport overflow = step(1e6);
  ASSERT_FALSE(overflow.applied);
  ASSERT_TRUE(std::isfinite(overflow.loss));
  EXPECT_NO_THROW(at_the_end(overflow, 1));
  try {
    at_the_end(step(std::numeric_limits<double>::infinity()), 2);
    FAIL() << "taken for a success";
  } catch (const DivergedError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the loss is inf, 2 steps up to iteration 9 skipped because of a "
                        "non-finite gradient in 0.weight (leaf 2, rank "),
              std::string::npos)
        << text;
  }
}

TEST_F(SnapshotTest, MastersThatAreNotFiniteAreDivergenceOnAllRanks) {
  const optim::StepReport last = step();
  const optim::ShardView shard = optimizer_->shard();
  const std::size_t index = shard.index_of("master");
  std::vector<float> masters = shard.copy(index);
  const auto owner = test::world().all_gather(static_cast<std::int64_t>(masters.size()));
  // In the last rank that owns something.
  int last_owner = test::world().world() - 1;
  while (owner[static_cast<std::size_t>(last_owner)] == 0) --last_owner;
  if (test::world().rank() == last_owner) masters.back() = std::nanf("");
  shard.fill(index, masters);
  try {
    require_not_diverged({.iteration = 9, .skipped_in_row = 0, .last_step = last}, *optimizer_,
                         test::world());
    FAIL() << "taken for a success";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::diverged);
    EXPECT_NE(std::string(error.what()).find("at iteration 9 the weights"), std::string::npos)
        << error.what();
  }
}

TEST_F(SnapshotTest, RestoringGivesTheSameStepsAgain) {
  step();
  const Snapshot saved = snapshot();
  step();
  step();
  const std::string expected = optimizer_->masters_hash();
  buffer_.fill_(9);

  const Progress progress = restore_snapshot(saved, *optimizer_, {{"statistics", buffer_}});
  EXPECT_EQ(progress.iteration, 7);
  EXPECT_FALSE(progress.is_validated);
  EXPECT_TRUE(torch::equal(buffer_, torch::arange(4, torch::kFloat)));
  EXPECT_EQ(snapshot().shard.arrays, saved.shard.arrays);
  step();
  step();
  EXPECT_EQ(optimizer_->masters_hash(), expected);
}

TEST_F(SnapshotTest, ALossScalerIsRestoredWhole) {
  Snapshot saved = snapshot();
  saved.state["loss_scaler"] = {
      {"scale", 512.0}, {"clean_steps", 1999}, {"hysteresis_left", 1}, {"skips_at_floor", 3}};
  restore_snapshot(saved, *optimizer_, {{"statistics", buffer_}});
  EXPECT_EQ(optimizer_->state().scaler, (optim::LossScalerState{512, 1999, 1, 3}));
  EXPECT_EQ(snapshot().state["loss_scaler"], saved.state["loss_scaler"]);
  EXPECT_EQ(step().next_loss_scale, 1024.0F);
  // A checkpoint that knows no hysteresis yet.
  saved.state["loss_scaler"].erase("hysteresis_left");
  restore_snapshot(saved, *optimizer_, {{"statistics", buffer_}});
  EXPECT_EQ(optimizer_->state().scaler, (optim::LossScalerState{512, 1999, 1, 3}));
}

TEST_F(SnapshotTest, AnIncompleteStateIsRefusedAndChangesNothing) {
  step();
  const Snapshot before = snapshot();
  step();
  const Snapshot now = snapshot();
  const auto refused = [&](const std::string& text, const std::function<void(Snapshot&)>& damage) {
    Snapshot saved = before;
    damage(saved);
    try {
      restore_snapshot(saved, *optimizer_, {{"statistics", buffer_}});
      ADD_FAILURE() << "accepted without " << text;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(snapshot().shard.arrays, now.shard.arrays);
    EXPECT_EQ(snapshot().parameters, now.parameters);
    EXPECT_EQ(snapshot().state, now.state);
  };
  refused("loss_scaler", [](Snapshot& saved) { saved.state.erase("loss_scaler"); });
  refused("counter", [](Snapshot& saved) { saved.parameters[0].extra.erase("beta1_power"); });
  refused("exp_avg_sq", [](Snapshot& saved) { saved.shard.arrays.erase("exp_avg_sq"); });
}

/// A small network and its optimizer in a world of its own choice.
class KindOfRun {
 public:
  KindOfRun(const std::string& kind, comm::Communicator& world) {
    torch::manual_seed(5);
    net_ = torch::nn::Sequential(torch::nn::Linear(6, 300), torch::nn::ReLU(),
                                 torch::nn::Linear(300, 1));
    net_->to(torch::kHalf);
    optim::Fp16OptimizerOptions options;
    options.leaves = 4;
    options.static_loss_scale = 1024;
    options.ema_decay = 0.75;
    optimizer_ = std::make_unique<optim::Fp16Optimizer>(inner(kind), world, options);
  }

  optim::StepReport steps(int count, double inject = 1.0) {
    optim::StepReport last;
    for (int i = 0; i < count; ++i) {
      optimizer_->zero_grad();
      for (const int leaf : optimizer_->my_leaves()) {
        const torch::Tensor x = torch::full({2, 6}, 0.25 * (leaf + 1), torch::kHalf);
        optimizer_->backward((net_->forward(x).to(torch::kFloat) - leaf).square().mean() * inject);
      }
      last = optimizer_->step();
    }
    return last;
  }

  optim::Fp16Optimizer& optimizer() { return *optimizer_; }
  torch::Tensor output() {
    const torch::NoGradGuard no_gradients;
    return net_->forward(torch::ones({1, 6}, torch::kHalf));
  }
  Snapshot snapshot() { return take_snapshot(*optimizer_, {}, Progress{.iteration = 3}, {}); }

 private:
  std::unique_ptr<torch::optim::Optimizer> inner(const std::string& kind) {
    using namespace torch::optim;
    if (kind == "sgd")
      return std::make_unique<SGD>(net_->parameters(),
                                   SGDOptions(1e-2).momentum(0.9).nesterov(true));
    return std::make_unique<optim::Lamb>(net_->parameters(),
                                         optim::LambOptions(1e-2).weight_decay(0.01));
  }

  torch::nn::Sequential net_{nullptr};
  std::unique_ptr<optim::Fp16Optimizer> optimizer_;
};

TEST(Divergence, ARunThatNeverAppliedAStepAtAFixedScaleGotNowhere) {
  const auto at_the_end = [](KindOfRun& run, const optim::StepReport& last) {
    require_not_diverged({.iteration = 3, .skipped_in_row = 3, .last_step = last}, run.optimizer(),
                         test::world());
  };
  KindOfRun never("sgd", test::world());
  try {
    at_the_end(never, never.steps(3, 1e7));
    FAIL() << "taken for a success";
  } catch (const DivergedError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("got nowhere: 3 steps up to iteration 3 skipped"), std::string::npos)
        << text;
    EXPECT_NE(text.find("none applied, at loss scale 1024"), std::string::npos) << text;
  }
  KindOfRun late("sgd", test::world());
  late.steps(1);
  EXPECT_NO_THROW(at_the_end(late, late.steps(3, 1e7)));
}

class KindTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KindTest, MastersAndAveragesEqualThoseOfOneRank) {
  test::SoloWorld alone;
  KindOfRun many(GetParam(), test::world());
  KindOfRun one(GetParam(), alone);
  many.steps(5);
  one.steps(5);
  EXPECT_EQ(many.optimizer().masters_hash(), one.optimizer().masters_hash());
  const Snapshot whole = one.snapshot();
  const Snapshot mine = many.snapshot();
  const std::size_t moments = GetParam() == "sgd" ? 1 : 2;
  ASSERT_EQ(whole.shard.arrays.size(), 2 + moments);
  ASSERT_EQ(whole.shard.intervals.front().begin, 0);
  for (const auto& [name, values] : mine.shard.arrays) {
    std::vector<float> expected;
    for (const comm::Interval piece : mine.shard.intervals) {
      const auto& all = whole.shard.arrays.at(name);
      expected.insert(expected.end(), all.begin() + piece.begin, all.begin() + piece.end);
    }
    EXPECT_EQ(values, expected) << name;
  }
  EXPECT_NE(whole.shard.arrays.at("ema"), whole.shard.arrays.at("master"));

  const torch::Tensor of_masters = many.output();
  many.optimizer().publish_ema();
  one.optimizer().publish_ema();
  EXPECT_TRUE(torch::equal(many.output(), one.output()));
  EXPECT_FALSE(torch::equal(many.output(), of_masters));
  many.optimizer().publish_masters();
  EXPECT_TRUE(torch::equal(many.output(), of_masters));
}

TEST_P(KindTest, RestoringGivesTheSameStepsAgain) {
  KindOfRun run(GetParam(), test::world());
  run.steps(2);
  const Snapshot saved = run.snapshot();
  run.steps(3);
  const Snapshot expected = run.snapshot();
  restore_snapshot(saved, run.optimizer(), {});
  EXPECT_EQ(run.snapshot().shard.arrays, saved.shard.arrays);
  run.steps(3);
  EXPECT_EQ(run.snapshot().shard.arrays, expected.shard.arrays);
  EXPECT_EQ(run.snapshot().parameters, expected.parameters);
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindTest, ::testing::Values("sgd", "lamb"));

}  // namespace
}  // namespace vsr::runtime
