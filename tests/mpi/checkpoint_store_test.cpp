// SPDX-License-Identifier: Apache-2.0
// Saving and loading on all ranks together: equal bits for any numbers of ranks, and failures of
// one rank that all ranks learn of.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/checkpoint/file_faults.hpp"
#include "runtime/checkpoint/match_parameters.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::same_bits;
using test::sample_intervals;
using test::sample_parameters;
using test::sample_snapshot;
using test::world;

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointStoreTest() {
    if (rank_ == 0) own_ = std::make_unique<test::TemporaryFolder>();
    run_ = world().broadcast_string(rank_ == 0 ? own_->path().string() : "", 0);
    store_ = std::make_unique<CheckpointStore>(run_, world());
  }
  ~CheckpointStoreTest() override { set_fault_hook({}); }

  Snapshot snapshot(std::int64_t iteration) const {
    return sample_snapshot(iteration, rank_, world_);
  }

  std::optional<LoadedCheckpoint> load(ResumePolicy policy = {}) {
    return store_->load(policy, [this](const Snapshot& header) {
      match_parameters(sample_parameters(400), header.parameters);
      return sample_intervals(header.parameters, rank_, world_);
    });
  }

  void expect_equals(const LoadedCheckpoint& loaded, std::int64_t iteration) const {
    const Snapshot expected = snapshot(iteration);
    EXPECT_EQ(loaded.snapshot.iteration, iteration);
    EXPECT_EQ(loaded.snapshot.parameters, expected.parameters);
    EXPECT_EQ(loaded.snapshot.buffers, expected.buffers);
    EXPECT_EQ(loaded.snapshot.state, expected.state);
    EXPECT_EQ(loaded.snapshot.shard.intervals, expected.shard.intervals);
    ASSERT_EQ(loaded.snapshot.shard.arrays.size(), 3U);
    for (const auto& [name, values] : expected.shard.arrays)
      EXPECT_TRUE(same_bits(loaded.snapshot.shard.arrays.at(name), values)) << name;
  }

  /// Message of the AgreedError that `action` throws, the same on all ranks.
  template <typename Action>
  std::string agreed(ExitCode code, Action action) {
    std::string message = "threw nothing";
    try {
      action();
      ADD_FAILURE() << message;
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.exit_code(), code) << error.what();
      message = error.what();
    }
    const auto all = world().all_gather_strings(message);
    for (const std::string& other : all) EXPECT_EQ(other, message);
    return message;
  }

  void on_rank_0(const std::function<void()>& action) {
    world().barrier();
    if (rank_ == 0) action();
    world().barrier();
  }

  fs::path step(std::int64_t iteration) const { return store_->folder() / step_name(iteration); }

  const int rank_ = world().rank();
  const int world_ = world().world();
  std::unique_ptr<test::TemporaryFolder> own_;
  fs::path run_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(CheckpointStoreTest, LoadsWhatItSaved) {
  EXPECT_FALSE(load().has_value());
  EXPECT_TRUE(store_->newest_valid().empty());
  EXPECT_EQ(store_->save(snapshot(12000)), step(12000));
  EXPECT_EQ(step(12000).filename(), "step_00012000");
  const auto loaded = load();
  ASSERT_TRUE(loaded.has_value());
  expect_equals(*loaded, 12000);
  EXPECT_EQ(loaded->folder, step(12000));
  EXPECT_EQ(loaded->saved_world, world_);
  EXPECT_TRUE(loaded->notices.empty());
  EXPECT_EQ(store_->newest_valid(), step(12000));
  EXPECT_TRUE(test::hidden_names(store_->folder()).empty());
  const std::string manifest = test::read_bytes(step(12000) / "MANIFEST.json");
  EXPECT_EQ(test::read_bytes(store_->folder() / "LATEST"),
            "step_00012000 " +
                checksum_text(checksum(std::as_bytes(std::span<const char>(manifest)))) + "\n");
  verify_checkpoint(step(12000));
  world().barrier();
}

TEST_F(CheckpointStoreTest, LoadsWhatAnyNumberOfRanksSaved) {
  for (const int writers : {1, 2, 3, 4, 5, 8}) {
    on_rank_0([&] { test::write_sample(run_, writers, writers); });
    const auto loaded = load();
    ASSERT_TRUE(loaded.has_value());
    EXPECT_EQ(loaded->saved_world, writers);
    expect_equals(*loaded, writers);
  }
}

