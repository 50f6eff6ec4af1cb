// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint by themselves: manifest, HDF5 views, rules of a snapshot, and the
// comparison with a network.
#include <gtest/gtest.h>

#include <sys/resource.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>

#include "comm/error.hpp"
#include "runtime/checkpoint/hdf5_handles.hpp"
#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/match_parameters.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/hdf5_reading.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::message_of;
using test::sample_parameters;
using test::sample_snapshot;
using test::sample_value;
using test::TemporaryFolder;

Manifest small_manifest() {
  Manifest manifest;
  manifest.world = 2;
  manifest.iteration = 12000;
  manifest.elements = 300000;
  manifest.global_size_bytes = 4711;
  manifest.global_checksum = 0xfedcba9876543210ULL;
  manifest.shards = {{"shard_00000-of-00002.h5",
                      900000,
                      {{0, 100}, {200, 200000}},
                      7,
                      {{"master", {4096, {1, 2}}}}},
                     {"shard_00001-of-00002.h5",
                      900000,
                      {{100, 200}, {200000, 300000}},
                      8,
                      {{"master", {4096, {3, 4, 5}}}}}};
  return manifest;
}

TEST(Manifest, ComesBackFromItsText) {
  const Manifest manifest = small_manifest();
  const Manifest read = manifest_from_text(to_text(manifest));
  EXPECT_EQ(to_text(read), to_text(manifest));
  EXPECT_EQ(read.iteration, 12000);
  EXPECT_EQ(read.global_checksum, 0xfedcba9876543210ULL);
  ASSERT_EQ(read.shards.size(), 2U);
  EXPECT_EQ(read.shards[1].intervals, manifest.shards[1].intervals);
  EXPECT_EQ(read.shards[1].arrays.at("master").checksums, (std::vector<std::uint64_t>{3, 4, 5}));
  EXPECT_EQ(nlohmann::json::parse(to_text(manifest)).at("checksum_elements"), 262144);
}

TEST(Manifest, FindsEveryFlippedBitAndEveryCut) {
  const std::string text = to_text(small_manifest());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(manifest_from_text(changed), CheckpointError) << "byte " << i << " bit " << bit;
    }
    EXPECT_THROW(manifest_from_text(text.substr(0, i)), CheckpointError) << "cut at " << i;
  }
  EXPECT_THROW(manifest_from_text(""), CheckpointError);
  EXPECT_THROW(manifest_from_text("{\"format\": 1}"), CheckpointError);
  EXPECT_THROW(manifest_from_text(std::string(100000, '[')), CheckpointError);
}

TEST(Manifest, BlocksAreCutOnTheGlobalIndex) {
  EXPECT_TRUE(checksum_blocks({}).empty());
  EXPECT_TRUE(checksum_blocks({{5, 5}}).empty());
  EXPECT_EQ(checksum_blocks({{10, 20}, {262143, 524289}}),
            (std::vector<comm::Interval>{
                {10, 20}, {262143, 262144}, {262144, 524288}, {524288, 524289}}));
}

TEST(Manifest, ChecksumIsXxh3OfTheBytes) {
  // XXH3-64 of no bytes, from the specification of the algorithm.
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2ULL);
  EXPECT_EQ(checksum_text(0x1fULL), "000000000000001f");
}

