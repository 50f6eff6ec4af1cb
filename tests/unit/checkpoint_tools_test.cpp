// SPDX-License-Identifier: Apache-2.0
// What `vsr checkpoint` does, by its functions: describe, compare, cut anew, keep.
#include <gtest/gtest.h>

#include <cerrno>

#include "comm/error.hpp"
#include "runtime/checkpoint/file_faults.hpp"
#include "runtime/checkpoint/inspect.hpp"
#include "runtime/checkpoint/keeping.hpp"
#include "runtime/checkpoint/new_checkpoint.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::flip_bit;
using test::message_of;
using test::sample_snapshot;
using test::TemporaryFolder;
using test::write_changed;
using test::write_sample;

const std::vector<std::string> kArraysWithAverage = {"master", "exp_avg", "exp_avg_sq", "ema"};

TEST(Inspect, DescribesACheckpoint) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 5, 2);
  write_sample(folder.path(), 10, 3);
  const nlohmann::json facts = describe(choose_checkpoint(folder.path()).header);
  EXPECT_EQ(facts.at("iteration"), 10);
  EXPECT_EQ(facts.at("ranks"), 3);
  EXPECT_EQ(facts.at("arrays"), nlohmann::json({"exp_avg", "exp_avg_sq", "master"}));
  EXPECT_EQ(facts.at("parameters").size(), 6U);
  EXPECT_EQ(facts.at("parameters")[0], nlohmann::json({{"name", "head.weight"},
                                                       {"shape", {16, 3, 3, 3}},
                                                       {"dtype", "fp16"},
                                                       {"elements", 432},
                                                       {"steps", 10}}));
  EXPECT_EQ(facts.at("buffers")[1].at("dtype"), "int64");
  EXPECT_EQ(facts.at("state").at("scaler").at("scale"), 65536.0);
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder / "ckpt/step_00000010"))
    if (entry.path().extension() == ".h5") bytes += static_cast<std::int64_t>(entry.file_size());
  EXPECT_EQ(facts.at("size_bytes"), bytes);
}

TEST(Inspect, PassesOverADamagedOneAndSaysSo) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 5, 1);
  const fs::path step = write_sample(folder.path(), 10, 1);
  flip_bit(step / "global.h5", 100, 3);
  const ChosenCheckpoint chosen = choose_checkpoint(folder.path());
  EXPECT_EQ(chosen.header.snapshot.iteration, 5);
  ASSERT_EQ(chosen.passed_over.size(), 1U);
  expect_in("global.h5' was changed", chosen.passed_over[0]);
  expect_in("global.h5' was changed",
            message_of<CheckpointError>([&] { choose_checkpoint(step); }));
  expect_in("holds no array ema, only: exp_avg, exp_avg_sq, master",
            message_of<ConfigurationError>([&] { with_array_only(chosen.header, "ema"); }));
}

TEST(Compare, EqualOnOtherRanks) {
  const TemporaryFolder folder;
  const fs::path a = write_sample(folder / "a", 5, 2);
  const fs::path b = write_sample(folder / "b", 5, 3);
  const Comparison comparison = compare_checkpoints(read_header(a), read_header(b));
  EXPECT_TRUE(comparison.is_equal());
  EXPECT_EQ(comparison.equal,
            (std::vector<std::string>{"exp_avg: 6 of 6 parameters have the same bits",
                                      "exp_avg_sq: 6 of 6 parameters have the same bits",
                                      "master: 6 of 6 parameters have the same bits"}));
}

TEST(Compare, NamesEveryDifference) {
  const TemporaryFolder folder;
  const fs::path a = write_sample(folder / "a", 5, 2);
  const fs::path b = write_changed(folder / "b", [](Snapshot& snapshot) {
    snapshot.parameters[1].name = "head.offset";
    snapshot.parameters[2].steps = 99;
    snapshot.buffers[0].bytes[0] = std::byte{7};
    snapshot.state["scaler"]["scale"] = 1024.0;
    snapshot.state.erase("lr");
    // Sorted by place on the index: the weight has elements [449, 6449).
    snapshot.shard.arrays["master"][450] += 0.5F;
    snapshot.shard.arrays["master"][460] -= 2.0F;
    snapshot.shard.arrays["exp_avg"][448] = -snapshot.shard.arrays["exp_avg"][448];
    snapshot.shard.arrays["ema"] = snapshot.shard.arrays["master"];
  });
  const Comparison comparison = compare_checkpoints(read_header(a), read_header(b));
  std::string all;
  for (const std::string& line : comparison.differences) all += line + "\n";
  EXPECT_FALSE(comparison.is_equal());
  expect_in("parameter head.bias: missing in the other\n", all);
  expect_in("parameter head.offset: only in the other\n", all);
  expect_in("counters of slope: fp16, 12 steps, {\"beta1_power\":0.3", all);
  expect_in("in the other fp16, 99 steps", all);
  expect_in("buffer norm.running_mean: values differ\n", all);
  expect_in("state.lr: missing in the other\n", all);
  expect_in("state.scaler.scale: 65536.0, in the other 1024.0\n", all);
  expect_in("master body.weight: 2 of 6000 values differ, at most by 2 (element 11)\n", all);
  expect_in("exp_avg slope: 1 of 1 values differ", all);
  expect_in("array ema: only in the other\n", all);
  expect_in("exp_avg_sq: 5 of 5 parameters have the same bits", comparison.equal.at(1));
}

