// SPDX-License-Identifier: Apache-2.0
// Safetensors and archives of torch.save: what is in good ones, and that bad and hostile ones are
// refused with their reason.
#include <gtest/gtest.h>

#include "comm/error.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch_archive_writing.hpp"

namespace vsr::runtime {
namespace {

using test::expect_in;
using test::kOrderedDict;
using test::little_endian;
using test::message_of;
using test::pickled;
using test::pickled_dict;
using test::TemporaryFolder;
using test::text_of_values;
using test::TorchTensor;
using test::whole_pickle;
using test::ZipBuilder;

std::vector<float> values_of(const WeightsFile& file, const std::string& name) {
  for (std::size_t i = 0; i < file.tensors().size(); ++i)
    if (file.tensors()[i].name == name)
      return as_float(file.read(i), file.tensors()[i].dtype, name);
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

std::string safetensors(const std::string& table, const std::string& data) {
  return little_endian<std::uint64_t>(table.size()) + table + data;
}

std::string refused_safetensors(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("w.safetensors", bytes);
  const std::string message = message_of<CheckpointError>([&] { open_weights(path, ""); });
  expect_in("w.safetensors", message);
  return message;
}

TEST(Safetensors, GivesNamesShapesAndValues) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("w.safetensors",
                   safetensors(R"({"__metadata__":{"format":"pt"},)"
                               R"("b":{"dtype":"F16","shape":[2],"data_offsets":[12,16]},)"
                               R"("a":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},)"
                               R"("n":{"dtype":"I64","shape":[],"data_offsets":[16,24]},)"
                               R"("e":{"dtype":"BF16","shape":[0,7],"data_offsets":[16,16]}}   )",
                               text_of_values<float>({0.5F, -2.0F, 3.0F}) +
                                   text_of_values<std::uint16_t>({0x3c00, 0xfbff}) +
                                   text_of_values<std::int64_t>({12})));
  const auto file = open_weights(path, "");
  ASSERT_EQ(file->tensors().size(), 4U);
  EXPECT_EQ(file->tensors()[0], (TensorEntry{"a", {1, 3}, "fp32", 3}));
  EXPECT_EQ(values_of(*file, "a"), (std::vector<float>{0.5F, -2.0F, 3.0F}));
  EXPECT_EQ(values_of(*file, "b"), (std::vector<float>{1.0F, -65504.0F}));
  EXPECT_TRUE(values_of(*file, "e").empty());
  expect_in("'n' holds int64", message_of<CheckpointError>([&] { values_of(*file, "n"); }));
  expect_in("--key params", message_of<UsageError>([&] { open_weights(path, "params"); }));
}

TEST(Safetensors, ReadsWhatItWrites) {
  const std::vector<TensorEntry> entries = {
      {"x", {2, 1}, "fp64", 2}, {"y", {}, "fp32", 1}, {"z", {3}, "uint8", 3}};
  const std::string header = safetensors_header(entries, {{"iteration", "7"}});
  EXPECT_EQ(header.size() % 8, 0U);
  const TemporaryFolder folder;
  const auto file =
      open_safetensors(folder.write("w.safetensors", header + text_of_values<double>({0.1, 2.0}) +
                                                         text_of_values<float>({3.0F}) + "abc"));
  EXPECT_EQ(file->tensors(), entries);
  EXPECT_EQ(values_of(*file, "x"), (std::vector<float>{0.1F, 2.0F}));
  EXPECT_EQ(values_of(*file, "y"), std::vector<float>{3.0F});
}

TEST(Safetensors, RefusesWhatDoesNotFit) {
  const auto one = [](const std::string& entry, const std::string& data) {
    return refused_safetensors(safetensors("{\"a\":" + entry + "}", data));
  };
  const std::string data(8, '\0');
  expect_in("do not fit its shape [3]",
            one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", data));
  expect_in("expected them to begin at 0",
            one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", data));
  expect_in("of 8, expected", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})", data));
  expect_in("4 bytes at its end belong to no tensor",
            one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", data));
  expect_in("the extent -1", one(R"({"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]})", data));
  expect_in("the extent 2.5", one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})", data));
  expect_in("do not fit its shape",
            one(R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]})", data));
  expect_in("no pair of data_offsets",
            one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,-8]})", data));
  expect_in("dtype F8_E4M3", one(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})", data));
  expect_in("cannot be read", one(R"({"dtype":"F32","data_offsets":[0,8]})", data));
  expect_in("nested too deep", one("[[[[[]]]]]", data));
  expect_in("no readable shape", one(R"({"dtype":"F32","shape":8,"data_offsets":[0,8]})", data));
  std::string extents = "1";
  for (int i = 0; i < 64; ++i) extents += ",1";
  expect_in("no readable shape",
            one(R"({"dtype":"F64","shape":[)" + extents + R"(],"data_offsets":[0,8]})", data));
  expect_in("a name has 5000 bytes, expected at most 4096",
            refused_safetensors(safetensors("{\"" + std::string(5000, 'n') + "\":{}}", "")));
  const std::string twice = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  expect_in("names 'a' twice",
            refused_safetensors(safetensors("{\"a\":" + twice + ",\"a\":" + twice + "}", "1234")));
  const std::string overlapping = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  expect_in("'b' has bytes [4, 8)",
            refused_safetensors(safetensors("{" + overlapping + "}", data)));
}