TEST(Manifest, RefusesShardsThatDoNotFitTogether) {
  const auto refused = [](auto change) {
    Manifest manifest = small_manifest();
    change(manifest);
    return message_of<CheckpointError>([&] { check_coverage(manifest); });
  };
  expect_in("overlap in [99, 100)",
            refused([](Manifest& m) { m.shards[1].intervals[0].begin = 99; }));
  expect_in("miss [100, 101)", refused([](Manifest& m) { m.shards[1].intervals[0].begin = 101; }));
  expect_in("miss [300000, 300001)", refused([](Manifest& m) { m.elements = 300001; }));
  expect_in("leaves the 299999", refused([](Manifest& m) { m.elements = 299999; }));
  expect_in("lists 2 shards of a run on 3", refused([](Manifest& m) { m.world = 3; }));
  expect_in("has 1 checksums, expected 2",
            refused([](Manifest& m) { m.shards[0].arrays["master"].checksums.pop_back(); }));
  expect_in("leaves the file", refused([](Manifest& m) { m.shards[0].size_bytes = 800000; }));
  expect_in("leaves the file",
            refused([](Manifest& m) { m.shards[0].arrays["master"].offset_bytes = -4; }));
  expect_in("two arrays overlap", refused([](Manifest& m) {
              m.shards[0].arrays["exp_avg"] = m.shards[0].arrays["master"];
            }));
  expect_in("holds other arrays", refused([](Manifest& m) {
              auto node = m.shards[1].arrays.extract("master");
              node.key() = "exp_avg";
              m.shards[1].arrays.insert(std::move(node));
            }));
  // A range that would need 2^40 checksums is refused without making room for them.
  expect_in("checksums, expected", refused([](Manifest& m) {
              m.elements = std::int64_t{1} << 58;
              m.shards[1].intervals[1].end = m.elements;
            }));
}

TEST(Manifest, AnotherFormatIsAConfigurationError) {
  Manifest manifest = small_manifest();
  manifest.format = kCheckpointFormat + 1;
  expect_in("format 2",
            message_of<ConfigurationError>([&] { manifest_from_text(to_text(manifest)); }));
}

TEST(Manifest, RefusesAStateThatIsNestedTooDeep) {
  Manifest manifest = small_manifest();
  nlohmann::json deep = 1;
  for (int level = 0; level < 65; ++level) deep = nlohmann::json::array({deep});
  manifest.state = deep;
  expect_in("nested too deep",
            message_of<CheckpointError>([&] { manifest_from_text(to_text(manifest)); }));
}

TEST(Boxes, CoverARunInOrder) {
  const std::vector<std::int64_t> shape = {3, 4, 5};
  for (std::int64_t begin = 0; begin <= 60; ++begin)
    for (std::int64_t end = begin; end <= 60; ++end) {
      std::int64_t next = begin;
      const std::vector<Box> boxes = boxes_of_run(shape, {begin, end});
      EXPECT_LE(boxes.size(), 5U);
      for (const Box& box : boxes)
        for (std::uint64_t i = 0; i < box.count[0]; ++i)
          for (std::uint64_t j = 0; j < box.count[1]; ++j)
            for (std::uint64_t k = 0; k < box.count[2]; ++k) {
              const auto element =
                  ((box.start[0] + i) * 4 + box.start[1] + j) * 5 + box.start[2] + k;
              ASSERT_EQ(static_cast<std::int64_t>(element), next++);
            }
      ASSERT_EQ(next, end);
    }
}

/// A dataset as floats, read by HDF5 itself.
std::vector<float> dataset_values(const fs::path& file, const std::string& name,
                                  std::vector<std::int64_t>& shape) {
  const Hdf5Session session;
  const Hdf5File opened = test::open_hdf5(file);
  shape = test::shape_of(test::open_dataset(opened.get(), name));
  return test::dataset_values<float>(opened.get(), name, H5T_NATIVE_FLOAT);
}

TEST(Hdf5View, ShowsEveryParameterByNameAndShape) {
  for (const int world : {1, 3, 8}) {
    const TemporaryFolder folder;
    const fs::path written = test::write_sample(folder.path(), 12, world);
    const fs::path step = folder.path() / "moved";
    fs::rename(written, step);
    for (const ParameterRecord& parameter : sample_parameters(400))
      for (const std::string array : {"master", "exp_avg", "exp_avg_sq"}) {
        std::vector<std::int64_t> shape;
        const auto values = dataset_values(step / "global.h5", array + "/" + parameter.name, shape);
        const auto expected_shape =
            parameter.shape.empty() ? std::vector<std::int64_t>{1} : parameter.shape;
        EXPECT_EQ(shape, expected_shape);
        EXPECT_TRUE(test::same_bits(
            values,
            test::sample_values(array, 12, {{parameter.begin, parameter.begin + parameter.numel}})))
            << array << " " << parameter.name << " on " << world;
      }
  }
}