TEST(Reshard, IsCutAsARunCutsIt) {
  const std::vector<ParameterRecord> parameters = test::sample_parameters(400);
  for (const int world : {1, 2, 3, 7, 20}) {
    std::vector<comm::Interval> all;
    for (int rank = 0; rank < world; ++rank)
      for (const comm::Interval interval : intervals_of_rank(parameters, rank, world))
        all.push_back(interval);
    std::sort(all.begin(), all.end(),
              [](comm::Interval a, comm::Interval b) { return a.begin < b.begin; });
    std::int64_t next = 0;
    for (const comm::Interval interval : all) {
      EXPECT_EQ(interval.begin, next);
      next = interval.end;
    }
    EXPECT_EQ(next, total_elements(parameters));
  }
  // Two segments of FP16 (6 padded blocks: 448 + 64 + 6016 elements) and FP32 (1 block).
  EXPECT_EQ(intervals_of_rank(parameters, 1, 2),
            (std::vector<comm::Interval>{{449 + 4096 - 512, 6449}}));
}

TEST(Reshard, KeepsEveryBit) {
  const TemporaryFolder folder;
  const fs::path source = write_sample(folder.path(), 5, 3, 40000, kArraysWithAverage);
  const CheckpointHeader header = read_header(source);
  for (const int world : {1, 2, 8, 60}) {
    const fs::path target = folder / ("cut_" + std::to_string(world));
    reshard(header, target, world);
    verify_checkpoint(target);
    const CheckpointHeader cut = read_header(target);
    EXPECT_EQ(cut.manifest.world, world);
    EXPECT_EQ(cut.snapshot.parameters, header.snapshot.parameters);
    EXPECT_EQ(cut.snapshot.state, header.snapshot.state);
    EXPECT_TRUE(compare_checkpoints(header, cut).is_equal()) << world;
    for (int rank = 0; rank < world; ++rank)
      EXPECT_EQ(cut.manifest.shards[static_cast<std::size_t>(rank)].intervals,
                intervals_of_rank(header.snapshot.parameters, rank, world));
  }
}

// As typed where one works: a name without a folder, with and without a slash behind it.
TEST(Reshard, TakesABareName) {
  const TemporaryFolder folder;
  const fs::path source = fs::absolute(write_sample(folder.path(), 5, 2));
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  for (const char* name : {"plain", "slashed/"}) {
    reshard(read_header(source), name, 3);
    verify_checkpoint(name);
    EXPECT_EQ(read_header(name).manifest.world, 3) << name;
  }
  fs::current_path(before);
  EXPECT_TRUE(test::hidden_names(folder.path()).empty());
}

TEST(Reshard, RefusesWhatIsThereAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const fs::path source = write_sample(folder.path(), 5, 2, 40000);
  const CheckpointHeader header = read_header(source);
  expect_in("exists already", message_of<ConfigurationError>([&] { reshard(header, source, 3); }));
  expect_in("--ranks 0", message_of<ConfigurationError>([&] { reshard(header, folder / "x", 0); }));
  set_fault_hook([](FileOperation operation, const fs::path& path) {
    return operation == FileOperation::write && path.filename() == "global.h5" ? ENOSPC : 0;
  });
  EXPECT_THROW(reshard(header, folder / "x", 3), IoError);
  set_fault_hook({});
  flip_bit(source / "shard_00001-of-00002.h5",
           static_cast<std::size_t>(header.manifest.shards[1].arrays.at("master").offset_bytes) + 5,
           2);
  expect_in("array 'master'",
            message_of<CheckpointError>([&] { reshard(header, folder / "x", 3); }));
  EXPECT_FALSE(fs::exists(folder / "x"));
  EXPECT_TRUE(test::hidden_names(folder.path()).empty());
}

