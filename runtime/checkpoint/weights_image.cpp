// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/hdf5_io.hpp"

namespace vsr::runtime {

ShardImage weights_image(const std::vector<TensorEntry>& tensors,
                         const std::map<std::string, std::string>& facts) {
  const Hdf5Session session;
  ShardImage image;
  MemoryFile file;
  for (const auto& [name, text] : facts) write_attribute(file.get(), name, text);
  std::vector<comm::Interval> places;
  for (const TensorEntry& tensor : tensors) {
    // Room now, values later: the file then costs memory for its frame only.
    const Hdf5Properties properties = dataset_properties();
    VSR_H5(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));
    VSR_H5(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER));
    const Hdf5Type type = file_type(tensor.dtype);
    const Hdf5Space space = space_of(tensor.shape);
    const Hdf5Dataset dataset =
        create_dataset(file.get(), tensor.name, type.get(), space.get(), properties);
    write_attribute(dataset.get(), "dtype", tensor.dtype);
    if (tensor.numel == 0) continue;
    const haddr_t offset = H5Dget_offset(dataset.get());
    if (offset == HADDR_UNDEF) throw Hdf5Error("HDF5 gave no place to '" + tensor.name + "'");
    const auto begin = static_cast<std::int64_t>(offset);
    image.array_offsets_bytes[tensor.name] = begin;
    places.push_back({begin, begin + tensor.numel * element_bytes(tensor.dtype)});
  }
  file.close();
  image.size_bytes = file.size_bytes();
  image.frame = parts_outside(file, std::move(places));
  return image;
}

}  // namespace vsr::runtime