TEST_F(CheckpointStoreTest, RanksWithoutElements) {
  // 7 elements are one block, so only one rank has any.
  Snapshot tiny;
  tiny.iteration = 3;
  tiny.parameters = {{"empty", {0}, "fp16", 0, 0, 0, {}}, {"p", {7}, "fp16", 0, 7, 1, {}}};
  const comm::Interval mine = comm::shard_of(1024, rank_, world_);
  tiny.shard.intervals = {comm::intersect(mine, {0, 7})};
  tiny.shard.arrays["master"] = test::sample_values("master", 3, tiny.shard.intervals);
  store_->save(tiny);
  const auto loaded = store_->load({}, [&](const Snapshot& header) {
    EXPECT_EQ(header.parameters, tiny.parameters);
    return std::vector<comm::Interval>{{0, 7}};
  });
  ASSERT_TRUE(loaded.has_value());
  EXPECT_TRUE(same_bits(loaded->snapshot.shard.arrays.at("master"),
                        test::sample_values("master", 3, {{0, 7}})));
  verify_checkpoint(step(3));
  world().barrier();
}

TEST_F(CheckpointStoreTest, NoParametersAtAll) {
  Snapshot nothing;
  nothing.iteration = 1;
  nothing.shard.arrays["master"] = {};
  store_->save(nothing);
  const auto loaded =
      store_->load({}, [](const Snapshot&) { return std::vector<comm::Interval>{}; });
  ASSERT_TRUE(loaded.has_value());
  EXPECT_TRUE(loaded->snapshot.parameters.empty());
}

TEST_F(CheckpointStoreTest, ASecondSaveOfAnIterationReplacesTheFirst) {
  store_->save(snapshot(5));
  Snapshot other = snapshot(5);
  other.state = {{"second", true}};
  store_->save(other);
  EXPECT_EQ(load()->snapshot.state, other.state);
  EXPECT_TRUE(test::hidden_names(store_->folder()).empty());
  world().barrier();
}

TEST_F(CheckpointStoreTest, EveryFailureOnOneRankIsAgreedAndLosesNothing) {
  store_->save(snapshot(1));
  for (const int failing : {0, world_ - 1}) {
    int failures = 0;
    for (int fail_at = 1;; ++fail_at) {
      int seen = 0;
      set_fault_hook([&](FileOperation, const fs::path&) {
        return rank_ == failing && ++seen == fail_at ? ENOSPC : 0;
      });
      std::string message;
      try {
        store_->save(snapshot(2));
      } catch (const AgreedError& error) {
        message = error.what();
        EXPECT_EQ(error.exit_code(), ExitCode::io);
        EXPECT_EQ(error.rank(), failing);
      }
      set_fault_hook({});
      for (const std::string& other : world().all_gather_strings(message))
        ASSERT_EQ(other, message);
      if (message.empty()) break;
      ++failures;
      expect_in("No space left on device", message);
      EXPECT_TRUE(test::hidden_names(store_->folder()).empty()) << message;
      const auto loaded = load();
      ASSERT_TRUE(loaded.has_value());
      // A failure after the rename leaves the new one in place.
      expect_equals(*loaded, loaded->snapshot.iteration == 2 ? 2 : 1);
      EXPECT_TRUE(loaded->notices.empty());
      on_rank_0([&] { fs::remove_all(step(2)); });
    }
    EXPECT_GT(failures, failing == 0 ? 15 : 4);
    expect_equals(*load(), 2);
    on_rank_0([&] { fs::remove_all(step(2)); });
  }
}

