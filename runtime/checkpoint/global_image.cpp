// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/hdf5_io.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

/// A piece of the logical global index and where its values lie in a shard's arrays.
struct Piece {
  comm::Interval interval;
  std::size_t shard = 0;
  std::int64_t at = 0;  // element of the shard's arrays
};

/// A shard file as virtual datasets refer to it.
struct ShardFile {
  std::string name;
  std::int64_t elements = 0;  // of each array
};

std::vector<ShardFile> files_of(const std::vector<ShardIntervals>& shards) {
  std::vector<ShardFile> files;
  const int world = static_cast<int>(shards.size());
  for (int rank = 0; rank < world; ++rank)
    files.push_back({shard_name(rank, world), elements_of(shards[static_cast<std::size_t>(rank)])});
  return files;
}

std::vector<Piece> pieces_in_order(const std::vector<ShardIntervals>& shards) {
  std::vector<Piece> pieces;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    std::int64_t at = 0;
    for (const comm::Interval interval : shards[shard]) {
      if (interval.is_empty()) continue;
      pieces.push_back({interval, shard, at});
      at += interval.size();
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.interval.begin < b.interval.begin; });
  return pieces;
}

void map_box(const Hdf5Properties& properties, hid_t space, const Box& box, const ShardFile& shard,
             const std::string& array, std::int64_t at) {
  const std::vector<hsize_t> start(box.start.begin(), box.start.end());
  const std::vector<hsize_t> count(box.count.begin(), box.count.end());
  VSR_H5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr));
  hsize_t elements = 1;
  for (const hsize_t extent : count) elements *= extent;
  const auto first = static_cast<hsize_t>(at);
  const Hdf5Space source = space_of({shard.elements});
  VSR_H5(H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, &first, nullptr, &elements, nullptr));
  VSR_H5(H5Pset_virtual(properties.get(), space, shard.name.c_str(), array.c_str(), source.get()));
}

/// Show `parameter` in `group` by the pieces of the shards that hold it.
void write_virtual(hid_t group, const std::string& array, const ParameterRecord& parameter,
                   const std::vector<Piece>& pieces, const std::vector<ShardFile>& files) {
  const comm::Interval whole{parameter.begin, parameter.begin + parameter.numel};
  const std::vector<std::int64_t> shape =
      parameter.shape.empty() ? std::vector<std::int64_t>{1} : parameter.shape;
  const Hdf5Space space = space_of(shape);
  const Hdf5Properties properties = dataset_properties();
  if (!whole.is_empty()) {
    const float missing = std::numeric_limits<float>::quiet_NaN();
    VSR_H5(H5Pset_fill_value(properties.get(), H5T_NATIVE_FLOAT, &missing));
  }
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& candidate) {
    return candidate.interval.end <= whole.begin;
  });
  for (; piece != pieces.end() && piece->interval.begin < whole.end; ++piece) {
    const comm::Interval part{std::max(whole.begin, piece->interval.begin),
                              std::min(whole.end, piece->interval.end)};
    std::int64_t at = piece->at + part.begin - piece->interval.begin;
    for (const Box& box : boxes_of_run(shape, {part.begin - whole.begin, part.end - whole.begin})) {
      map_box(properties, space.get(), box, files[piece->shard], array, at);
      std::int64_t elements = 1;
      for (const std::uint64_t extent : box.count) elements *= static_cast<std::int64_t>(extent);
      at += elements;
    }
  }
  VSR_H5(H5Sselect_all(space.get()));
  create_dataset(group, parameter.name, H5T_IEEE_F32LE, space.get(), properties);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return nlohmann::json(shape).dump();
}

void write_table(hid_t file, const std::vector<ParameterRecord>& parameters) {
  const Hdf5Group table = create_group(file, "params");
  const std::vector<std::int64_t> length = {static_cast<std::int64_t>(parameters.size())};
  std::vector<std::string> names, shapes, dtypes;
  std::vector<std::int64_t> begins, counts, steps;
  std::map<std::string, std::vector<double>> extra;
  for (const ParameterRecord& parameter : parameters) {
    names.push_back(parameter.name);
    shapes.push_back(shape_text(parameter.shape));
    dtypes.push_back(parameter.dtype);
    begins.push_back(parameter.begin);
    counts.push_back(parameter.numel);
    steps.push_back(parameter.steps);
    for (const auto& [key, value] : parameter.extra) extra[key].push_back(value);
  }
  write_strings(table.get(), "name", names);
  write_strings(table.get(), "shape", shapes);
  write_strings(table.get(), "dtype", dtypes);
  write_int64(table.get(), "begin", begins, length);
  write_int64(table.get(), "numel", counts, length);
  write_int64(table.get(), "steps", steps, length);
  const Hdf5Group more = create_group(table.get(), "extra");
  for (const auto& [key, values] : extra) write_double(more.get(), key, values);
}

/// @returns the offset of each in the file; 0 for one without elements
std::vector<std::int64_t> write_buffers(hid_t file, const std::vector<BufferRecord>& buffers) {
  const Hdf5Group group = create_group(file, "buffers");
  std::vector<std::int64_t> offsets;
  for (const BufferRecord& buffer : buffers) {
    const Hdf5Type type = file_type(buffer.dtype);
    const Hdf5Space space = space_of(buffer.shape);
    const Hdf5Dataset dataset =
        create_dataset(group.get(), buffer.name, type.get(), space.get(), dataset_properties());
    if (!buffer.bytes.empty())
      VSR_H5(
          H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer.bytes.data()));
    write_attribute(dataset.get(), "dtype", buffer.dtype);
    write_attribute(dataset.get(), "position", static_cast<std::int64_t>(offsets.size()));
    offsets.push_back(
        buffer.bytes.empty() ? 0 : static_cast<std::int64_t>(H5Dget_offset(dataset.get())));
  }
  return offsets;
}

}  // namespace

GlobalImage global_image(const Snapshot& snapshot, const std::vector<ShardIntervals>& shards) {
  const Hdf5Session session;
  GlobalImage image;
  MemoryFile file;
  write_attribute(file.get(), "format", kCheckpointFormat);
  write_attribute(file.get(), "iteration", snapshot.iteration);
  write_attribute(file.get(), "world", static_cast<std::int64_t>(shards.size()));
  const std::vector<Piece> pieces = pieces_in_order(shards);
  const std::vector<ShardFile> files = files_of(shards);
  for (const auto& [array, values] : snapshot.shard.arrays) {
    const Hdf5Group group = create_group(file.get(), array);
    for (const ParameterRecord& parameter : snapshot.parameters)
      write_virtual(group.get(), array, parameter, pieces, files);
  }
  write_table(file.get(), snapshot.parameters);
  image.buffer_offsets_bytes = write_buffers(file.get(), snapshot.buffers);
  write_text(file.get(), "state", snapshot.state.dump());
  file.close();
  image.bytes = file.read(0, file.size_bytes());
  return image;
}

}  // namespace vsr::runtime
