// SPDX-License-Identifier: Apache-2.0
// Weights that leave a checkpoint for other programs and weights that come from them.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/error.hpp"
#include "runtime/checkpoint/export_weights.hpp"
#include "runtime/checkpoint/file_faults.hpp"
#include "runtime/checkpoint/inspect.hpp"
#include "runtime/checkpoint/new_checkpoint.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/hdf5_reading.hpp"
#include "tests/support/torch_archive_writing.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::message_of;
using test::same_bits;
using test::sample_values;
using test::TemporaryFolder;
using test::write_changed;
using test::write_sample;

const std::vector<std::string> kArraysWithAverage = {"master", "exp_avg", "exp_avg_sq", "ema"};

std::vector<float> values_in(const fs::path& path, const std::string& name) {
  const auto file = open_safetensors(path);
  for (std::size_t i = 0; i < file->tensors().size(); ++i)
    if (file->tensors()[i].name == name)
      return as_float(file->read(i), file->tensors()[i].dtype, name);
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(Export, WritesSafetensors) {
  const TemporaryFolder folder;
  const CheckpointHeader header =
      read_header(write_sample(folder.path(), 5, 3, 400, kArraysWithAverage));
  const ExportResult result = export_weights(header, folder / "w.safetensors", {});
  EXPECT_EQ(result.tensors, 10);
  EXPECT_EQ(result.size_bytes, static_cast<std::int64_t>(fs::file_size(folder / "w.safetensors")));
  const auto file = open_safetensors(folder / "w.safetensors");
  for (const ParameterRecord& parameter : header.snapshot.parameters)
    EXPECT_TRUE(same_bits(
        values_in(folder / "w.safetensors", parameter.name),
        sample_values("master", 5, {{parameter.begin, parameter.begin + parameter.numel}})))
        << parameter.name;
  for (std::size_t i = 0; i < file->tensors().size(); ++i)
    for (const BufferRecord& buffer : header.snapshot.buffers)
      if (buffer.name == file->tensors()[i].name) {
        EXPECT_EQ(file->read(i), buffer.bytes);
        EXPECT_EQ(file->tensors()[i].shape, buffer.shape);
        EXPECT_EQ(file->tensors()[i].dtype, buffer.dtype);
      }
  export_weights(header, folder / "ema.safetensors", {"ema", "fp32"});
  EXPECT_TRUE(same_bits(values_in(folder / "ema.safetensors", "head.bias"),
                        sample_values("ema", 5, {{432, 448}})));
}

TEST(Export, WritesHdf5) {
  const TemporaryFolder folder;
  const CheckpointHeader header = read_header(write_sample(folder.path(), 5, 3, 40000));
  const ExportResult result = export_weights(header, folder / "w.h5", {});
  EXPECT_EQ(result.size_bytes, static_cast<std::int64_t>(fs::file_size(folder / "w.h5")));
  const Hdf5Session session;
  const Hdf5File file = test::open_hdf5(folder / "w.h5");
  EXPECT_EQ(test::text_attribute(file.get(), "iteration"), "5");
  EXPECT_EQ(test::link_names(file.get()).size(), 10U);
  for (const ParameterRecord& parameter : header.snapshot.parameters) {
    EXPECT_EQ(test::shape_of(test::open_dataset(file.get(), parameter.name)), parameter.shape);
    const auto values = test::dataset_values<float>(file.get(), parameter.name, H5T_NATIVE_FLOAT);
    EXPECT_TRUE(same_bits(
        values,
        sample_values("master", 5, {{parameter.begin, parameter.begin + parameter.numel}})));
  }
  EXPECT_EQ(test::dataset_values<std::int64_t>(file.get(), "norm.batches", H5T_NATIVE_INT64),
            std::vector<std::int64_t>{5});
}

TEST(Export, RoundsToHalfAndCountsOverflows) {
  const TemporaryFolder folder;
  const fs::path step = write_changed(folder.path(), [](Snapshot& snapshot) {
    std::vector<float>& master = snapshot.shard.arrays["master"];
    master[0] = 1.0F + 0x1p-11F;  // half way between two values: to the even one
    master[1] = 1.0F + 0x1.8p-10F;
    master[2] = 65520.0F;
    master[3] = 65519.0F;
  });
  const ExportResult result =
      export_weights(read_header(step), folder / "h.safetensors", {"master", "fp16"});
  EXPECT_EQ(result.overflows, 1);
  const auto values = values_in(folder / "h.safetensors", "head.weight");
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 1.0F + 0x1p-9F);
  EXPECT_TRUE(std::isinf(values[2]));
  EXPECT_EQ(values[3], 65504.0F);
}

TEST(Export, RefusesAndCleansUp) {
  const TemporaryFolder folder;
  const CheckpointHeader header = read_header(write_sample(folder.path(), 5, 1));
  const auto refused = [&]<typename Expected>(Expected*, const std::string& name,
                                              const ExportOptions& options) {
    return message_of<Expected>([&] { export_weights(header, folder / name, options); });
  };
  constexpr UsageError* kUsage = nullptr;
  constexpr ConfigurationError* kConfiguration = nullptr;
  expect_in("\".onnx\"", refused(kUsage, "w.onnx", {}));
  expect_in("\"fp8\"", refused(kUsage, "w.h5", {"master", "fp8"}));
  expect_in("no array ema", refused(kConfiguration, "w.h5", {"ema", "fp32"}));
  folder.write("there.h5", "");
  expect_in("exists already", refused(kConfiguration, "there.h5", {}));
  set_fault_hook([](FileOperation operation, const fs::path&) {
    return operation == FileOperation::fsync ? EIO : 0;
  });
  EXPECT_THROW(export_weights(header, folder / "w.h5", {}), IoError);
  set_fault_hook({});
  EXPECT_FALSE(fs::exists(folder / "w.h5"));
  EXPECT_TRUE(test::hidden_names(folder.path()).empty());
}

