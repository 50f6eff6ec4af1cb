// SPDX-License-Identifier: Apache-2.0
// One array, and so one shard file, above 2 GiB: offsets and counts that 32 bits do not hold. Needs
// 5 GiB of memory and 3 GB of disk; where those are not there it says so and is skipped (exit 77).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "tests/support/checkpoint_writing.hpp"

namespace vsr::runtime {
namespace {

constexpr std::int64_t kRows = 600'000'000 / 15;  // 600 M elements, 2.4 GB
constexpr std::int64_t kNeededBytes = std::int64_t{5} << 30;

std::int64_t free_memory_bytes() {
  return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

TEST(LargeShard, ComesBackFromItsFarEnd) {
  const test::TemporaryFolder folder;
  Snapshot snapshot;
  snapshot.parameters = test::sample_parameters(kRows);
  for (ParameterRecord& parameter : snapshot.parameters) parameter.extra.clear();
  const std::int64_t total = total_elements(snapshot.parameters);
  snapshot.shard.intervals = {{0, total}};
  std::vector<float>& master = snapshot.shard.arrays["master"];
  master.resize(static_cast<std::size_t>(total));
  for (std::int64_t i = 0; i < total; ++i)
    master[static_cast<std::size_t>(i)] = test::sample_value("master", 1, i);
  const auto step = folder.path() / "ckpt" / "step_00000001";
  create_folders(step);
  snapshot.iteration = 1;
  write_global_files(step, snapshot, {write_shard(step, snapshot, 0, 1)});
  master = {};

  const CheckpointHeader header = read_header(step);
  EXPECT_GT(header.manifest.shards[0].size_bytes, std::int64_t{1} << 31);
  const std::vector<comm::Interval> ends = {
      {0, 1000}, {(total / 2), total / 2 + 3}, {total - 700, total}};
  EXPECT_TRUE(test::same_bits(read_shard(header, ends).arrays.at("master"),
                              test::sample_values("master", 1, ends)));
  verify_checkpoint(step);
  test::flip_bit(step / header.manifest.shards[0].file,
                 static_cast<std::size_t>(
                     header.manifest.shards[0].arrays.at("master").offset_bytes + 4 * (total - 1)),
                 7);
  EXPECT_THROW(read_shard(header, {{total - 1, total}}), CheckpointError);
}

}  // namespace
}  // namespace vsr::runtime

int main(int argc, char** argv) {
  const std::int64_t disk = vsr::runtime::free_bytes(std::filesystem::temp_directory_path());
  const std::int64_t memory = vsr::runtime::free_memory_bytes();
  if (disk < vsr::runtime::kNeededBytes || memory < vsr::runtime::kNeededBytes) {
    std::printf("skipped: %lld bytes of disk and %lld of memory are free, %lld are needed\n",
                static_cast<long long>(disk), static_cast<long long>(memory),
                static_cast<long long>(vsr::runtime::kNeededBytes));
    return 77;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