TEST(Hdf5View, ShowsNaNWhereAShardIsMissing) {
  const TemporaryFolder folder;
  const fs::path step = test::write_sample(folder.path(), 12, 2);
  fs::remove(step / "shard_00001-of-00002.h5");
  std::vector<std::int64_t> shape;
  const auto values = dataset_values(step / "global.h5", "/master/body.weight", shape);
  EXPECT_EQ(values.front(), sample_value("master", 12, 449));
  EXPECT_TRUE(std::isnan(values.back()));
}

TEST(Hdf5View, ShardIsAPlainHdf5File) {
  const TemporaryFolder folder;
  const fs::path step = test::write_sample(folder.path(), 12, 2);
  std::vector<std::int64_t> shape;
  const auto borders = dataset_values(step / "shard_00001-of-00002.h5", "/intervals", shape);
  EXPECT_EQ(shape, (std::vector<std::int64_t>{static_cast<std::int64_t>(borders.size() / 2), 2}));
  const auto expected = sample_snapshot(12, 1, 2).shard;
  EXPECT_EQ(static_cast<std::int64_t>(borders[0]), expected.intervals[0].begin);
  EXPECT_TRUE(test::same_bits(dataset_values(step / "shard_00001-of-00002.h5", "/exp_avg", shape),
                              expected.arrays.at("exp_avg")));
}

TEST(Hdf5View, EqualStatesGiveEqualBytes) {
  const TemporaryFolder a, b;
  const fs::path first = test::write_sample(a.path(), 12, 2);
  const fs::path second = test::write_sample(b.path(), 12, 2);
  for (const char* name : {"global.h5", "shard_00000-of-00002.h5", "MANIFEST.json"})
    EXPECT_EQ(test::read_bytes(first / name), test::read_bytes(second / name)) << name;
}

TEST(Hdf5, ErrorsCarryTheLibrarysOwnAccount) {
  const Hdf5Session session;
  const std::string message = message_of<Hdf5Error>(
      [] { VSR_H5(H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT)); });
  expect_in("H5Fopen", message);
  expect_in("checkpoint_format_test.cpp:", message);
  expect_in("No such file or directory", message);
}

// A quota that arrives while HDF5 lays out a file leaves that file broken inside the library, which
// must not take the program down when it ends.
TEST(Hdf5DeathTest, AQuotaWithinTheLibraryIsAnErrorAndTheProgramEndsAsItWould) {
  const auto save_under_a_quota = [] {
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable();  // what the library loses of the broken file is known
#endif
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {512, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Snapshot snapshot = sample_snapshot(1, 0, 1);
    for (int i = 0; i < 3; ++i)
      expect_in("HDF5 failed in ",
                message_of<Hdf5Error>([&] { global_image(snapshot, {snapshot.shard.intervals}); }));
    std::exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(save_under_a_quota(), testing::ExitedWithCode(0), "");
}

TEST(Hdf5, CallersPrintingComesBack) {
  H5E_auto2_t before = nullptr, after = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &data);
  {
    const Hdf5Session session;
    H5E_auto2_t inside = nullptr;
    H5Eget_auto2(H5E_DEFAULT, &inside, &data);
    EXPECT_EQ(inside, nullptr);
  }
  H5Eget_auto2(H5E_DEFAULT, &after, &data);
  EXPECT_EQ(before, after);
  EXPECT_NE(after, nullptr);
}

TEST(Manifest, HoldsTheSnapshotBitForBit) {
  const TemporaryFolder folder;
  const Snapshot expected = sample_snapshot(99, 0, 1);
  const Snapshot read = read_header(test::write_sample(folder.path(), 99, 1)).snapshot;
  EXPECT_EQ(read.iteration, 99);
  EXPECT_EQ(read.parameters, expected.parameters);
  EXPECT_EQ(read.buffers, expected.buffers);
  EXPECT_EQ(read.state, expected.state);
  EXPECT_EQ(read.state.at("seed").get<std::uint64_t>(), 18446744073709551615ULL);
}

TEST(Hdf5View, GlobalShowsWhatTheManifestSays) {
  const TemporaryFolder folder;
  const fs::path step = test::write_sample(folder.path(), 99, 2);
  const Snapshot snapshot = read_header(step).snapshot;
  const Hdf5Session session;
  const Hdf5File file = test::open_hdf5(step / "global.h5");
  EXPECT_EQ(test::int_attribute(file.get(), "iteration"), 99);
  EXPECT_EQ(test::int_attribute(file.get(), "world"), 2);
  EXPECT_EQ(nlohmann::json::parse(test::dataset_texts(file.get(), "state").front()),
            snapshot.state);
  const auto names = test::dataset_texts(file.get(), "params/name");
  const auto steps =
      test::dataset_values<std::int64_t>(file.get(), "params/steps", H5T_NATIVE_INT64);
  const auto powers =
      test::dataset_values<double>(file.get(), "params/extra/beta1_power", H5T_NATIVE_DOUBLE);
  ASSERT_EQ(names.size(), snapshot.parameters.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i], snapshot.parameters[i].name);
    EXPECT_EQ(steps[i], snapshot.parameters[i].steps);
    EXPECT_EQ(powers[i], snapshot.parameters[i].extra.at("beta1_power"));
  }
  for (std::size_t i = 0; i < snapshot.buffers.size(); ++i) {
    const BufferRecord& buffer = snapshot.buffers[i];
    const Hdf5Dataset dataset = test::open_dataset(file.get(), "buffers/" + buffer.name);
    EXPECT_EQ(test::shape_of(dataset), buffer.shape);
    EXPECT_EQ(test::int_attribute(dataset.get(), "position"), static_cast<std::int64_t>(i));
    const Hdf5Type type(VSR_H5(H5Dget_type(dataset.get())));
    std::vector<std::byte> bytes(buffer.bytes.size());
    if (!bytes.empty())
      VSR_H5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()));
    EXPECT_EQ(bytes, buffer.bytes) << buffer.name;
  }
}

