// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint_writer.hpp"

#include <unistd.h>

#include <span>
#include <system_error>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint64_t> write_array(OutputFile& file, const std::vector<float>& values,
                                       const std::vector<comm::Interval>& intervals,
                                       std::int64_t offset_bytes,
                                       std::atomic<std::int64_t>* written_bytes) {
  std::vector<std::uint64_t> checksums;
  std::span<const float> left(values);
  for (const comm::Interval block : checksum_blocks(intervals)) {
    const auto bytes = std::as_bytes(left.first(static_cast<std::size_t>(block.size())));
    checksums.push_back(checksum(bytes));
    file.write_at(bytes, offset_bytes);
    if (written_bytes != nullptr) *written_bytes += static_cast<std::int64_t>(bytes.size());
    offset_bytes += static_cast<std::int64_t>(bytes.size());
    left = left.subspan(static_cast<std::size_t>(block.size()));
  }
  return checksums;
}

/// Where names cannot be swapped: the old checkpoint steps aside under a name that the next start
/// knows, so that dying between the two renames loses nothing.
void replace_in_two_steps(const fs::path& temporary, const fs::path& target) {
  const fs::path aside = target.parent_path() / (kReplacedPrefix + target.filename().string());
  rename_path(target, aside);
  try {
    rename_path(temporary, target);
  } catch (...) {
    std::error_code ignored;
    fs::rename(aside, target, ignored);
    throw;
  }
  fsync_folder(containing_folder(target));
  remove_tree(aside);
}

}  // namespace

std::int64_t array_bytes(const ShardData& shard) {
  std::size_t values = 0;
  for (const auto& [name, array] : shard.arrays) values += array.size();
  return static_cast<std::int64_t>(values * sizeof(float));
}

ShardEntry write_shard(const fs::path& folder, const Snapshot& snapshot, int rank, int world,
                       std::atomic<std::int64_t>* written_bytes,
                       const std::function<void()>& meanwhile) {
  validate(snapshot);
  OutputFile file(folder / shard_name(rank, world));
  // The bulk first: a full disk or a quota then shows here, before HDF5 is asked for anything.
  file.allocate(array_bytes(snapshot.shard));
  const ShardImage image = shard_image(snapshot, rank, world);
  file.allocate(image.size_bytes);
  ShardEntry entry;
  entry.file = shard_name(rank, world);
  entry.size_bytes = image.size_bytes;
  entry.intervals = snapshot.shard.intervals;
  FrameChecksum frame;
  for (const FilePart& part : image.frame) {
    frame.add(part.bytes);
    file.write_at(part.bytes, part.offset_bytes);
  }
  entry.frame_checksum = frame.value();
  for (const auto& [name, values] : snapshot.shard.arrays) {
    ArrayEntry& array = entry.arrays[name];
    array.offset_bytes = image.array_offsets_bytes.at(name);
    array.checksums = write_array(file, values, entry.intervals, array.offset_bytes, written_bytes);
  }
  if (meanwhile) meanwhile();
  file.sync_and_close();
  return entry;
}

GlobalFile write_global_view(const fs::path& folder, const Snapshot& snapshot,
                             const std::vector<ShardIntervals>& intervals) {
  GlobalImage image = global_image(snapshot, intervals);
  OutputFile file(folder / "global.h5");
  file.write_at(image.bytes, 0);
  return {std::move(file), static_cast<std::int64_t>(image.bytes.size()), checksum(image.bytes),
          std::move(image.buffer_offsets_bytes)};
}

void write_manifest(const fs::path& folder, const Snapshot& snapshot,
                    const std::vector<ShardEntry>& shards, GlobalFile global) {
  Manifest manifest;
  manifest.world = static_cast<int>(shards.size());
  manifest.iteration = snapshot.iteration;
  manifest.elements = total_elements(snapshot.parameters);
  manifest.shards = shards;
  try {
    check_coverage(manifest);
  } catch (const CheckpointError& error) {
    throw ArgumentError(std::string("the ranks' snapshots do not fit together: ") + error.what());
  }
  global.file.sync_and_close();
  manifest.global_size_bytes = global.size_bytes;
  manifest.global_checksum = global.checksum;
  manifest.parameters = snapshot.parameters;
  for (std::size_t i = 0; i < snapshot.buffers.size(); ++i) {
    const BufferRecord& buffer = snapshot.buffers[i];
    manifest.buffers.push_back(
        {buffer.name, buffer.shape, buffer.dtype, global.buffer_offsets_bytes[i]});
  }
  manifest.state = snapshot.state;
  write_new_file(folder / "MANIFEST.json", to_text(manifest));
  fsync_folder(folder);
}

void write_global_files(const fs::path& folder, const Snapshot& snapshot,
                        const std::vector<ShardEntry>& shards) {
  std::vector<ShardIntervals> intervals;
  for (const ShardEntry& shard : shards) intervals.push_back(shard.intervals);
  write_manifest(folder, snapshot, shards, write_global_view(folder, snapshot, intervals));
}

void publish_folder(const fs::path& temporary, const fs::path& target) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    rename_path(temporary, target);
    fsync_folder(containing_folder(target));
    return;
  }
  if (!exchange_paths(temporary, target)) {
    replace_in_two_steps(temporary, target);
    return;
  }
  try {
    fsync_folder(containing_folder(target));
  } catch (...) {
    // The old one must not be what the clean-up after a failure removes.
    exchange_paths(temporary, target);
    throw;
  }
  // The old one, under the temporary name since the swap; if it stays, the next start removes it.
  fs::remove_all(temporary, ignored);
}

void write_pointer(const fs::path& step_folder, const std::string& name) {
  const std::string manifest = read_file(step_folder / "MANIFEST.json", std::int64_t{1} << 30);
  const auto sum = checksum(std::as_bytes(std::span<const char>(manifest)));
  write_file_atomically(step_folder.parent_path() / name,
                        step_folder.filename().string() + " " + checksum_text(sum) + "\n");
}

void delete_checkpoint(const fs::path& step_folder) {
  const fs::path trash = step_folder.parent_path() / (".trash-" + step_folder.filename().string() +
                                                      "-" + std::to_string(::getpid()));
  rename_path(step_folder, trash);
  remove_tree(trash);
}

}  // namespace vsr::runtime
