// SPDX-License-Identifier: Apache-2.0
// The HDF5 files of a checkpoint as bytes in memory. HDF5 lays out the files, we write and read
// them: so a full disk and a hostile file never meet the library, which survives neither. What we
// read we find by the manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/snapshot.hpp"
#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {

class MemoryFile;

/// Bytes of a file from `offset_bytes` on.
struct FilePart {
  std::int64_t offset_bytes = 0;
  std::vector<std::byte> bytes;
};

/// A shard file without the values of its arrays: FP32 values go, contiguous, to the offsets given.
/// The frame is everything else, in ascending order; it costs a few kB, however large the arrays.
struct ShardImage {
  std::int64_t size_bytes = 0;
  std::map<std::string, std::int64_t> array_offsets_bytes;
  std::vector<FilePart> frame;
};

/// Lay out the file of `rank`: one 1-D FP32 dataset per array, the dataset /intervals (int64, n x
/// 2, half-open, of the logical global index), and attributes format, iteration, rank, world.
/// @throws Hdf5Error
ShardImage shard_image(const Snapshot& snapshot, int rank, int world);

/// What of a finished file lies outside `places` (bytes), in ascending order.
std::vector<FilePart> parts_outside(const MemoryFile& file, std::vector<comm::Interval> places);

/// Lay out a file of weights: a dataset for each tensor under its name, with its shape and, as
/// attribute, its dtype; `facts` become attributes of the file.
/// @throws Hdf5Error
ShardImage weights_image(const std::vector<TensorEntry>& tensors,
                         const std::map<std::string, std::string>& facts);

/// A finished global.h5, and where the values of its buffers lie.
struct GlobalImage {
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> buffer_offsets_bytes;  ///< in the order of Snapshot::buffers
};

/// global.h5: /ARRAY/PARAMETER, virtual datasets over the shard files beside it, with the
/// parameter's shape (a scalar shows as one element; NaN where a shard file is not there);
/// /buffers; the table /params; /state, JSON text; attributes format, iteration, world.
/// @param shards what the file of each rank holds; their arrays have the names of the snapshot's
/// @throws Hdf5Error
GlobalImage global_image(const Snapshot& snapshot, const std::vector<ShardIntervals>& shards);

/// A box of a row-major tensor: `start` and `count` in each dimension.
struct Box {
  std::vector<std::uint64_t> start;
  std::vector<std::uint64_t> count;
};

/// Cut a run of elements of a row-major tensor of `shape` (no dimension 0) into boxes, in order.
std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape, comm::Interval run);

}  // namespace vsr::runtime