TEST(Import, TakesWhatExportGave) {
  const TemporaryFolder folder;
  const CheckpointHeader like =
      read_header(write_sample(folder / "like", 5, 3, 400, kArraysWithAverage));
  export_weights(like, folder / "w.safetensors", {});
  const fs::path step = import_weights(folder / "w.safetensors", folder / "run", like, "");
  EXPECT_EQ(step, folder / "run" / "ckpt" / "step_00000000");
  verify_checkpoint(step);
  const StoredParameters stored = read_parameters(folder / "run");
  EXPECT_EQ(stored.iteration, 0);
  EXPECT_EQ(stored.buffers, like.snapshot.buffers);
  EXPECT_EQ(stored.state, nlohmann::json({{"applied_steps", 0}, {"skipped_steps", 0}}));
  for (std::size_t i = 0; i < stored.parameters.size(); ++i) {
    const ParameterRecord& parameter = stored.parameters[i];
    EXPECT_EQ(parameter.steps, 0);
    EXPECT_EQ(parameter.extra.at("beta1_power"), 1.0);
    const auto expected =
        sample_values("master", 5, {{parameter.begin, parameter.begin + parameter.numel}});
    EXPECT_TRUE(same_bits(stored.masters[i], expected)) << parameter.name;
    EXPECT_TRUE(same_bits(stored.averages[i], expected)) << parameter.name;
  }
  const ShardData shard = read_shard(read_header(step), {{0, 6455}});
  for (const char* name : {"exp_avg", "exp_avg_sq"})
    for (const float moment : shard.arrays.at(name)) ASSERT_EQ(moment, 0.0F);
  EXPECT_TRUE(fs::exists(folder / "run" / "ckpt" / "LATEST"));
  EXPECT_FALSE(fs::exists(folder / "run" / "LOCK"));
  expect_in("holds checkpoints already", message_of<ConfigurationError>([&] {
              import_weights(folder / "w.safetensors", folder / "run", like, "");
            }));
}

/// A network of one weight and one bias, as a checkpoint to import into.
CheckpointHeader small_network(const fs::path& run) {
  Snapshot snapshot;
  snapshot.iteration = 60;
  snapshot.parameters = {{"conv.weight", {2, 1, 2}, "fp16", 0, 4, 60, {{"beta2_power", 0.5}}},
                         {"conv.bias", {2}, "fp32", 4, 2, 60, {{"beta2_power", 0.5}}}};
  snapshot.state = {
      {"applied_steps", 60},
      {"skipped_steps", 2},
      {"configuration", {{"lr", 0.1}}},
      {"validation", {{"psnr_y", 30.0}}},
      {"loss_scaler", {{"scale", 1024.0}, {"clean_steps", 7}, {"skips_at_floor", 1}}}};
  snapshot.shard.intervals = {{0, 6}};
  snapshot.shard.arrays["master"] = std::vector<float>(6, 0.25F);
  const fs::path folder = run / "ckpt" / "step_00000060";
  create_folders(folder);
  write_global_files(folder, snapshot, {write_shard(folder, snapshot, 0, 1)});
  return read_header(folder);
}

std::string archive_of(const std::vector<test::TorchTensor>& tensors) {
  return test::ZipBuilder()
      .add("net/data.pkl",
           test::whole_pickle("}" + test::pickled("params") + test::pickled_dict(tensors) + "s"))
      .add("net/data/0", test::text_of_values<float>({1, 2, 3, 4, 5, 6}))
      .finish();
}

TEST(Import, TakesAnArchiveOfTorch) {
  const TemporaryFolder folder;
  const CheckpointHeader like = small_network(folder / "like");
  const std::string path = folder.write(
      "net.pth",
      archive_of({{"module.conv.bias", "FloatStorage", "0", 6, 4, {2}, {1}},
                  {"module.conv.weight", "FloatStorage", "0", 6, 0, {2, 1, 2}, {2, 2, 1}}}));
  import_weights(path, folder / "run", like, "");
  const StoredParameters stored = read_parameters(folder / "run");
  EXPECT_EQ(stored.masters[0], (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(stored.masters[1], (std::vector<float>{5, 6}));
  EXPECT_EQ(stored.state,
            nlohmann::json(
                {{"applied_steps", 0},
                 {"skipped_steps", 0},
                 {"configuration", {{"lr", 0.1}}},
                 {"loss_scaler", {{"scale", 1024.0}, {"clean_steps", 0}, {"skips_at_floor", 0}}}}));
}

TEST(Import, NamesWhatDoesNotMatch) {
  const TemporaryFolder folder;
  const CheckpointHeader like = small_network(folder / "like");
  const std::string path = folder.write(
      "net.pth", archive_of({{"conv.weight", "FloatStorage", "0", 6, 0, {2, 2}, {2, 1}},
                             {"body.bias", "FloatStorage", "0", 6, 4, {2}, {1}}}));
  const std::string message =
      message_of<ConfigurationError>([&] { import_weights(path, folder / "run", like, ""); });
  expect_in("net.pth' holds the weights of another network: 3 tensors differ", message);
  expect_in("conv.weight is [2, 2] in the file, the network has [2, 1, 2]", message);
  expect_in("missing in the file: conv.bias [2]", message);
  expect_in("only in the file: body.bias [2]", message);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

}  // namespace
}  // namespace vsr::runtime
