// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/run_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm/error.hpp"
#include "fmt/format.h"

namespace vsr::runtime {
namespace {

constexpr const char* kBeta1Power = "beta1_power";
constexpr const char* kBeta2Power = "beta2_power";

std::string dtype_name(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kHalf:
      return "fp16";
    case torch::kBFloat16:
      return "bf16";
    case torch::kFloat:
      return "fp32";
    case torch::kDouble:
      return "fp64";
    case torch::kInt:
      return "int32";
    case torch::kLong:
      return "int64";
    case torch::kByte:
    case torch::kBool:
      return "uint8";
    default:
      throw ConfigurationError(
          fmt::format("a buffer of type {} cannot be saved", c10::toString(tensor.scalar_type())));
  }
}

ShardData copy_shard(const optim::ShardView& view) {
  ShardData shard{view.intervals(), {}};
  for (std::size_t array = 0; array < view.arrays.size(); ++array)
    shard.arrays[view.arrays[array]] = view.copy(array);
  return shard;
}

/// Refuse, before anything changes, what fill_shard could not use whole.
void check_shard(const ShardData& shard, const optim::ShardView& view) {
  if (shard.intervals != view.intervals())
    throw CheckpointError("the checkpoint was read for other pieces than the optimizer holds");
  const auto elements = static_cast<std::size_t>(elements_of(shard.intervals));
  for (const std::string& name : view.arrays) {
    const auto found = shard.arrays.find(name);
    if (found == shard.arrays.end() || found->second.size() != elements)
      throw CheckpointError("the checkpoint lacks the array " + name + " of the optimizer");
  }
}

void fill_shard(const ShardData& shard, const optim::ShardView& view) {
  for (std::size_t array = 0; array < view.arrays.size(); ++array)
    view.fill(array, shard.arrays.at(view.arrays[array]));
}

nlohmann::json state_json(const optim::OptimizerState& state, const Progress& progress) {
  nlohmann::json json;
  json["loss_scaler"] = {{"scale", state.scaler.scale},
                         {"clean_steps", state.scaler.clean_steps},
                         {"hysteresis_left", state.scaler.hysteresis_left},
                         {"skips_at_floor", state.scaler.skips_at_floor}};
  json["applied_steps"] = state.applied_steps;
  json["skipped_steps"] = state.skipped_steps;
  const bool is_finite = std::isfinite(progress.psnr_y) && std::isfinite(progress.bicubic_psnr_y);
  if (progress.is_validated && is_finite) {
    json["validation"] = {{"psnr_y", progress.psnr_y}, {"bicubic_psnr_y", progress.bicubic_psnr_y}};
  }
  if (progress.best_iteration >= 0)
    json["best"] = {{"iteration", progress.best_iteration}, {"psnr_y", progress.best_psnr_y}};
  return json;
}

optim::OptimizerState state_from(const Snapshot& snapshot) {
  optim::OptimizerState state;
  const nlohmann::json& scaler = snapshot.state.at("loss_scaler");
  state.scaler.scale = scaler.at("scale").get<double>();
  state.scaler.clean_steps = scaler.at("clean_steps").get<std::int64_t>();
  state.scaler.hysteresis_left = scaler.value("hysteresis_left", 0);  // younger than format 1
  state.scaler.skips_at_floor = scaler.at("skips_at_floor").get<std::int64_t>();
  state.applied_steps = snapshot.state.at("applied_steps").get<std::int64_t>();
  state.skipped_steps = snapshot.state.at("skipped_steps").get<std::int64_t>();
  for (const ParameterRecord& record : snapshot.parameters)
    state.parameters.push_back(
        {record.steps, record.extra.at(kBeta1Power), record.extra.at(kBeta2Power)});
  return state;
}

void fill_buffers(const std::vector<BufferRecord>& records,
                  const std::vector<optim::NamedBuffer>& buffers) {
  const torch::NoGradGuard no_gradients;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    torch::Tensor value = torch::empty_like(buffers[i].value, torch::MemoryFormat::Contiguous);
    if (value.numel() > 0)
      std::memcpy(value.data_ptr(), records[i].bytes.data(), records[i].bytes.size());
    buffers[i].value.copy_(value);
  }
}

}  // namespace

