// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/json_shape.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
/// Room for the table of 100000 tensors; a longer one is no file of weights.
constexpr std::int64_t kMostHeaderBytes = std::int64_t{1} << 24;
/// The table is an object of objects with lists of numbers.
constexpr int kMostLevels = 3;
constexpr std::size_t kMostDimensions = 64;

/// The format's word for each of our dtypes.
constexpr std::array<std::pair<const char*, const char*>, 7> kDtypes = {{{"F16", "fp16"},
                                                                         {"BF16", "bf16"},
                                                                         {"F32", "fp32"},
                                                                         {"F64", "fp64"},
                                                                         {"I32", "int32"},
                                                                         {"I64", "int64"},
                                                                         {"U8", "uint8"}}};

/// An entry with its place in the file.
struct Place {
  TensorEntry entry;
  std::int64_t begin_bytes = 0;  ///< from the end of the table
  std::int64_t end_bytes = 0;
};

std::string our_dtype(const std::string& word, const std::string& name) {
  for (const auto& [theirs, ours] : kDtypes)
    if (word == theirs) return ours;
  throw CheckpointError("'" + name + "' is of dtype " + word +
                        ", expected F16, BF16, F32, F64, I32, I64 or U8");
}

Place place_of(const std::string& name, const json& value) {
  if (name.size() > kMostNameBytes)
    throw CheckpointError("a name has " + std::to_string(name.size()) +
                          " bytes, expected at most " + std::to_string(kMostNameBytes));
  Place place;
  place.entry.name = name;
  place.entry.dtype = our_dtype(value.at("dtype").get<std::string>(), name);
  const json& shape = value.at("shape");
  if (!shape.is_array() || shape.size() > kMostDimensions)
    throw CheckpointError("'" + name + "' has no readable shape");
  for (const json& extent : shape) {
    // A number with a fraction or a sign would be turned into another one without a word.
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > INT64_MAX)
      throw CheckpointError("'" + name + "' has the extent " + extent.dump());
    place.entry.shape.push_back(extent.get<std::int64_t>());
  }
  place.entry.numel = elements_of_shape(place.entry.shape);
  const json& offsets = value.at("data_offsets");
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    throw CheckpointError("'" + name + "' has no pair of data_offsets");
  place.begin_bytes = offsets[0].get<std::int64_t>();
  place.end_bytes = offsets[1].get<std::int64_t>();
  return place;
}

/// Refuse places that overlap, leave gaps or do not fit their shapes.
void check_places(std::vector<Place>& places, std::int64_t data_bytes) {
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
  });
  std::int64_t next = 0;
  for (const Place& place : places) {
    const auto range =
        "[" + std::to_string(place.begin_bytes) + ", " + std::to_string(place.end_bytes) + ")";
    if (place.begin_bytes != next || place.end_bytes < place.begin_bytes ||
        place.end_bytes > data_bytes)
      throw CheckpointError("'" + place.entry.name + "' has bytes " + range + " of " +
                            std::to_string(data_bytes) + ", expected them to begin at " +
                            std::to_string(next));
    std::int64_t expected = 0;
    if (place.entry.numel < 0 ||
        __builtin_mul_overflow(place.entry.numel, element_bytes(place.entry.dtype), &expected) ||
        place.end_bytes - place.begin_bytes != expected)
      throw CheckpointError("'" + place.entry.name + "' has bytes " + range +
                            ", which do not fit its shape " + json(place.entry.shape).dump());
    next = place.end_bytes;
  }
  if (next != data_bytes)
    throw CheckpointError(std::to_string(data_bytes - next) +
                          " bytes at its end belong to no tensor");
}

class SafetensorsFile : public WeightsFile {
 public:
  explicit SafetensorsFile(const fs::path& path) : path_(path), file_(path) {
    try {
      read_table();
    } catch (const json::exception& error) {
      throw CheckpointError("'" + path_.string() + "': its table cannot be read: " + error.what());
    } catch (const CheckpointError& error) {
      throw CheckpointError("'" + path_.string() + "': " + error.what());
    }
  }

  const std::vector<TensorEntry>& tensors() const override { return entries_; }

  std::vector<std::byte> read(std::size_t index) const override {
    const Place& place = places_.at(index);
    std::vector<std::byte> bytes(static_cast<std::size_t>(place.end_bytes - place.begin_bytes));
    file_.read_at(bytes, data_ + place.begin_bytes);
    return bytes;
  }

 private:
  void read_table() {
    std::uint64_t length = 0;
    if (file_.size_bytes() < kLengthBytes)
      throw CheckpointError("too short for a safetensors file");
    file_.read_at(std::as_writable_bytes(std::span<std::uint64_t>(&length, 1)), 0);
    if (length > static_cast<std::uint64_t>(kMostHeaderBytes) ||
        static_cast<std::int64_t>(length) > file_.size_bytes() - kLengthBytes)
      throw CheckpointError("claims a table of " + std::to_string(length) +
                            " bytes, the file has " + std::to_string(file_.size_bytes()) +
                            " and at most " + std::to_string(kMostHeaderBytes) + " are read");
    std::string text(length, '\0');
    file_.read_at(std::as_writable_bytes(std::span<char>(text)), kLengthBytes);
    data_ = kLengthBytes + static_cast<std::int64_t>(length);
    check_json_shape(text, kMostLevels, "its table");
    const json table = json::parse(text);
    if (!table.is_object()) throw CheckpointError("its table is no object");
    for (const auto& [name, value] : table.items())
      if (name != "__metadata__") places_.push_back(place_of(name, value));
    check_places(places_, file_.size_bytes() - data_);
    for (const Place& place : places_) entries_.push_back(place.entry);
  }

  fs::path path_;
  InputFile file_;
  std::int64_t data_ = 0;
  std::vector<Place> places_;
  std::vector<TensorEntry> entries_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_safetensors(const fs::path& path) {
  return std::make_unique<SafetensorsFile>(path);
}

std::string safetensors_header(const std::vector<TensorEntry>& tensors,
                               const std::map<std::string, std::string>& facts) {
  json table = json::object();
  if (!facts.empty()) table["__metadata__"] = facts;
  std::int64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    VSR_CHECK(tensor.name != "__metadata__" && !table.contains(tensor.name),
              "'" + tensor.name + "' cannot be a name in a safetensors file");
    const std::int64_t end = at + tensor.numel * element_bytes(tensor.dtype);
    const char* word = nullptr;
    for (const auto& [theirs, ours] : kDtypes)
      if (tensor.dtype == ours) word = theirs;
    VSR_CHECK(word != nullptr, "tensors of dtype " + tensor.dtype + " cannot be written");
    table[tensor.name] = {{"dtype", word}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text;
  try {
    text = table.dump();
  } catch (const json::exception& error) {
    throw CheckpointError(std::string("a name cannot be written as JSON: ") + error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + text;
}

}  // namespace vsr::runtime
