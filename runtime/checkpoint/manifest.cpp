// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/manifest.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "comm/error.hpp"
#include "runtime/checkpoint/json_shape.hpp"

static_assert(std::endian::native == std::endian::little, "files hold little-endian values");

namespace vsr::runtime {
namespace {

using nlohmann::json;

/// Largest index we believe in: bytes of FP32 stay far from the end of int64.
constexpr std::int64_t kMostElements = std::int64_t{1} << 58;
/// Levels of JSON that functions which call themselves can follow.
constexpr int kMostLevels = 64;

}  // namespace

std::string checksum_text(std::uint64_t value) {
  std::array<char, 17> text = {};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

namespace {

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    throw CheckpointError("'" + text + "' is no checksum of 16 hexadecimal digits");
  return value;
}

std::string range_text(comm::Interval interval) {
  return "[" + std::to_string(interval.begin) + ", " + std::to_string(interval.end) + ")";
}

json to_json(const ShardEntry& entry) {
  json intervals = json::array();
  for (const comm::Interval interval : entry.intervals)
    intervals.push_back({interval.begin, interval.end});
  json arrays = json::object();
  for (const auto& [name, array] : entry.arrays) {
    json checksums = json::array();
    for (const std::uint64_t value : array.checksums) checksums.push_back(checksum_text(value));
    arrays[name] = {{"offset_bytes", array.offset_bytes}, {"xxh3", checksums}};
  }
  return {{"file", entry.file},
          {"size_bytes", entry.size_bytes},
          {"frame_xxh3", checksum_text(entry.frame_checksum)},
          {"intervals", intervals},
          {"arrays", arrays}};
}

ShardEntry shard_from_json(const json& value) {
  ShardEntry entry;
  entry.file = value.at("file").get<std::string>();
  entry.size_bytes = value.at("size_bytes").get<std::int64_t>();
  entry.frame_checksum = from_hex(value.at("frame_xxh3").get<std::string>());
  for (const json& pair : value.at("intervals"))
    entry.intervals.push_back({pair.at(0).get<std::int64_t>(), pair.at(1).get<std::int64_t>()});
  for (const auto& [name, array] : value.at("arrays").items()) {
    ArrayEntry& stored = entry.arrays[name];
    stored.offset_bytes = array.at("offset_bytes").get<std::int64_t>();
    for (const json& text : array.at("xxh3"))
      stored.checksums.push_back(from_hex(text.get<std::string>()));
  }
  // A name with a folder in it would make a reader leave the checkpoint.
  if (entry.file.empty() || entry.file.find('/') != std::string::npos)
    throw CheckpointError("'" + entry.file + "' is no name of a shard file");
  return entry;
}

json to_json(const ParameterRecord& parameter) {
  return {{"name", parameter.name},   {"shape", parameter.shape}, {"dtype", parameter.dtype},
          {"begin", parameter.begin}, {"numel", parameter.numel}, {"steps", parameter.steps},
          {"extra", parameter.extra}};
}

ParameterRecord parameter_from_json(const json& value) {
  return {value.at("name").get<std::string>(),
          value.at("shape").get<std::vector<std::int64_t>>(),
          value.at("dtype").get<std::string>(),
          value.at("begin").get<std::int64_t>(),
          value.at("numel").get<std::int64_t>(),
          value.at("steps").get<std::int64_t>(),
          value.at("extra").get<std::map<std::string, double>>()};
}

json to_json(const BufferEntry& buffer) {
  return {{"name", buffer.name},
          {"shape", buffer.shape},
          {"dtype", buffer.dtype},
          {"offset_bytes", buffer.offset_bytes}};
}

BufferEntry buffer_from_json(const json& value) {
  return {value.at("name").get<std::string>(), value.at("shape").get<std::vector<std::int64_t>>(),
          value.at("dtype").get<std::string>(), value.at("offset_bytes").get<std::int64_t>()};
}

/// `entries` as a JSON array, a line each.
template <typename Entry>
std::string lines_of(const std::vector<Entry>& entries) {
  std::string text = "[";
  for (std::size_t i = 0; i < entries.size(); ++i)
    text += (i == 0 ? "\n  " : ",\n  ") + to_json(entries[i]).dump();
  return text + "\n ]";
}

/// Run `parse` and turn what the JSON library throws into a CheckpointError.
template <typename Parse>
auto parsed(const std::string& what, Parse parse) {
  try {
    return parse();
  } catch (const json::exception& error) {
    throw CheckpointError(what + " cannot be read: " + error.what());
  }
}

std::string closing_line(std::string_view head) {
  return std::string(1, '"')
      .append(checksum_text(XXH3_64bits(head.data(), head.size())))
      .append("\"\n}\n");
}

constexpr std::string_view kChecksumKey = "\n \"manifest_xxh3\": ";

/// Number of checksum_blocks(intervals) without making them: a damaged file may claim any range.
std::int64_t count_blocks(const std::vector<comm::Interval>& intervals) {
  std::int64_t count = 0;
  for (const comm::Interval interval : intervals)
    if (!interval.is_empty())
      count += (interval.end - 1) / kChecksumElements - interval.begin / kChecksumElements + 1;
  return count;
}

void check_intervals(const ShardEntry& shard, std::int64_t elements) {
  std::int64_t last = 0;
  for (const comm::Interval interval : shard.intervals) {
    if (interval.is_empty()) continue;
    if (interval.begin < last || interval.end > elements)
      throw CheckpointError(shard.file + ": interval " + range_text(interval) +
                            " overlaps or leaves the " + std::to_string(elements) + " elements");
    last = interval.end;
  }
}

void check_arrays(const ShardEntry& shard) {
  std::int64_t elements = 0;
  for (const comm::Interval interval : shard.intervals)
    if (!interval.is_empty()) elements += interval.size();
  const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(float));
  std::vector<std::int64_t> offsets;
  for (const auto& [name, array] : shard.arrays) {
    if (static_cast<std::int64_t>(array.checksums.size()) != count_blocks(shard.intervals))
      throw CheckpointError(shard.file + ": array '" + name + "' has " +
                            std::to_string(array.checksums.size()) + " checksums, expected " +
                            std::to_string(count_blocks(shard.intervals)));
    if (array.offset_bytes < 0 || array.offset_bytes > shard.size_bytes - bytes)
      throw CheckpointError(shard.file + ": array '" + name + "' leaves the file");
    offsets.push_back(array.offset_bytes);
  }
  std::sort(offsets.begin(), offsets.end());
  for (std::size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1] + bytes)
      throw CheckpointError(shard.file + ": two arrays overlap in the file");
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<comm::Interval> checksum_blocks(const std::vector<comm::Interval>& intervals) {
  std::vector<comm::Interval> blocks;
  for (const comm::Interval interval : intervals)
    for (std::int64_t begin = interval.begin; begin < interval.end;) {
      const std::int64_t cut = (begin / kChecksumElements + 1) * kChecksumElements;
      blocks.push_back({begin, std::min(cut, interval.end)});
      begin = blocks.back().end;
    }
  return blocks;
}

std::string to_text(const ShardEntry& entry) {
  return to_json(entry).dump();
}

ShardEntry shard_entry_from_text(std::string_view text) {
  return parsed("entry of a shard", [&] { return shard_from_json(json::parse(text)); });
}

std::string to_text(const Manifest& manifest) {
  const json global = {{"file", "global.h5"},
                       {"size_bytes", manifest.global_size_bytes},
                       {"xxh3", checksum_text(manifest.global_checksum)}};
  std::string head =
      "{\n \"format\": " + std::to_string(manifest.format) +
      ",\n \"iteration\": " + std::to_string(manifest.iteration) +
      ",\n \"world\": " + std::to_string(manifest.world) +
      ",\n \"elements\": " + std::to_string(manifest.elements) + ",\n \"checksum\": \"XXH3-64\"" +
      ",\n \"checksum_elements\": " + std::to_string(kChecksumElements) +
      ",\n \"global\": " + global.dump() + ",\n \"shards\": " + lines_of(manifest.shards) +
      ",\n \"parameters\": " + lines_of(manifest.parameters) +
      ",\n \"buffers\": " + lines_of(manifest.buffers) + ",\n \"state\": " + manifest.state.dump() +
      ",";
  head += kChecksumKey;
  return head + closing_line(head);
}

Manifest manifest_from_text(std::string_view text) {
  const auto key = text.rfind(kChecksumKey);
  if (key == std::string_view::npos)
    throw CheckpointError("MANIFEST.json is cut off or no manifest of ours");
  const std::string_view head = text.substr(0, key + kChecksumKey.size());
  if (text.substr(head.size()) != closing_line(head))
    throw CheckpointError("MANIFEST.json was changed: it does not match its own checksum");
  check_json_shape(std::string(text), kMostLevels, "MANIFEST.json");
  Manifest manifest = parsed("MANIFEST.json", [&] {
    const json value = json::parse(text);
    Manifest result;
    result.format = value.at("format").get<int>();
    if (result.format != kCheckpointFormat)
      throw ConfigurationError("checkpoint of format " + std::to_string(result.format) +
                               ", this program reads format " + std::to_string(kCheckpointFormat) +
                               ": use the program that wrote it");
    result.iteration = value.at("iteration").get<std::int64_t>();
    result.world = value.at("world").get<int>();
    result.elements = value.at("elements").get<std::int64_t>();
    const json& global = value.at("global");
    result.global_size_bytes = global.at("size_bytes").get<std::int64_t>();
    result.global_checksum = from_hex(global.at("xxh3").get<std::string>());
    if (value.at("checksum_elements").get<std::int64_t>() != kChecksumElements)
      throw CheckpointError("MANIFEST.json uses other checksum blocks than this program");
    for (const json& shard : value.at("shards")) result.shards.push_back(shard_from_json(shard));
    for (const json& parameter : value.at("parameters"))
      result.parameters.push_back(parameter_from_json(parameter));
    for (const json& buffer : value.at("buffers"))
      result.buffers.push_back(buffer_from_json(buffer));
    result.state = value.at("state");
    return result;
  });
  check_coverage(manifest);
  return manifest;
}

void check_coverage(const Manifest& manifest) {
  if (manifest.world < 1 || manifest.shards.size() != static_cast<std::size_t>(manifest.world))
    throw CheckpointError("the manifest lists " + std::to_string(manifest.shards.size()) +
                          " shards of a run on " + std::to_string(manifest.world) + " ranks");
  if (manifest.elements < 0 || manifest.elements > kMostElements)
    throw CheckpointError("the manifest claims " + std::to_string(manifest.elements) + " elements");
  std::vector<comm::Interval> all;
  for (const ShardEntry& shard : manifest.shards) {
    check_intervals(shard, manifest.elements);
    check_arrays(shard);
    for (const comm::Interval interval : shard.intervals)
      if (!interval.is_empty()) all.push_back(interval);
    const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (!std::equal(shard.arrays.begin(), shard.arrays.end(),
                    manifest.shards.front().arrays.begin(), manifest.shards.front().arrays.end(),
                    same_key))
      throw CheckpointError(shard.file + " holds other arrays than " +
                            manifest.shards.front().file);
  }
  std::sort(all.begin(), all.end(),
            [](comm::Interval a, comm::Interval b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (const comm::Interval interval : all) {
    if (interval.begin != next)
      throw CheckpointError(
          "the shards " + std::string(interval.begin > next ? "miss" : "overlap in") + " " +
          range_text({std::min(next, interval.begin), std::max(next, interval.begin)}) +
          " of the global index");
    next = interval.end;
  }
  if (next != manifest.elements)
    throw CheckpointError("the shards miss " + range_text({next, manifest.elements}) +
                          " of the global index");
}

}  // namespace vsr::runtime