TEST(Safetensors, RefusesHugeTables) {
  expect_in("too short", refused_safetensors("1234567"));
  expect_in("claims a table of 18446744073709551615 bytes",
            refused_safetensors(little_endian<std::uint64_t>(~0ULL) + "{}"));
  expect_in("claims a table of 3 bytes",
            refused_safetensors(little_endian<std::uint64_t>(3) + "{}"));
  expect_in("nested too deep", refused_safetensors(safetensors(std::string(1 << 20, '['), "")));
  // Long lists of objects take a parser with a callback the square of their length.
  std::string objects = "{\"a\":[";
  for (int i = 0; i < 1000000; ++i) objects += "{},";
  expect_in("cannot be read", refused_safetensors(safetensors(objects + "{}]}", "")));
  expect_in("is no object", refused_safetensors(safetensors("[]", "")));
}

/// An archive with a state dict `pickle` and storages of four and two numbers.
std::string archive(const std::string& pickle) {
  return ZipBuilder()
      .add("net/data.pkl", pickle)
      .add("net/byteorder", "little")
      .add("net/data/0", text_of_values<float>({1.0F, 2.0F, 3.0F, 4.0F}))
      .add("net/data/1", text_of_values<std::uint16_t>({0x3f80, 0xc000}))
      .add("net/version", "3\n")
      .finish();
}

const TorchTensor kMatrix = {"module.body.weight", "FloatStorage", "0", 4, 0, {2, 2}, {2, 1}};
const TorchTensor kTransposed = {"turned", "FloatStorage", "0", 4, 0, {2, 2}, {1, 2}};
const TorchTensor kPart = {"part", "FloatStorage", "0", 4, 1, {2}, {2}};
const TorchTensor kHalf = {"scale", "BFloat16Storage", "1", 2, 1, {}, {}};
const TorchTensor kEmpty = {"nothing", "FloatStorage", "0", 4, 0, {0, 5}, {5, 1}};

std::string refused_archive(const std::string& bytes, const std::string& key = "") {
  const TemporaryFolder folder;
  const std::string path = folder.write("net.pth", bytes);
  const std::string message = message_of<CheckpointError>([&] { open_weights(path, key); });
  expect_in("net.pth", message);
  return message;
}

std::string refused_pickle(const std::string& value) {
  return refused_archive(archive(whole_pickle(value)));
}

