// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/hdf5_io.hpp"

namespace vsr::runtime {
namespace {

/// Reserve room for the array in the file without writing it. @returns its place
std::int64_t reserve_array(hid_t file, const std::string& name, std::int64_t elements) {
  const Hdf5Properties properties = dataset_properties();
  VSR_H5(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));
  VSR_H5(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER));
  const Hdf5Space space = space_of({elements});
  const Hdf5Dataset dataset = create_dataset(file, name, H5T_IEEE_F32LE, space.get(), properties);
  if (elements == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) throw Hdf5Error("HDF5 gave no place to array '" + name + "'");
  return static_cast<std::int64_t>(offset);
}

}  // namespace

std::vector<FilePart> parts_outside(const MemoryFile& file, std::vector<comm::Interval> places) {
  std::sort(places.begin(), places.end(),
            [](comm::Interval a, comm::Interval b) { return a.begin < b.begin; });
  std::vector<FilePart> parts;
  std::int64_t next = 0;
  for (const comm::Interval place : places) {
    if (place.is_empty()) continue;
    if (place.begin > next) parts.push_back({next, file.read(next, place.begin)});
    next = place.end;
  }
  if (next < file.size_bytes()) parts.push_back({next, file.read(next, file.size_bytes())});
  return parts;
}

ShardImage shard_image(const Snapshot& snapshot, int rank, int world) {
  const Hdf5Session session;
  const std::int64_t elements = elements_of(snapshot.shard.intervals);
  ShardImage image;
  MemoryFile file;
  write_attribute(file.get(), "format", kCheckpointFormat);
  write_attribute(file.get(), "iteration", snapshot.iteration);
  write_attribute(file.get(), "rank", rank);
  write_attribute(file.get(), "world", world);
  std::vector<std::int64_t> borders;
  for (const comm::Interval interval : snapshot.shard.intervals)
    borders.insert(borders.end(), {interval.begin, interval.end});
  write_int64(file.get(), "intervals", borders,
              {static_cast<std::int64_t>(snapshot.shard.intervals.size()), 2});
  for (const auto& [name, values] : snapshot.shard.arrays)
    image.array_offsets_bytes[name] = reserve_array(file.get(), name, elements);
  file.close();

  image.size_bytes = file.size_bytes();
  std::vector<comm::Interval> places;
  for (const auto& [name, offset] : image.array_offsets_bytes)
    places.push_back({offset, offset + elements * static_cast<std::int64_t>(sizeof(float))});
  image.frame = parts_outside(file, std::move(places));
  return image;
}

std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape, comm::Interval run) {
  std::vector<Box> boxes;
  // The rows that the run covers whole make one box; a part of a row before and after is the same
  // question with a dimension less.
  const auto cut = [&](const auto& self, std::vector<std::uint64_t> start,
                       comm::Interval part) -> void {
    if (part.is_empty()) return;
    const std::size_t level = start.size();
    std::int64_t row = 1;
    for (std::size_t i = level + 1; i < shape.size(); ++i) row *= shape[i];
    std::int64_t first = part.begin / row;
    const std::int64_t last = part.end / row;
    const auto below = [&](std::int64_t index, std::int64_t begin, std::int64_t end) {
      std::vector<std::uint64_t> deeper = start;
      deeper.push_back(static_cast<std::uint64_t>(index));
      self(self, std::move(deeper), {begin, end});
    };
    if (first == last) {
      below(first, part.begin % row, part.end % row);
      return;
    }
    if (part.begin % row != 0) {
      below(first, part.begin % row, row);
      ++first;
    }
    if (last > first) {
      Box box;
      box.start = start;
      box.start.push_back(static_cast<std::uint64_t>(first));
      box.start.resize(shape.size(), 0);
      box.count.assign(level, 1);
      box.count.push_back(static_cast<std::uint64_t>(last - first));
      for (std::size_t i = level + 1; i < shape.size(); ++i)
        box.count.push_back(static_cast<std::uint64_t>(shape[i]));
      boxes.push_back(std::move(box));
    }
    if (part.end % row != 0) below(last, 0, part.end % row);
  };
  cut(cut, {}, run);
  return boxes;
}

}  // namespace vsr::runtime
