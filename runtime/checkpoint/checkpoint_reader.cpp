// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint_reader.hpp"

#include <algorithm>

#include "comm/error.hpp"
#include "optim/large_array.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kManifestLimitBytes = std::int64_t{1} << 30;
constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;

std::string range_text(comm::Interval interval) {
  return "[" + std::to_string(interval.begin) + ", " + std::to_string(interval.end) + ")";
}

/// "'conv.weight' to 'conv.bias'": the parameters that have elements in `block`.
std::string owners_of(const std::vector<ParameterRecord>& parameters, comm::Interval block) {
  const ParameterRecord* first = nullptr;
  const ParameterRecord* last = nullptr;
  for (const ParameterRecord& parameter : parameters) {
    if (comm::intersect(block, {parameter.begin, parameter.begin + parameter.numel}).is_empty())
      continue;
    if (first == nullptr) first = &parameter;
    last = &parameter;
  }
  if (first == nullptr) return "no parameter";
  return first == last ? "'" + first->name + "'" : "'" + first->name + "' to '" + last->name + "'";
}

void expect_size(const fs::path& file, std::int64_t expected) {
  const std::int64_t size = InputFile(file).size_bytes();
  if (size != expected)
    throw CheckpointError("'" + file.string() + "' has " + std::to_string(size) +
                          " bytes, the manifest says " + std::to_string(expected));
}

/// Copies what is wanted of a block that was checked.
class WantedValues {
 public:
  explicit WantedValues(const std::vector<comm::Interval>& wanted) : wanted_(wanted) {
    std::int64_t at = 0;
    for (const comm::Interval interval : wanted_) {
      starts_.push_back(at);
      at += interval.is_empty() ? 0 : interval.size();
    }
  }

  bool meets(comm::Interval block) const {
    const auto first = first_ending_after(block.begin);
    return first < wanted_.size() && wanted_[first].begin < block.end;
  }

  void copy(comm::Interval block, const std::vector<float>& values,
            std::vector<float>& result) const {
    for (std::size_t i = first_ending_after(block.begin);
         i < wanted_.size() && wanted_[i].begin < block.end; ++i) {
      const comm::Interval part = comm::intersect(block, wanted_[i]);
      std::copy(values.begin() + (part.begin - block.begin),
                values.begin() + (part.end - block.begin),
                result.begin() + starts_[i] + (part.begin - wanted_[i].begin));
    }
  }

 private:
  std::size_t first_ending_after(std::int64_t element) const {
    return static_cast<std::size_t>(
        std::partition_point(wanted_.begin(), wanted_.end(),
                             [&](comm::Interval piece) { return piece.end <= element; }) -
        wanted_.begin());
  }

  const std::vector<comm::Interval>& wanted_;
  std::vector<std::int64_t> starts_;
};

void read_array(const CheckpointHeader& header, const ShardEntry& shard, const InputFile& file,
                const std::string& name, const WantedValues& wanted, std::vector<float>& result) {
  const ArrayEntry& array = shard.arrays.at(name);
  std::vector<float> values;
  std::int64_t at_bytes = array.offset_bytes;
  std::size_t index = 0;
  for (const comm::Interval block : checksum_blocks(shard.intervals)) {
    const std::int64_t place = at_bytes;
    const std::uint64_t expected = array.checksums[index++];
    at_bytes += block.size() * static_cast<std::int64_t>(sizeof(float));
    if (!wanted.meets(block)) continue;
    values.resize(static_cast<std::size_t>(block.size()));
    file.read_at(std::as_writable_bytes(std::span<float>(values)), place);
    if (checksum(std::as_bytes(std::span<const float>(values))) != expected)
      throw CheckpointError("'" + (header.folder / shard.file).string() + "' was changed: array '" +
                            name + "', elements " + range_text(block) +
                            " of the global index, which belong to " +
                            owners_of(header.snapshot.parameters, block));
    wanted.copy(block, values, result);
  }
}

/// Pieces without the empty ones; empty ones would break the order by their ends.
std::vector<comm::Interval> without_empty(const std::vector<comm::Interval>& intervals,
                                          std::int64_t elements) {
  std::vector<comm::Interval> result;
  std::int64_t last = 0;
  for (const comm::Interval interval : intervals) {
    if (interval.is_empty()) continue;
    VSR_CHECK(interval.begin >= last && interval.end <= elements,
              "wanted interval " + range_text(interval) + " is out of order or leaves the " +
                  std::to_string(elements) + " elements");
    result.push_back(interval);
    last = interval.end;
  }
  return result;
}

/// The values of each parameter in an array of the whole index; none where there is no such array.
std::vector<std::vector<float>> by_parameter(const CheckpointHeader& header, const ShardData& whole,
                                             const std::string& array) {
  std::vector<std::vector<float>> values;
  const auto found = whole.arrays.find(array);
  if (found == whole.arrays.end()) return values;
  for (const ParameterRecord& parameter : header.snapshot.parameters) {
    const auto first = found->second.begin() + parameter.begin;
    values.emplace_back(first, first + parameter.numel);
  }
  return values;
}

BufferRecord buffer_in(const BufferEntry& entry, std::span<const std::byte> global) {
  BufferRecord buffer{entry.name, entry.shape, entry.dtype, {}};
  std::int64_t bytes = elements_of_shape(entry.shape);
  if (bytes < 0 || __builtin_mul_overflow(bytes, element_bytes(entry.dtype), &bytes) ||
      entry.offset_bytes < 0 ||
      entry.offset_bytes > static_cast<std::int64_t>(global.size()) - bytes)
    throw CheckpointError("buffer '" + entry.name + "' leaves global.h5");
  const auto values =
      global.subspan(static_cast<std::size_t>(entry.offset_bytes), static_cast<std::size_t>(bytes));
  buffer.bytes.assign(values.begin(), values.end());
  return buffer;
}

