// SPDX-License-Identifier: Apache-2.0
// Reads HDF5 files with the library itself, as other programs do: the project only writes by it.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/hdf5_handles.hpp"

namespace vsr::test {

using runtime::Hdf5Attribute;
using runtime::Hdf5Dataset;
using runtime::Hdf5File;
using runtime::Hdf5Space;
using runtime::Hdf5Type;

inline Hdf5File open_hdf5(const std::string& path) {
  return Hdf5File(VSR_H5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)));
}

inline Hdf5Dataset open_dataset(hid_t parent, const std::string& name) {
  return Hdf5Dataset(VSR_H5(H5Dopen2(parent, name.c_str(), H5P_DEFAULT)));
}

inline std::vector<std::int64_t> shape_of(const Hdf5Dataset& dataset) {
  const Hdf5Space space(VSR_H5(H5Dget_space(dataset.get())));
  std::vector<hsize_t> extents(
      static_cast<std::size_t>(VSR_H5(H5Sget_simple_extent_ndims(space.get()))));
  if (!extents.empty()) VSR_H5(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr));
  return {extents.begin(), extents.end()};
}

template <typename T>
std::vector<T> dataset_values(hid_t parent, const std::string& name, hid_t memory_type) {
  const Hdf5Dataset dataset = open_dataset(parent, name);
  const Hdf5Space space(VSR_H5(H5Dget_space(dataset.get())));
  std::vector<T> values(
      static_cast<std::size_t>(VSR_H5(H5Sget_simple_extent_npoints(space.get()))));
  if (!values.empty())
    VSR_H5(H5Dread(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  return values;
}

/// A dataset of text: of one fixed length, or of variable ones.
inline std::vector<std::string> dataset_texts(hid_t parent, const std::string& name) {
  const Hdf5Dataset dataset = open_dataset(parent, name);
  const Hdf5Type type(VSR_H5(H5Dget_type(dataset.get())));
  if (H5Tis_variable_str(type.get()) <= 0) {
    std::string text(H5Tget_size(type.get()), '\0');
    VSR_H5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()));
    return {text};
  }
  const Hdf5Space space(VSR_H5(H5Dget_space(dataset.get())));
  std::vector<char*> pointers(
      static_cast<std::size_t>(VSR_H5(H5Sget_simple_extent_npoints(space.get()))));
  VSR_H5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()));
  std::vector<std::string> texts(pointers.begin(), pointers.end());
  VSR_H5(H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, pointers.data()));
  return texts;
}

inline std::string text_attribute(hid_t object, const std::string& name) {
  const Hdf5Attribute attribute(VSR_H5(H5Aopen(object, name.c_str(), H5P_DEFAULT)));
  const Hdf5Type type(VSR_H5(H5Aget_type(attribute.get())));
  std::string text(H5Tget_size(type.get()), '\0');
  VSR_H5(H5Aread(attribute.get(), type.get(), text.data()));
  return text;
}

inline std::int64_t int_attribute(hid_t object, const std::string& name) {
  const Hdf5Attribute attribute(VSR_H5(H5Aopen(object, name.c_str(), H5P_DEFAULT)));
  std::int64_t value = 0;
  VSR_H5(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value));
  return value;
}

/// Names of the links in a group, in order.
inline std::vector<std::string> link_names(hid_t group) {
  std::vector<std::string> names;
  const auto append = [](hid_t, const char* name, const H5L_info_t*, void* all) -> herr_t {
    static_cast<std::vector<std::string>*>(all)->push_back(name);
    return 0;
  };
  VSR_H5(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, append, &names));
  return names;
}

}  // namespace vsr::test
