// SPDX-License-Identifier: Apache-2.0
// Reading without MPI: any pieces from any number of shards, every damage found and named, and a
// process that dies at any point of a save loses nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/file_faults.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::flip_bit;
using test::read_bytes;
using test::same_bits;
using test::sample_snapshot;
using test::sample_values;
using test::TemporaryFolder;
using test::write_bytes;
using test::write_sample;

std::string refusal(const fs::path& step) {
  return test::message_of<CheckpointError>([&] { verify_checkpoint(step); });
}

TEST(Reader, AnyRanksReadWhatAnyRanksWrote) {
  for (const int writers : {1, 2, 3, 4, 5, 8}) {
    const TemporaryFolder folder;
    const fs::path step = write_sample(folder.path(), 7, writers);
    const CheckpointHeader header = read_header(step);
    EXPECT_EQ(header.manifest.world, writers);
    for (const int readers : {1, 2, 3, 4, 5, 8, 11})
      for (int rank = 0; rank < readers; ++rank) {
        const Snapshot expected = sample_snapshot(7, rank, readers);
        const ShardData shard = read_shard(header, expected.shard.intervals);
        EXPECT_EQ(shard.intervals, expected.shard.intervals);
        ASSERT_EQ(shard.arrays.size(), 3U);
        for (const auto& [name, values] : expected.shard.arrays)
          EXPECT_TRUE(same_bits(shard.arrays.at(name), values))
              << name << ": " << writers << " to " << readers << ", rank " << rank;
      }
  }
}

TEST(Reader, PiecesAcrossChecksumBlocks) {
  const TemporaryFolder folder;
  const fs::path step = write_sample(folder.path(), 7, 3, 40000);  // 600 k elements
  const CheckpointHeader header = read_header(step);
  const std::vector<comm::Interval> wanted = {
      {0, 1}, {5, 5}, {262143, 262145}, {300000, 524289}, {600455, 600456}};
  EXPECT_TRUE(same_bits(read_shard(header, wanted).arrays.at("exp_avg"),
                        sample_values("exp_avg", 7, wanted)));
  EXPECT_TRUE(read_shard(header, {}).arrays.at("master").empty());
  EXPECT_THROW(read_shard(header, {{0, 600457}}), ArgumentError);
  EXPECT_THROW(read_shard(header, {{10, 20}, {15, 30}}), ArgumentError);
}

TEST(Reader, GivesParametersWithoutRanks) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 5, 2);
  const fs::path step = write_sample(folder.path(), 10, 3);
  for (const fs::path& path : {folder.path(), step, folder.path() / "ckpt"}) {
    const StoredParameters stored = read_parameters(path);
    const Snapshot expected = sample_snapshot(10, 0, 1);
    EXPECT_EQ(stored.iteration, 10);
    EXPECT_EQ(stored.parameters, expected.parameters);
    EXPECT_EQ(stored.buffers, expected.buffers);
    EXPECT_EQ(stored.state, expected.state);
    ASSERT_EQ(stored.masters.size(), expected.parameters.size());
    for (std::size_t i = 0; i < stored.masters.size(); ++i) {
      const auto& parameter = expected.parameters[i];
      EXPECT_TRUE(same_bits(
          stored.masters[i],
          sample_values("master", 10, {{parameter.begin, parameter.begin + parameter.numel}})));
    }
  }
}

TEST(Reader, GivesAveragesWhereTheyWereKept) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 5, 3, 400, {"master", "momentum_buffer", "ema"});
  const StoredParameters stored = read_parameters(folder.path());
  ASSERT_EQ(stored.masters.size(), stored.parameters.size());
  ASSERT_EQ(stored.averages.size(), stored.parameters.size());
  for (std::size_t i = 0; i < stored.parameters.size(); ++i) {
    const auto& parameter = stored.parameters[i];
    const std::vector<comm::Interval> whole = {
        {parameter.begin, parameter.begin + parameter.numel}};
    EXPECT_TRUE(same_bits(stored.masters[i], sample_values("master", 5, whole)));
    EXPECT_TRUE(same_bits(stored.averages[i], sample_values("ema", 5, whole)));
  }
  write_sample(folder.path(), 6, 2);
  EXPECT_TRUE(read_parameters(folder.path()).averages.empty());
}

TEST(Reader, NamesTheArraysInTheHeader) {
  const TemporaryFolder folder;
  const auto header = read_header(write_sample(folder.path(), 5, 2, 400, {"master", "ema"}));
  ASSERT_EQ(header.snapshot.shard.arrays.size(), 2U);
  EXPECT_TRUE(header.snapshot.shard.arrays.at("ema").empty());
  EXPECT_TRUE(header.snapshot.shard.intervals.empty());
}

