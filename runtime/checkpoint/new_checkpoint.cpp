// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/new_checkpoint.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "comm/error.hpp"
#include "optim/flat_layout.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/new_step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

optim::Dtype layout_dtype(const ParameterRecord& parameter) {
  for (const optim::Dtype dtype : {optim::Dtype::fp16, optim::Dtype::bf16, optim::Dtype::fp32})
    if (parameter.dtype == optim::dtype_name(dtype)) return dtype;
  throw CheckpointError("parameter '" + parameter.name + "' has a replica of dtype " +
                        parameter.dtype + ", expected fp16, bf16 or fp32");
}

optim::FlatLayout layout_of(const std::vector<ParameterRecord>& parameters) {
  std::vector<optim::ParameterSpec> specs;
  for (const ParameterRecord& parameter : parameters)
    specs.push_back({parameter.name, parameter.shape, layout_dtype(parameter), true});
  return optim::FlatLayout(std::move(specs));
}

std::vector<comm::Interval> intervals_in(const optim::FlatLayout& layout, int rank, int world) {
  std::vector<comm::Interval> intervals;
  for (const optim::Piece& piece : layout.pieces(rank, world)) intervals.push_back(piece.logical);
  return intervals;
}

}  // namespace

std::vector<comm::Interval> intervals_of_rank(const std::vector<ParameterRecord>& parameters,
                                              int rank, int world) {
  return intervals_in(layout_of(parameters), rank, world);
}

void write_step_folder(const fs::path& wanted, Snapshot snapshot, int world,
                       const ShardSource& source) {
  const fs::path target = wanted.has_filename() ? wanted : wanted.parent_path();  // "name/"
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(target, ignored)))
    throw ConfigurationError("'" + target.string() +
                             "' exists already; remove it or choose another name");
  const fs::path folder = containing_folder(target);
  const fs::path temporary =
      folder / (".tmp-" + target.filename().string() + "-" + std::to_string(::getpid()));
  const optim::FlatLayout layout = layout_of(snapshot.parameters);
  create_folders(folder);
  remove_tree(temporary);
  try {
    create_folder(temporary);
    std::vector<ShardEntry> shards;
    for (int rank = 0; rank < world; ++rank) {
      snapshot.shard = source(intervals_in(layout, rank, world));
      shards.push_back(write_shard(temporary, snapshot, rank, world));
    }
    write_global_files(temporary, snapshot, shards);
    publish_folder(temporary, target);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
}

void reshard(const CheckpointHeader& header, const fs::path& target, int world) {
  if (world < 1 || world > kMostRanks)
    throw ConfigurationError("--ranks " + std::to_string(world) + ": expected a number from 1 to " +
                             std::to_string(kMostRanks));
  write_step_folder(
      target, header.snapshot, world,
      [&](const std::vector<comm::Interval>& intervals) { return read_shard(header, intervals); });
}

}  // namespace vsr::runtime
