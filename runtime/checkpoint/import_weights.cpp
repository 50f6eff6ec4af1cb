// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/match_parameters.hpp"
#include "runtime/checkpoint/new_checkpoint.hpp"
#include "runtime/checkpoint/new_step_folder.hpp"
#include "runtime/checkpoint/run_lock.hpp"
#include "runtime/checkpoint/step_folder.hpp"
#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

/// The tensors of a file by name.
class NamedWeights {
 public:
  NamedWeights(const fs::path& path, const std::string& key)
      : path_(path), file_(open_weights(path, key)) {
    const std::vector<TensorEntry>& tensors = file_->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) index_[tensors[i].name] = i;
  }

  /// Names and shapes have to be those of `like`.
  void match(const Snapshot& like) const {
    std::vector<TensorEntry> expected;
    for (const ParameterRecord& parameter : like.parameters)
      expected.push_back({parameter.name, parameter.shape, parameter.dtype, parameter.numel});
    for (const BufferRecord& buffer : like.buffers)
      expected.push_back(
          {buffer.name, buffer.shape, buffer.dtype, elements_of_shape(buffer.shape)});
    match_weights(expected, file_->tensors(), path_.string());
  }

  std::vector<float> values(const std::string& name) const {
    const std::size_t index = index_.at(name);
    return as_float(file_->read(index), file_->tensors()[index].dtype, name);
  }

  std::vector<std::byte> bytes(const BufferRecord& buffer) const {
    const std::size_t index = index_.at(buffer.name);
    if (file_->tensors()[index].dtype != buffer.dtype)
      throw ConfigurationError("'" + path_.string() + "': buffer '" + buffer.name + "' is " +
                               file_->tensors()[index].dtype + ", the network has " + buffer.dtype);
    return file_->read(index);
  }

 private:
  fs::path path_;
  std::unique_ptr<WeightsFile> file_;
  std::map<std::string, std::size_t> index_;
};

/// The state of a run before its first step; the loss scale stays, since it is a fact of the
/// network more than of the run.
nlohmann::json state_at_start(const nlohmann::json& like) {
  nlohmann::json state = {{"applied_steps", 0}, {"skipped_steps", 0}};
  if (like.contains("configuration")) state["configuration"] = like.at("configuration");
  if (like.contains("loss_scaler")) {
    nlohmann::json scaler = like.at("loss_scaler");
    for (const char* counter : {"clean_steps", "skips_at_floor"})
      if (scaler.contains(counter)) scaler[counter] = 0;
    state["loss_scaler"] = scaler;
  }
  return state;
}

Snapshot snapshot_at_start(const CheckpointHeader& like, const NamedWeights& weights) {
  Snapshot snapshot;
  snapshot.parameters = like.snapshot.parameters;
  for (ParameterRecord& parameter : snapshot.parameters) {
    parameter.steps = 0;
    // Running products of a factor per step: of no factor yet.
    for (auto& [key, value] : parameter.extra) value = 1.0;
  }
  snapshot.buffers = like.snapshot.buffers;
  for (BufferRecord& buffer : snapshot.buffers) buffer.bytes = weights.bytes(buffer);
  snapshot.state = state_at_start(like.snapshot.state);
  return snapshot;
}

/// The parts of all parameters in `intervals`, one after the other.
std::vector<float> masters_in(const std::vector<ParameterRecord>& parameters,
                              const std::vector<comm::Interval>& intervals,
                              const NamedWeights& weights) {
  std::vector<float> masters;
  for (const comm::Interval interval : intervals)
    for (const ParameterRecord& parameter : parameters) {
      const comm::Interval part =
          comm::intersect(interval, {parameter.begin, parameter.begin + parameter.numel});
      if (part.is_empty()) continue;
      const std::vector<float> values = weights.values(parameter.name);
      masters.insert(masters.end(), values.begin() + (part.begin - parameter.begin),
                     values.begin() + (part.end - parameter.begin));
    }
  return masters;
}

void refuse_used_folder(const fs::path& run_folder) {
  if (list_checkpoints(run_folder).empty() && damaged_folders(run_folder).empty()) return;
  throw ConfigurationError("'" + run_folder.string() +
                           "' holds checkpoints already; choose another folder for the import");
}

}  // namespace

fs::path import_weights(const fs::path& weights_path, const fs::path& run_folder,
                        const CheckpointHeader& like, const std::string& key) {
  const NamedWeights weights(weights_path, key);
  weights.match(like.snapshot);
  const Snapshot snapshot = snapshot_at_start(like, weights);
  const RunLock lock(run_folder);
  refuse_used_folder(run_folder);
  const fs::path target = run_folder / "ckpt" / step_name(0);
  write_step_folder(
      target, snapshot, like.manifest.world, [&](const std::vector<comm::Interval>& intervals) {
        ShardData shard;
        shard.intervals = intervals;
        std::vector<float> masters = masters_in(snapshot.parameters, intervals, weights);
        for (const auto& [name, none] : like.snapshot.shard.arrays)
          shard.arrays[name].resize(masters.size(), 0.0F);
        for (const char* name : {"master", "ema"})
          if (shard.arrays.contains(name)) shard.arrays[name] = masters;
        return shard;
      });
  write_pointer(target, "LATEST");
  return target;
}

}  // namespace vsr::runtime