TEST(Reader, TakesTheNewestThatIsValid) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 5, 2);
  const fs::path newest = write_sample(folder.path(), 10, 2);
  flip_bit(newest / "shard_00001-of-00002.h5", 20000, 3);
  EXPECT_EQ(read_parameters(folder.path()).iteration, 5);
  EXPECT_TRUE(fs::exists(newest));  // reading renames nothing
  fs::remove(folder.path() / "ckpt" / "step_00000005" / "global.h5");
  try {
    read_parameters(folder.path());
    FAIL();
  } catch (const CheckpointError& error) {
    expect_in("step_00000010", error.what());
    expect_in("step_00000005", error.what());
    expect_in("global.h5 is missing", error.what());
  }
}

TEST(Reader, SaysWhenNothingIsThere) {
  const TemporaryFolder folder;
  EXPECT_THROW(read_parameters(folder.path() / "no"), CheckpointError);
  EXPECT_THROW(read_parameters(folder.path()), CheckpointError);
  fs::create_directories(folder.path() / "ckpt" / "step_00000001");
  try {
    read_parameters(folder.path());
    FAIL();
  } catch (const CheckpointError& error) {
    expect_in("MANIFEST.json is missing", error.what());
  }
}

TEST(Damage, EveryFlippedBitIsFound) {
  const TemporaryFolder folder;
  const fs::path step = write_sample(folder.path(), 7, 3);
  verify_checkpoint(step);
  std::uint64_t random = 1;
  for (const auto& entry : fs::directory_iterator(step)) {
    const std::string name = entry.path().filename().string();
    const std::string sound = read_bytes(entry.path());
    for (int round = 0; round < 25; ++round) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      flip_bit(entry.path(), (random >> 20) % sound.size(), static_cast<int>(random >> 61));
      expect_in(name, refusal(step));
      write_bytes(entry.path(), sound);
    }
  }
  verify_checkpoint(step);
}

TEST(Damage, IsLocatedByFileParameterAndRange) {
  const TemporaryFolder folder;
  const fs::path step = write_sample(folder.path(), 7, 1);
  const CheckpointHeader header = read_header(step);
  const std::int64_t offset =
      header.manifest.shards[0].arrays.at("exp_avg_sq").offset_bytes + 4 * 440;  // in head.bias
  flip_bit(step / "shard_00000-of-00001.h5", static_cast<std::size_t>(offset), 0);
  const std::string message = refusal(step);
  expect_in("shard_00000-of-00001.h5' was changed: array 'exp_avg_sq'", message);
  expect_in("elements [432, 448) of the global index, which belong to 'head.bias'", message);
  // Whoever does not need that block still gets the others.
  EXPECT_NO_THROW(read_shard(header, {{0, 432}}));
}

TEST(Damage, IsNamedWhateverItIs) {
  const TemporaryFolder folder;
  const fs::path step = write_sample(folder.path(), 7, 2);
  const fs::path shard = step / "shard_00001-of-00002.h5";
  const std::string sound = read_bytes(shard);
  write_bytes(shard, sound.substr(0, sound.size() - 1));
  expect_in("has " + std::to_string(sound.size() - 1) + " bytes, the manifest says", refusal(step));
  write_bytes(shard, "");
  expect_in("shard_00001-of-00002.h5' has 0 bytes", refusal(step));
  fs::remove(shard);
  expect_in("shard_00001-of-00002.h5 is missing", refusal(step));
  fs::create_directory(shard);
  expect_in("shard_00001-of-00002.h5 is missing", refusal(step));
  fs::remove(shard);
  write_bytes(shard, sound);
  flip_bit(shard, 1, 0);
  expect_in("outside its arrays", refusal(step));
  write_bytes(shard, sound);
  const std::string manifest = read_bytes(step / "MANIFEST.json");
  write_bytes(step / "MANIFEST.json", "{\"garbage\": [1, 2");
  expect_in("MANIFEST.json", refusal(step));
  fs::remove(step / "MANIFEST.json");
  expect_in("MANIFEST.json is missing", refusal(step));
  write_bytes(step / "MANIFEST.json", manifest);
  const std::string global = read_bytes(step / "global.h5");
  write_bytes(step / "global.h5", std::string(global.size(), 'x'));
  expect_in("global.h5' was changed", refusal(step));
  write_bytes(step / "global.h5", global);
  verify_checkpoint(step);
}

TEST(Damage, AManifestOfAnotherCheckpointIsFound) {
  const TemporaryFolder folder;
  const fs::path a = write_sample(folder.path(), 7, 2);
  const fs::path b = write_sample(folder.path(), 8, 2);
  write_bytes(a / "MANIFEST.json", read_bytes(b / "MANIFEST.json"));
  refusal(a);
}