TEST(TorchArchive, GivesViewsInLogicalOrder) {
  const TemporaryFolder folder;
  const std::string pickle =
      whole_pickle(pickled_dict({kMatrix, kTransposed, kPart, kHalf, kEmpty}));
  const auto file = open_weights(folder.write("net.pth", archive(pickle)), "");
  ASSERT_EQ(file->tensors().size(), 5U);
  EXPECT_EQ(file->tensors()[0], (TensorEntry{"body.weight", {2, 2}, "fp32", 4}));
  EXPECT_EQ(values_of(*file, "body.weight"), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(values_of(*file, "turned"), (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(values_of(*file, "part"), (std::vector<float>{2, 4}));
  EXPECT_EQ(values_of(*file, "scale"), std::vector<float>{-2.0F});
  EXPECT_TRUE(values_of(*file, "nothing").empty());
}

TEST(TorchArchive, ChoosesTheWeights) {
  const TorchTensor average = {"body.weight", "FloatStorage", "0", 4, 2, {1, 2}, {2, 1}};
  const std::string both = whole_pickle("}(" + pickled("params") + pickled_dict({kMatrix}) +
                                        pickled("params_ema") + pickled_dict({average}) + "u");
  const std::string plain = whole_pickle("}" + pickled("params") + pickled_dict({kMatrix}) + "s");
  const TemporaryFolder folder;
  const std::string path = folder.write("both.pth", archive(both));
  EXPECT_EQ(values_of(*open_weights(path, ""), "body.weight"), (std::vector<float>{3, 4}));
  EXPECT_EQ(values_of(*open_weights(path, "params"), "body.weight").size(), 4U);
  EXPECT_EQ(values_of(*open_weights(folder.write("p.pth", archive(plain)), ""), "body.weight"),
            (std::vector<float>{1, 2, 3, 4}));
  expect_in("no entry 'weights', only: params, params_ema",
            message_of<CheckpointError>([&] { open_weights(path, "weights"); }));
  expect_in("\".bin\"", message_of<UsageError>([&] { open_weights("net.bin", ""); }));
}

TEST(TorchArchive, ReadsZip64AndAttributes) {
  const std::string pickle = whole_pickle(
      "}q\x01(" + pickled("m") + pickled(TorchTensor{"", "HalfStorage", "0", 1, 0, {1}, {1}}) +
      "u" + "}" + pickled("_metadata") + "Ns" + "b");
  const TemporaryFolder folder;
  const auto file = open_weights(
      folder.write("net.pth", ZipBuilder()
                                  .add("a/data.pkl", pickle)
                                  .add("a/data/0", text_of_values<std::uint16_t>({0x3c00}))
                                  .finish(true)),
      "");
  EXPECT_EQ(values_of(*file, "m"), std::vector<float>{1.0F});
}

TEST(TorchArchive, RunsNothing) {
  expect_in("asks for os.system, which is not allowed",
            refused_pickle("cos\nsystem\n(" + pickled("true") + "tR"));
  expect_in("asks for builtins.eval", refused_pickle("cbuiltins\neval\n)R"));
  expect_in("asks for torch._utils._rebuild_parameter",
            refused_pickle("ctorch._utils\n_rebuild_parameter\n)R"));
  expect_in("calls what is not allowed", refused_pickle("ctorch\nFloatStorage\n)R"));
  expect_in("calls what is not allowed", refused_pickle("ccollections\nOrderedDict\n(K\x01tR"));
  expect_in("instruction 0x69", refused_pickle("(i"));    // INST
  expect_in("instruction 0x93", refused_pickle("\x93"));  // STACK_GLOBAL
  expect_in("instruction 0x81", refused_pickle("})\x81"));
  expect_in("protocol 2", refused_archive(archive("\x80\x04}.")));
}

TEST(TorchArchive, RefusesBrokenPickles) {
  expect_in("holds no dict", refused_pickle("]"));
  expect_in("value that is not there", refused_pickle("R"));
  expect_in("value that is not there", refused_pickle("}(K\x01s"));
  expect_in("a mark is missing", refused_pickle("}u"));
  expect_in("a key has no value", refused_pickle("}(K\x01u"));
  expect_in("adds to what is no list or dict", refused_pickle("K\x01K\x01"
                                                              "a"));
  expect_in("recalls value 7", refused_pickle("h\x07"));
  expect_in("it is cut off", refused_archive(archive("\x80\x02X\xff\xff\xff\xff")));
  expect_in("it is cut off", refused_archive(archive("\x80\x02}")));
  expect_in("a number is too large",
            refused_pickle(std::string("\x8a\xff") + std::string(255, '\x01')));
  expect_in("a key that is no text", refused_pickle("}K\x01K\x01s"));
  expect_in("entry 'x' is no tensor", refused_pickle("}" + pickled("x") + "K\x01s"));
  expect_in("a name is too long", refused_pickle("c" + std::string(1000, 'x')));
  // A dict in itself, and a value that is its own storage: nothing follows them round.
  expect_in("entry 'x' is no tensor", refused_pickle("}q\x01" + pickled("x") + "h\x01s"));
  expect_in("no readable description", refused_pickle("}q\x01Q"));
  expect_in("more values than", refused_pickle(std::string(3 << 20, 'N')));
}

TEST(TorchArchive, RefusesViewsThatLeaveTheirStorage) {
  const auto refused = [](auto change) {
    TorchTensor tensor = kMatrix;
    tensor.name = "w";
    change(tensor);
    return refused_pickle(pickled_dict({tensor}));
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_in("tensor 'w' does not fit its storage of 4 elements",
            refused([](TorchTensor& t) { t.offset = 1; }));
  expect_in("does not fit", refused([](TorchTensor& t) { t.strides = {3, 1}; }));
  expect_in("does not fit", refused([](TorchTensor& t) { t.shape = {kHuge, 8}; }));
  expect_in("does not fit", refused([](TorchTensor& t) { t.strides = {kHuge, kHuge}; }));
  expect_in("does not fit", refused([](TorchTensor& t) { t.offset = kHuge; }));
  expect_in("does not fit", refused([](TorchTensor& t) {  // one number shown a million times
              t.shape = {1000000};
              t.strides = {0};
            }));
  expect_in("no number from 0 on", refused([](TorchTensor& t) { t.shape = {-2, -2}; }));
  expect_in("no number from 0 on", refused([](TorchTensor& t) { t.strides = {-2, 1}; }));
  expect_in("no readable storage", refused([](TorchTensor& t) { t.offset = -1; }));
  expect_in("2 extents and 1 strides", refused([](TorchTensor& t) { t.strides = {1}; }));
  expect_in("another size than described",
            refused([](TorchTensor& t) { t.storage_elements = 1000000; }));
  expect_in("another size than described", refused([](TorchTensor& t) { t.storage = "9"; }));
  expect_in("no readable description", refused([](TorchTensor& t) { t.storage_elements = -4; }));
  expect_in("no readable description",
            refused([](TorchTensor& t) { t.storage = std::string(100, '0'); }));
  expect_in("holds 'body.weight' twice", refused_pickle([] {
              TorchTensor same = kMatrix;
              same.name = "body.weight";
              return pickled_dict({kMatrix, same});
            }()));
}

TEST(TorchArchive, RefusesOtherArchives) {
  const std::string pickle = whole_pickle(pickled_dict({kMatrix}));
  const std::string old = refused_archive("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.");
  expect_in("torch.save(torch.load('net.pth', map_location='cpu'), 'new.pth')", old);
  expect_in("too short", refused_archive("PK"));
  expect_in("it has no directory", refused_archive("PK\x03\x04" + std::string(100, '\0')));
  expect_in("has no data.pkl", refused_archive(ZipBuilder().add("a/b", "c").finish()));
  expect_in(
      "has no data.pkl",
      refused_archive(ZipBuilder().add("a/data.pkl", pickle).add("b/data.pkl", pickle).finish()));
  expect_in("compressed or encrypted",
            refused_archive(ZipBuilder().add("a/data.pkl", pickle, 0, 8).finish()));
  expect_in("compressed or encrypted",
            refused_archive(ZipBuilder().add("a/data.pkl", pickle, 1).finish()));
  expect_in(
      "two members 'a/data.pkl'",
      refused_archive(ZipBuilder().add("a/data.pkl", pickle).add("a/data.pkl", pickle).finish()));
  expect_in(
      "not little-endian",
      refused_archive(ZipBuilder().add("a/data.pkl", pickle).add("a/byteorder", "big").finish()));
}

TEST(TorchArchive, RefusesMembersThatOverlapOrLeave) {
  const std::string good = archive(whole_pickle(pickled_dict({kMatrix})));
  const auto entry = good.find("PK\x01\x02");
  const auto changed = [&](std::size_t at, std::uint32_t value) {
    std::string bytes = good;
    bytes.replace(at, 4, little_endian(value));
    return refused_archive(bytes);
  };
  expect_in("overlaps another or leaves", changed(entry + 42, 0x7fffffff));
  std::string large = good;
  for (const std::size_t at : {entry + 20, entry + 24})
    large.replace(at, 4, little_endian<std::uint32_t>(0x7fffffff));
  expect_in("overlaps another or leaves", refused_archive(large));
  const auto second = good.find("PK\x01\x02", entry + 4);
  expect_in("overlaps another or leaves", changed(second + 42, 1));
  const auto end = good.rfind("PK\x05\x06");
  expect_in("does not fit the file", changed(end + 12, 0x7fffffff));
  expect_in("does not fit the file", changed(end + 16, 0x7fffffff));
}

TEST(TorchArchive, FindsAFlippedBitInItsValues) {
  const TemporaryFolder folder;
  std::string bytes = archive(whole_pickle(pickled_dict({kMatrix})));
  const auto place = bytes.find(text_of_values<float>({1.0F, 2.0F}));
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  const auto file = open_weights(folder.write("net.pth", bytes), "");
  expect_in("'net/data/0' was changed: it does not match its CRC-32",
            message_of<CheckpointError>([&] { values_of(*file, "body.weight"); }));
  EXPECT_EQ(crc32_of(std::as_bytes(std::span<const char>("123456789", 9))), 0xcbf43926U);
}

}  // namespace
}  // namespace vsr::runtime