TEST_F(CheckpointStoreTest, ASaveInTheBackgroundIsPublishedByTheSecondAdvance) {
  store_->save(snapshot(1));
  store_->begin_save(snapshot(2));
  EXPECT_TRUE(store_->in_flight());
  EXPECT_THROW(store_->begin_save(snapshot(3)), ArgumentError);
  EXPECT_FALSE(fs::exists(step(2)));
  while (store_->is_busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::int64_t bytes =
      elements_of(snapshot(2).shard.intervals) * 3 * static_cast<std::int64_t>(sizeof(float));
  EXPECT_EQ(store_->written().all_bytes, bytes);
  EXPECT_EQ(store_->written().done_bytes, bytes);
  EXPECT_FALSE(store_->advance().has_value());  // waits for the shards of all ranks
  EXPECT_TRUE(store_->in_flight());
  EXPECT_EQ(store_->advance(), step(2));
  EXPECT_FALSE(store_->in_flight());
  EXPECT_FALSE(store_->is_busy());
  EXPECT_THROW(store_->advance(), ArgumentError);
  expect_equals(*load(), 2);
  verify_checkpoint(step(2));
  world().barrier();
}

TEST_F(CheckpointStoreTest, ItsOwnerMayChangeWhatWasSavedAtOnce) {
  Snapshot changing = snapshot(4);
  store_->begin_save(changing);
  for (auto& [name, values] : changing.shard.arrays) std::fill(values.begin(), values.end(), 0.0F);
  while (!store_->advance()) {
  }
  expect_equals(*load(), 4);
}

TEST_F(CheckpointStoreTest, ASaveGivenUpLeavesNothing) {
  store_->save(snapshot(1));
  for (int i = 0; i < 60; ++i) {
    // A rank that still writes must not leave its file behind those who are done: it begins later
    // and later, until one meets another rank's removal.
    set_fault_hook([&](FileOperation, const fs::path&) {
      if (rank_ == i % world_) std::this_thread::sleep_for(std::chrono::microseconds(10 * i));
      return 0;
    });
    store_->begin_save(snapshot(2));
    store_.reset();
    set_fault_hook({});
    world().barrier();
    EXPECT_TRUE(test::hidden_names(run_ / "ckpt").empty()) << i;
    world().barrier();
    store_ = std::make_unique<CheckpointStore>(run_, world());
  }
  expect_equals(*load(), 1);
}

TEST_F(CheckpointStoreTest, ABadSnapshotOfOneRankIsAgreed) {
  Snapshot bad = snapshot(2);
  if (rank_ == world_ - 1) bad.shard.arrays["master"].emplace_back(1.0F);
  expect_in("array 'master'", agreed(ExitCode::internal, [&] { store_->save(bad); }));
  Snapshot gap = snapshot(2);
  if (rank_ == 0) {
    for (auto& [name, values] : gap.shard.arrays) values.pop_back();
    --gap.shard.intervals.back().end;
  }
  expect_in("do not fit together", agreed(ExitCode::internal, [&] { store_->save(gap); }));
  EXPECT_FALSE(load().has_value());
  EXPECT_TRUE(test::hidden_names(store_->folder()).empty());
  world().barrier();
}

TEST_F(CheckpointStoreTest, ADamagedOneIsSetAsideAndTheNextOlderTaken) {
  store_->save(snapshot(1));
  store_->save(snapshot(2));
  store_->save(snapshot(3));
  on_rank_0([&] {
    // In the shard of the last rank: only it reads that block.
    const std::string name = shard_name(world_ - 1, world_);
    const auto entry = read_header(step(3)).manifest.shards.back();
    const auto offset = entry.arrays.at("master").offset_bytes;
    test::flip_bit(step(3) / (entry.arrays.at("master").checksums.empty() ? "global.h5" : name),
                   static_cast<std::size_t>(offset), 5);
    fs::remove(step(2) / "MANIFEST.json");
  });
  const auto loaded = load();
  ASSERT_TRUE(loaded.has_value());
  expect_equals(*loaded, 1);
  ASSERT_EQ(loaded->notices.size(), 2U);
  expect_in("was changed", loaded->notices[0]);
  expect_in("renamed to step_00000003.corrupt", loaded->notices[0]);
  expect_in("MANIFEST.json is missing", loaded->notices[1]);
  const auto all = world().all_gather_strings(loaded->notices[0]);
  for (const std::string& other : all) EXPECT_EQ(other, loaded->notices[0]);
  EXPECT_FALSE(fs::exists(step(3)));
  EXPECT_TRUE(fs::exists(store_->folder() / "step_00000003.corrupt"));
  world().barrier();
}

TEST_F(CheckpointStoreTest, OnlyBadOnesAreNoFreshStart) {
  store_->save(snapshot(1));
  store_->save(snapshot(2));
  on_rank_0([&] {
    for (const int iteration : {1, 2}) test::write_bytes(step(iteration) / "global.h5", "x");
  });
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string message = agreed(ExitCode::data, [&] { load(); });
    expect_in("no usable checkpoint", message);
    expect_in("step_00000001", message);
    expect_in("step_00000002", message);
  }
}