TEST(Manifest, RefusesBuffersOutsideTheFile) {
  for (const bool has_large_shape : {false, true}) {
    const TemporaryFolder folder;
    const fs::path step = test::write_sample(folder.path(), 5, 1);
    Manifest manifest = manifest_from_text(test::read_bytes(step / "MANIFEST.json"));
    if (has_large_shape)
      manifest.buffers[0].shape = {std::int64_t{1} << 61};
    else
      manifest.buffers[0].offset_bytes = manifest.global_size_bytes;
    test::write_bytes(step / "MANIFEST.json", to_text(manifest));
    expect_in("leaves global.h5", message_of<CheckpointError>([&] { read_header(step); }));
  }
}

TEST(ShardImage, FrameStaysSmall) {
  Snapshot snapshot = sample_snapshot(1, 0, 1, 100000);  // 6 MB an array
  const ShardImage image = shard_image(snapshot, 0, 1);
  EXPECT_GT(image.size_bytes, 18'000'000);
  std::size_t frame_bytes = 0;
  for (const FilePart& part : image.frame) frame_bytes += part.bytes.size();
  EXPECT_LT(frame_bytes, 20'000U);
  for (const auto& [name, offset] : image.array_offsets_bytes) EXPECT_EQ(offset % 4096, 0) << name;
}

TEST(Snapshot, RefusesWhatCannotBeStored) {
  const auto refused = [](auto change) {
    Snapshot snapshot = sample_snapshot(3, 0, 1);
    change(snapshot);
    return message_of<ArgumentError>([&] { validate(snapshot); });
  };
  expect_in("'a/b'", refused([](Snapshot& s) { s.parameters[0].name = "a/b"; }));
  expect_in("'head.bias' appears twice",
            refused([](Snapshot& s) { s.parameters[0].name = "head.bias"; }));
  expect_in("product of its shape", refused([](Snapshot& s) { s.parameters[1].shape = {17}; }));
  expect_in("begins at 433", refused([](Snapshot& s) { s.parameters[1].begin = 433; }));
  expect_in("'fp8'", refused([](Snapshot& s) { s.parameters[1].dtype = "fp8"; }));
  expect_in("extra number", refused([](Snapshot& s) { s.parameters[2].extra = {{"x", 1.0}}; }));
  expect_in("'norm.batches'", refused([](Snapshot& s) { s.buffers[1].bytes.clear(); }));
  expect_in("array 'master'", refused([](Snapshot& s) { s.shard.arrays["master"].pop_back(); }));
  expect_in("'state'",
            refused([](Snapshot& s) { s.shard.arrays["state"] = s.shard.arrays["master"]; }));
  expect_in("overlaps", refused([](Snapshot& s) { s.shard.intervals.push_back({0, 1}); }));
  expect_in("state.deep.0 is not finite", refused([](Snapshot& s) {
              s.state["deep"] = {std::numeric_limits<double>::infinity()};
            }));
  expect_in("iteration -1", refused([](Snapshot& s) { s.iteration = -1; }));
}

TEST(MatchParameters, AcceptsTheSameNetwork) {
  auto stored = sample_parameters(400);
  for (auto& parameter : stored) {
    parameter.steps += 5;
    parameter.dtype = "bf16";
  }
  match_parameters(sample_parameters(400), stored);
  match_parameters({}, {});
  match_buffers(sample_snapshot(1, 0, 1).buffers, sample_snapshot(2, 0, 1).buffers);
}

TEST(MatchParameters, ListsTheDifferences) {
  auto stored = sample_parameters(400);
  stored[0].shape = {32, 3, 3, 3};
  stored[1].name = "head.offset";
  const std::string message =
      message_of<ConfigurationError>([&] { match_parameters(sample_parameters(400), stored); });
  expect_in("checkpoint of another network: 3 parameters differ", message);
  expect_in("head.weight is [32, 3, 3, 3] in the checkpoint, the network has [16, 3, 3, 3]",
            message);
  expect_in("missing in the checkpoint: head.bias [16]", message);
  expect_in("only in the checkpoint: head.offset [16]", message);
}

TEST(MatchParameters, ShowsTenLinesAtMost) {
  std::vector<ParameterRecord> expected;
  for (int i = 0; i < 13; ++i)
    expected.push_back({std::string("p").append(std::to_string(i)), {1}, "fp32", i, 1, 0, {}});
  const std::string message =
      message_of<ConfigurationError>([&] { match_parameters(expected, {}); });
  expect_in("p9 [1]", message);
  EXPECT_EQ(message.find("p10 "), std::string::npos);
  expect_in("and 3 more", message);
}

TEST(MatchArrays, ListsTheDifferences) {
  const std::vector<std::string> expected = {"master", "exp_avg", "exp_avg_sq"};
  match_arrays(expected, sample_snapshot(1, 0, 2).shard);
  ShardData stored;
  for (const std::string name : {"master", "momentum_buffer", "ema"}) stored.arrays[name] = {};
  const std::string message =
      message_of<ConfigurationError>([&] { match_arrays(expected, stored); });
  expect_in("checkpoint of another optimizer: 4 arrays differ", message);
  expect_in("missing in the checkpoint: exp_avg_sq", message);
  expect_in("only in the checkpoint: ema", message);
  expect_in("only in the checkpoint: momentum_buffer", message);
  stored.arrays.erase("momentum_buffer");
  expect_in("checkpoint of another optimizer: 1 array differs\n  only in the checkpoint: ema\n",
            message_of<ConfigurationError>([&] { match_arrays({"master"}, stored); }));
}

TEST(MatchParameters, SeesAnotherOrderAndOtherBuffers) {
  const std::vector<ParameterRecord> ab = {{"a", {1}, "fp32", 0, 1, 0, {}},
                                           {"b", {1}, "fp32", 1, 1, 0, {}}};
  expect_in("another order", message_of<ConfigurationError>([&] {
              match_parameters(ab, {ab[1], ab[0]});
            }));
  auto buffers = sample_snapshot(1, 0, 1).buffers;
  buffers[0].dtype = "fp16";
  expect_in("norm.running_mean is fp16 [3] in the checkpoint, the network has fp32 [3]",
            message_of<ConfigurationError>(
                [&] { match_buffers(sample_snapshot(1, 0, 1).buffers, buffers); }));
}

}  // namespace
}  // namespace vsr::runtime