/// All but the shard.
Snapshot snapshot_of(const Manifest& manifest, std::span<const std::byte> global) {
  Snapshot snapshot;
  snapshot.iteration = manifest.iteration;
  snapshot.parameters = manifest.parameters;
  for (const BufferEntry& buffer : manifest.buffers)
    snapshot.buffers.push_back(buffer_in(buffer, global));
  snapshot.state = manifest.state;
  return snapshot;
}

}  // namespace

Manifest read_manifest(const fs::path& step_folder) {
  const Manifest manifest =
      manifest_from_text(read_file(step_folder / "MANIFEST.json", kManifestLimitBytes));
  expect_size(step_folder / "global.h5", manifest.global_size_bytes);
  for (const ShardEntry& shard : manifest.shards)
    expect_size(step_folder / shard.file, shard.size_bytes);
  return manifest;
}

CheckpointHeader read_header(const fs::path& step_folder) {
  CheckpointHeader header;
  header.folder = step_folder;
  header.manifest = read_manifest(step_folder);
  const InputFile file(step_folder / "global.h5");
  std::vector<std::byte> image(static_cast<std::size_t>(header.manifest.global_size_bytes));
  file.read_at(image, 0);
  if (checksum(image) != header.manifest.global_checksum)
    throw CheckpointError("'" + (step_folder / "global.h5").string() +
                          "' was changed: it does not match the manifest");
  try {
    header.snapshot = snapshot_of(header.manifest, image);
    validate(header.snapshot);
  } catch (const ArgumentError& error) {
    throw CheckpointError("'" + (step_folder / "MANIFEST.json").string() +
                          "' contradicts itself: " + error.what());
  }
  if (total_elements(header.snapshot.parameters) != header.manifest.elements)
    throw CheckpointError("'" + (step_folder / "MANIFEST.json").string() +
                          "' contradicts itself: its parameters have other elements than it says");
  for (const auto& [name, array] : header.manifest.shards.front().arrays)
    header.snapshot.shard.arrays[name];
  return header;
}

void verify_frame(const CheckpointHeader& header, std::size_t shard_index) {
  const ShardEntry& shard = header.manifest.shards.at(shard_index);
  const std::int64_t array_bytes =
      elements_of(shard.intervals) * static_cast<std::int64_t>(sizeof(float));
  std::vector<std::int64_t> places = {shard.size_bytes};
  if (array_bytes > 0)
    for (const auto& [name, array] : shard.arrays) places.push_back(array.offset_bytes);
  std::sort(places.begin(), places.end());
  const InputFile file(header.folder / shard.file);
  FrameChecksum sum;
  std::vector<std::byte> bytes;
  std::int64_t next = 0;
  for (const std::int64_t place : places) {
    while (next < place) {
      bytes.resize(static_cast<std::size_t>(std::min(kReadBytes, place - next)));
      file.read_at(bytes, next);
      sum.add(bytes);
      next += static_cast<std::int64_t>(bytes.size());
    }
    next = place + array_bytes;
  }
  if (sum.value() != shard.frame_checksum)
    throw CheckpointError("'" + (header.folder / shard.file).string() +
                          "' was changed outside its arrays (HDF5 structures)");
}

ShardData read_shard(const CheckpointHeader& header, const std::vector<comm::Interval>& wanted) {
  ShardData result;
  result.intervals = wanted;
  const std::vector<comm::Interval> pieces = without_empty(wanted, header.manifest.elements);
  const WantedValues values(pieces);
  const auto elements = static_cast<std::size_t>(elements_of(pieces));
  for (const auto& [name, array] : header.manifest.shards.front().arrays) {
    optim::reserve_large(result.arrays[name], elements);
    result.arrays[name].resize(elements);
  }
  for (const ShardEntry& shard : header.manifest.shards) {
    if (std::none_of(shard.intervals.begin(), shard.intervals.end(), [&](comm::Interval piece) {
          return !piece.is_empty() && values.meets(piece);
        }))
      continue;
    const InputFile file(header.folder / shard.file);
    for (auto& [name, target] : result.arrays)
      read_array(header, shard, file, name, values, target);
  }
  return result;
}

StoredParameters read_parameters(const fs::path& path) {
  const auto read = [](const fs::path& folder) {
    const CheckpointHeader header = read_header(folder);
    for (std::size_t i = 0; i < header.manifest.shards.size(); ++i) verify_frame(header, i);
    StoredParameters stored;
    const ShardData shard = read_shard(header, {{0, header.manifest.elements}});
    stored.masters = by_parameter(header, shard, "master");
    if (!shard.arrays.contains("master"))
      throw CheckpointError("'" + folder.string() + "' holds no masters");
    stored.averages = by_parameter(header, shard, "ema");
    stored.iteration = header.snapshot.iteration;
    stored.parameters = header.snapshot.parameters;
    stored.buffers = header.snapshot.buffers;
    stored.state = header.snapshot.state;
    return stored;
  };
  std::vector<std::string> passed_over;
  return first_usable(path, read, passed_over);
}

void verify_checkpoint(const fs::path& step_folder) {
  const CheckpointHeader header = read_header(step_folder);
  for (std::size_t i = 0; i < header.manifest.shards.size(); ++i) {
    verify_frame(header, i);
    // Shard by shard, so that a network larger than the memory can be checked.
    for (const comm::Interval block : checksum_blocks(header.manifest.shards[i].intervals))
      read_shard(header, {block});
  }
}

}  // namespace vsr::runtime