/// Run `action` in a child with `hook`. @returns its wait status
int in_child(const FaultHook& hook, const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_fault_hook(hook);
    try {
      action();
    } catch (const Error& error) {
      ::_exit(static_cast<int>(error.exit_code()));
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(KillAnywhere, DeathAtEveryOperationLeavesAValidCheckpoint) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 1, 2);
  int deaths = 0;
  for (int die_at = 1;; ++die_at) {
    int seen = 0;
    const int status = in_child(
        [&](FileOperation, const fs::path&) {
          if (++seen == die_at) ::raise(SIGKILL);
          return 0;
        },
        [&] { write_sample(folder.path(), 2, 2); });
    const std::int64_t newest = read_parameters(folder.path()).iteration;
    fs::remove_all(folder.path() / "ckpt" / ".tmp-2");
    if (WIFEXITED(status)) {
      EXPECT_EQ(newest, 2);
      break;
    }
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    ++deaths;
    EXPECT_TRUE(newest == 1 || newest == 2) << die_at;
    fs::remove_all(folder.path() / "ckpt" / "step_00000002");
  }
  EXPECT_GT(deaths, 25);
}

TEST(KillAnywhere, DeathWhileReplacingLeavesOldOrNew) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 2, 3);
  for (int die_at = 1;; ++die_at) {
    int seen = 0;
    const int status = in_child(
        [&](FileOperation, const fs::path&) {
          if (++seen == die_at) ::raise(SIGKILL);
          return 0;
        },
        [&] { write_sample(folder.path(), 2, 2); });
    EXPECT_EQ(read_parameters(folder.path()).iteration, 2) << die_at;
    fs::remove_all(folder.path() / "ckpt" / ".tmp-2");
    if (WIFEXITED(status)) break;
  }
  EXPECT_EQ(read_header(folder.path() / "ckpt" / "step_00000002").manifest.world, 2);
}

TEST(FullDisk, LimitsInTheMiddleOfAShardAreErrorsAndPass) {
  const TemporaryFolder folder;
  write_sample(folder.path(), 1, 2, 40000);
  // 3.6 MB a shard: the limit strikes at the room for the arrays, and, just above their size, at
  // what HDF5 adds.
  const std::int64_t arrays = 3 * 4 * elements_of(sample_snapshot(1, 0, 2, 40000).shard.intervals);
  for (const std::int64_t bytes : {std::int64_t{1000}, std::int64_t{1'000'000}, arrays + 100}) {
    const int status = in_child({}, [&] {
      ::signal(SIGXFSZ, SIG_IGN);
      rlimit limit = {};
      ::getrlimit(RLIMIT_FSIZE, &limit);
      const rlimit before = limit;
      limit.rlim_cur = static_cast<rlim_t>(bytes);
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        write_sample(folder.path(), 2, 2, 40000);
        ::_exit(2);
      } catch (const Error& error) {
        if (error.exit_code() != ExitCode::io) ::_exit(3);
      }
      ::setrlimit(RLIMIT_FSIZE, &before);
      fs::remove_all(folder.path() / "ckpt" / ".tmp-2");
      if (read_parameters(folder.path()).iteration != 1) ::_exit(4);
      write_sample(folder.path(), 2, 2, 40000);
    });
    EXPECT_EQ(status, 0) << bytes;
    EXPECT_EQ(read_parameters(folder.path()).iteration, 2);
    fs::remove_all(folder.path() / "ckpt" / "step_00000002");
  }
}

TEST(Fixture, OfEachFormatStaysReadable) {
  for (const std::string format : {"checkpoint_format_1"}) {
    SCOPED_TRACE(format);
    const fs::path step = pointed_at(fs::path(VSR_FIXTURES) / format, "LATEST");
    const CheckpointHeader header = read_header(step);
    const Snapshot expected = sample_snapshot(7, 0, 2, 100);
    EXPECT_EQ(header.snapshot.parameters, expected.parameters);
    EXPECT_EQ(header.snapshot.buffers, expected.buffers);
    EXPECT_EQ(header.snapshot.state, expected.state);
    const std::vector<comm::Interval> all = {{0, total_elements(expected.parameters)}};
    const ShardData shard = read_shard(header, all);
    EXPECT_EQ(shard.arrays.size(), 4U);
    for (const auto& [array, values] : shard.arrays)
      EXPECT_TRUE(same_bits(values, sample_values(array, 7, all))) << array;
    verify_checkpoint(step);
  }
}

}  // namespace
}  // namespace vsr::runtime
