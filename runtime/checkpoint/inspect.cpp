// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/inspect.hpp"

#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

CheckpointHeader header_with_frames(const fs::path& folder) {
  CheckpointHeader header = read_header(folder);
  for (std::size_t i = 0; i < header.manifest.shards.size(); ++i) verify_frame(header, i);
  return header;
}

nlohmann::json describe_parameters(const std::vector<ParameterRecord>& parameters) {
  nlohmann::json all = nlohmann::json::array();
  for (const ParameterRecord& parameter : parameters)
    all.push_back({{"name", parameter.name},
                   {"shape", parameter.shape},
                   {"dtype", parameter.dtype},
                   {"elements", parameter.numel},
                   {"steps", parameter.steps}});
  return all;
}

nlohmann::json describe_buffers(const std::vector<BufferRecord>& buffers) {
  nlohmann::json all = nlohmann::json::array();
  for (const BufferRecord& buffer : buffers)
    all.push_back({{"name", buffer.name}, {"shape", buffer.shape}, {"dtype", buffer.dtype}});
  return all;
}

}  // namespace

ChosenCheckpoint choose_checkpoint(const fs::path& path) {
  ChosenCheckpoint chosen;
  chosen.header = first_usable(path, header_with_frames, chosen.passed_over);
  return chosen;
}

nlohmann::json describe(const CheckpointHeader& header) {
  const Manifest& manifest = header.manifest;
  nlohmann::json files = nlohmann::json::array();
  std::int64_t size_bytes = manifest.global_size_bytes;
  for (const ShardEntry& shard : manifest.shards) {
    files.push_back({{"name", shard.file},
                     {"size_bytes", shard.size_bytes},
                     {"elements", elements_of(shard.intervals)}});
    size_bytes += shard.size_bytes;
  }
  nlohmann::json arrays = nlohmann::json::array();
  for (const auto& [name, values] : header.snapshot.shard.arrays) arrays.push_back(name);
  return {{"folder", header.folder.string()},
          {"format", manifest.format},
          {"iteration", manifest.iteration},
          {"ranks", manifest.world},
          {"elements", manifest.elements},
          {"size_bytes", size_bytes},
          {"parameters", describe_parameters(header.snapshot.parameters)},
          {"arrays", arrays},
          {"buffers", describe_buffers(header.snapshot.buffers)},
          {"state", header.snapshot.state},
          {"files", files}};
}

CheckpointHeader with_array_only(const CheckpointHeader& header, const std::string& array) {
  CheckpointHeader result = header;
  std::string names;
  for (const auto& [name, values] : header.snapshot.shard.arrays)
    names += (names.empty() ? "" : ", ") + name;
  if (!header.snapshot.shard.arrays.contains(array))
    throw ConfigurationError("'" + header.folder.string() + "' holds no array " + array +
                             ", only: " + names);
  const auto keep = [&](auto& arrays) {
    std::erase_if(arrays, [&](const auto& entry) { return entry.first != array; });
  };
  keep(result.snapshot.shard.arrays);
  for (ShardEntry& shard : result.manifest.shards) keep(shard.arrays);
  return result;
}

std::vector<float> read_parameter(const CheckpointHeader& header, const std::string& array,
                                  const ParameterRecord& parameter) {
  ShardData shard = read_shard(header, {{parameter.begin, parameter.begin + parameter.numel}});
  return std::move(shard.arrays.at(array));
}

}  // namespace vsr::runtime