TEST(Reshard, EachFailureLeavesNothingOrAll) {
  const TemporaryFolder folder;
  const CheckpointHeader header = read_header(write_sample(folder.path(), 5, 2));
  const fs::path target = folder / "cut";
  int failures = 0;
  for (int fail_at = 1;; ++fail_at) {
    int seen = 0;
    bool has_thrown = false;
    set_fault_hook([&](FileOperation, const fs::path&) { return ++seen == fail_at ? EIO : 0; });
    try {
      reshard(header, target, 3);
    } catch (const IoError&) {
      has_thrown = true;
    }
    set_fault_hook({});
    EXPECT_TRUE(test::hidden_names(folder.path()).empty()) << fail_at;
    if (fs::exists(target)) verify_checkpoint(target);
    if (!has_thrown) break;
    ++failures;
    fs::remove_all(target);
  }
  EXPECT_TRUE(fs::exists(target));
  EXPECT_GT(failures, 20);
}

/// "600 newest, 500 not needed, …" with a + before what is kept.
std::string kept_of(const fs::path& run, const KeepingRules& rules) {
  std::string text;
  for (const KeptOrNot& entry : decide_keeping(run, rules))
    text += (text.empty() ? "" : ", ") + std::string(entry.is_kept ? "+" : "") +
            std::to_string(iteration_of(entry.folder.filename().string())) + " " +
            entry.reason.substr(0, entry.reason.find(':'));
  return text;
}

void write_validated(const fs::path& run, std::int64_t iteration, double psnr_y) {
  const fs::path folder = run / "ckpt" / step_name(iteration);
  create_folders(folder);
  Snapshot snapshot = sample_snapshot(iteration, 0, 1);
  snapshot.state["validation"] = {{"psnr_y", psnr_y}};
  write_global_files(folder, snapshot, {write_shard(folder, snapshot, 0, 1)});
}

TEST(Keeping, FollowsTheRules) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 6; ++i) write_validated(folder.path(), i * 100, i == 2 ? 33.0 : 30.0);
  EXPECT_EQ(kept_of(folder.path(), {1, 0, false}),
            "+600 newest, 500 not needed, 400 not needed, 300 not needed, 200 not needed, "
            "100 not needed");
  EXPECT_EQ(kept_of(folder.path(), {2, 300, true}),
            "+600 newest, +500 newest, 400 not needed, +300 every 300, +200 best, 100 not needed");
  EXPECT_THROW(decide_keeping(folder.path(), {0, 0, false}), ArgumentError);
}

TEST(Keeping, TheBestIsTheOneThatTheRunNamed) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 4; ++i) write_validated(folder.path(), i * 100, i == 2 ? 33.0 : 30.0);
  const fs::path checkpoints = folder.path() / "ckpt";
  write_pointer(checkpoints / step_name(300), "best");
  EXPECT_EQ(kept_of(folder.path(), {1, 0, true}),
            "+400 newest, +300 best, 200 not needed, 100 not needed");
  delete_unkept(folder.path(), decide_keeping(folder.path(), {1, 0, true}));
  EXPECT_EQ(pointed_at(folder.path(), "best"), checkpoints / step_name(300));
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 2U);
  delete_unkept(folder.path(), decide_keeping(folder.path(), {1, 0, false}));
  EXPECT_FALSE(fs::exists(checkpoints / "best"));  // never names one that is gone
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1U);
  test::write_bytes(checkpoints / "best", "../../elsewhere 0\n");
  EXPECT_EQ(pointed_at(folder.path(), "best"), fs::path());
}

TEST(Keeping, NeverCountsADamagedOne) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 3; ++i) write_sample(folder.path(), i * 100, 1);
  const fs::path newest = folder / "ckpt/step_00000300";
  const auto place = read_header(newest).manifest.shards[0].arrays.at("exp_avg").offset_bytes;
  flip_bit(newest / "shard_00000-of-00001.h5", static_cast<std::size_t>(place) + 4, 0);
  EXPECT_EQ(kept_of(folder.path(), {1, 0, false}), "300 damaged, +200 newest, 100 not needed");
  fs::remove(folder / "ckpt/step_00000200/MANIFEST.json");
  EXPECT_EQ(kept_of(folder.path(), {1, 0, false}), "300 damaged, 200 damaged, +100 newest");
  fs::remove(folder / "ckpt/step_00000100/global.h5");
  EXPECT_EQ(kept_of(folder.path(), {1, 0, false}), "+300 damaged, +200 damaged, +100 damaged");
}

}  // namespace
}  // namespace vsr::runtime
