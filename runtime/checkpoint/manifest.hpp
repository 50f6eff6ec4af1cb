// SPDX-License-Identifier: Apache-2.0
// MANIFEST.json, the last file of a checkpoint to be written: it says what the other files must be,
// so that a checkpoint is whole exactly when its manifest holds, and where their values lie, so
// that they are read without the HDF5 library, which does not survive files that somebody damaged
// on purpose. Checksums go by blocks of the logical global index, so they survive another number of
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shard.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// Raised whenever an older program could not read the files; a fixture of each one stays readable.
inline constexpr int kCheckpointFormat = 1;
/// Elements under one checksum: 1 MiB of FP32, cut at multiples of this on the global index.
inline constexpr std::int64_t kChecksumElements = 262144;

/// XXH3-64 of bytes.
std::uint64_t checksum(std::span<const std::byte> bytes) noexcept;

/// Its 16 hexadecimal digits, as in MANIFEST.json and LATEST.
std::string checksum_text(std::uint64_t value);

/// One array of a shard file: where its FP32 values lie in the file, and their checksums.
struct ArrayEntry {
  std::int64_t offset_bytes = 0;
  std::vector<std::uint64_t> checksums;  ///< one per block of checksum_blocks(intervals)
};

/// One shard file.
struct ShardEntry {
  std::string file;
  std::int64_t size_bytes = 0;
  std::vector<comm::Interval> intervals;
  std::uint64_t frame_checksum = 0;  ///< of all bytes outside the arrays: HDF5's own structures
  std::map<std::string, ArrayEntry> arrays;
};

/// The pieces of the logical global index that the file of one rank holds.
using ShardIntervals = std::vector<comm::Interval>;

/// A buffer whose values lie in global.h5, contiguous and little-endian.
struct BufferEntry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  std::int64_t offset_bytes = 0;
};

struct Manifest {
  int format = kCheckpointFormat;
  int world = 0;
  std::int64_t iteration = 0;
  std::int64_t elements = 0;
  std::int64_t global_size_bytes = 0;
  std::uint64_t global_checksum = 0;
  std::vector<ShardEntry> shards;  ///< by rank
  std::vector<ParameterRecord> parameters;
  std::vector<BufferEntry> buffers;
  nlohmann::json state;  ///< of Snapshot
};

/// The pieces that have a checksum each: `intervals` cut at multiples of kChecksumElements, in
/// order; empty ones give none.
std::vector<comm::Interval> checksum_blocks(const std::vector<comm::Interval>& intervals);

/// The text of one shard's entry, as ranks send it to rank 0.
std::string to_text(const ShardEntry& entry);
/// @throws CheckpointError
ShardEntry shard_entry_from_text(std::string_view text);

/// The text of MANIFEST.json; it ends in a checksum of itself.
std::string to_text(const Manifest& manifest);
/// @throws CheckpointError for text that is no manifest, was changed, or whose shards do not cover
///         the global index once
/// @throws ConfigurationError for another format version: such a checkpoint is not damaged
Manifest manifest_from_text(std::string_view text);

/// Refuse shards that leave a gap, overlap, differ in their arrays or disagree with their sizes.
/// @throws CheckpointError naming the file and the range
void check_coverage(const Manifest& manifest);

}  // namespace vsr::runtime