std::vector<ParameterRecord> parameter_records(const optim::Fp16Optimizer& optimizer) {
  const optim::OptimizerState state = optimizer.state();
  const auto specs = optimizer.layout().parameters();
  const auto places = optimizer.layout().places();
  std::vector<ParameterRecord> records;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const optim::ParameterCounters& counters = state.parameters[i];
    records.push_back({specs[i].name,
                       specs[i].shape,
                       std::string(optim::dtype_name(specs[i].dtype)),
                       places[i].logical_begin,
                       places[i].numel,
                       counters.steps,
                       {{kBeta1Power, counters.beta1_power}, {kBeta2Power, counters.beta2_power}}});
  }
  return records;
}

std::vector<BufferRecord> buffer_records(const std::vector<optim::NamedBuffer>& buffers) {
  std::vector<BufferRecord> records;
  for (const optim::NamedBuffer& buffer : buffers) {
    const torch::Tensor value = buffer.value.detach().contiguous();
    BufferRecord record{buffer.name, value.sizes().vec(), dtype_name(value), {}};
    record.bytes.resize(value.nbytes());
    if (!record.bytes.empty()) std::memcpy(record.bytes.data(), value.data_ptr(), value.nbytes());
    records.push_back(std::move(record));
  }
  return records;
}

Snapshot take_snapshot(optim::Fp16Optimizer& optimizer,
                       const std::vector<optim::NamedBuffer>& buffers, const Progress& progress,
                       const nlohmann::json& configuration) {
  Snapshot snapshot;
  snapshot.iteration = progress.iteration;
  snapshot.parameters = parameter_records(optimizer);
  snapshot.buffers = buffer_records(buffers);
  snapshot.state = state_json(optimizer.state(), progress);
  snapshot.state["configuration"] = configuration;
  snapshot.shard = copy_shard(optimizer.shard());
  return snapshot;
}

Progress restore_snapshot(const Snapshot& snapshot, optim::Fp16Optimizer& optimizer,
                          const std::vector<optim::NamedBuffer>& buffers) {
  Progress progress;
  progress.iteration = snapshot.iteration;
  check_shard(snapshot.shard, optimizer.shard());
  try {
    const optim::OptimizerState state = state_from(snapshot);
    if (snapshot.state.contains("validation")) {
      const nlohmann::json& validation = snapshot.state.at("validation");
      progress.psnr_y = validation.at("psnr_y").get<double>();
      progress.bicubic_psnr_y = validation.at("bicubic_psnr_y").get<double>();
      progress.is_validated = true;
    }
    if (snapshot.state.contains("best")) {
      progress.best_iteration = snapshot.state.at("best").at("iteration").get<std::int64_t>();
      progress.best_psnr_y = snapshot.state.at("best").at("psnr_y").get<double>();
    }
    optimizer.load_state(state);
    fill_shard(snapshot.shard, optimizer.shard());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(std::string("the state in the checkpoint is incomplete: ") +
                          error.what());
  } catch (const std::out_of_range&) {
    throw CheckpointError("the checkpoint lacks a counter of the optimizer");
  }
  fill_buffers(snapshot.buffers, buffers);
  optimizer.publish_masters();
  return progress;
}

std::vector<std::string> match_configuration(const nlohmann::json& saved,
                                             const nlohmann::json& current,
                                             const std::vector<std::string>& drifting) {
  for (const std::string& key : drifting)
    if (!current.contains(key))
      throw ConfigurationError("--allow-drift " + key +
                               ": a run is not compared by that; name one of the options that the "
                               "message about the difference names");
  std::vector<std::string> allowed;
  std::string differences;
  for (const auto& [key, value] : current.items()) {
    const auto found = saved.find(key);
    if (found == saved.end() || *found == value) continue;
    // A key with a space is a fact of the data and no option.
    const std::string difference =
        fmt::format("{}{}: the run has {}, now {}", key.find(' ') == std::string::npos ? "--" : "",
                    key, found->dump(), value.dump());
    if (std::ranges::find(drifting, key) != drifting.end())
      allowed.push_back(difference);
    else
      differences += "\n  " + difference;
  }
  if (differences.empty()) return allowed;
  throw ConfigurationError(
      "this run was made with other options or clips, so it would not continue as it began:" +
      differences +
      "\nGive the options and clips of the run, start another with --out, or change the run by "
      "--allow-drift with the name of each");
}

}  // namespace vsr::runtime