TEST_F(CheckpointStoreTest, PoliciesOfResume) {
  expect_in("there is none", agreed(ExitCode::data, [&] { load({ResumePolicy::Kind::must, {}}); }));
  agreed(ExitCode::data, [&] { load({ResumePolicy::Kind::path, run_ / "nowhere"}); });
  store_->save(snapshot(1));
  store_->save(snapshot(2));
  expect_equals(*load({ResumePolicy::Kind::must, {}}), 2);
  expect_equals(*load({ResumePolicy::Kind::path, run_}), 2);
  expect_equals(*load({ResumePolicy::Kind::path, step(1)}), 1);
  on_rank_0([&] { test::write_bytes(step(2) / "global.h5", "x"); });
  const auto loaded = load({ResumePolicy::Kind::path, run_});
  expect_equals(*loaded, 1);
  ASSERT_EQ(loaded->notices.size(), 1U);
  EXPECT_TRUE(fs::exists(step(2)));  // a given path is only read
  agreed(ExitCode::data, [&] { load({ResumePolicy::Kind::path, step(2)}); });
  world().barrier();
}

TEST_F(CheckpointStoreTest, AnotherNetworkIsRefusedAndTheCheckpointKept) {
  store_->save(snapshot(1));
  const std::string message = agreed(ExitCode::configuration, [&] {
    store_->load({}, [&](const Snapshot& header) {
      if (rank_ == world_ - 1) match_parameters(sample_parameters(401), header.parameters);
      return std::vector<comm::Interval>{};
    });
  });
  expect_in("checkpoint of another network", message);
  expect_in("body.weight is [400, 3, 5]", message);
  EXPECT_TRUE(fs::exists(step(1)));
  world().barrier();
}

TEST_F(CheckpointStoreTest, AnotherOptimizerIsRefusedAndTheCheckpointKept) {
  store_->save(snapshot(1));
  const std::string message = agreed(ExitCode::configuration, [&] {
    store_->load({}, [&](const Snapshot& header) {
      match_arrays({"master", "momentum_buffer"}, header.shard);
      return std::vector<comm::Interval>{};
    });
  });
  expect_in("checkpoint of another optimizer: 3 arrays differ", message);
  expect_in("missing in the checkpoint: momentum_buffer", message);
  expect_in("only in the checkpoint: exp_avg_sq", message);
  expect_equals(*load(), 1);
  world().barrier();
}

TEST_F(CheckpointStoreTest, PruneKeepsEveryMthAndTheBest) {
  for (const int iteration : {10, 15, 20, 25, 30, 35}) store_->save(snapshot(iteration));
  EXPECT_EQ(store_->prune({.last = 2, .every = 20, .best = 15}),
            (std::vector<fs::path>{step(25), step(10)}));
  EXPECT_TRUE(test::read_bytes(store_->folder() / "best").starts_with("step_00000015 "));
  world().barrier();  // all have read it
  EXPECT_EQ(store_->prune({.last = 1, .best = 20}), (std::vector<fs::path>{step(30), step(15)}));
  EXPECT_TRUE(test::read_bytes(store_->folder() / "best").starts_with("step_00000020 "));
  expect_equals(*load(), 35);
  world().barrier();
}

TEST_F(CheckpointStoreTest, PruneKeepsTheNewestValidOnes) {
  for (const int iteration : {1, 2, 3, 4, 5}) store_->save(snapshot(iteration));
  on_rank_0([&] { fs::remove(step(5) / "MANIFEST.json"); });
  EXPECT_EQ(store_->prune({.last = 2}), (std::vector<fs::path>{step(2), step(1)}));
  EXPECT_TRUE(fs::exists(step(3)));
  EXPECT_TRUE(fs::exists(step(4)));
  EXPECT_TRUE(fs::exists(step(5)));
  on_rank_0([&] { fs::remove(step(4) / "global.h5"); });
  EXPECT_TRUE(store_->prune({.last = 1}).empty());
  expect_equals(*load(), 3);
  EXPECT_THROW(store_->prune({.last = 0}), ArgumentError);
  store_->save(snapshot(6));
  set_fault_hook([this](FileOperation operation, const fs::path&) {
    return rank_ == 0 && operation == FileOperation::rename ? EROFS : 0;
  });
  expect_in("Read-only file system", agreed(ExitCode::io, [&] { store_->prune({.last = 1}); }));
  set_fault_hook({});
  EXPECT_TRUE(fs::exists(step(3)));
  world().barrier();
  EXPECT_EQ(store_->prune({.last = 1}), (std::vector<fs::path>{step(3)}));
  expect_equals(*load(), 6);
}

}  // namespace
}  // namespace vsr::runtime
