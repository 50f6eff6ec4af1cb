// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/hdf5_io.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

Hdf5Properties memory_file_access() {
  Hdf5Properties access(VSR_H5(H5Pcreate(H5P_FILE_ACCESS)));
  // The default driver follows links to find a file's real name, which one in memory has not.
  VSR_H5(H5Pset_fapl_stdio(access.get()));
  // Large arrays start on a page, for direct and memory-mapped access.
  VSR_H5(H5Pset_alignment(access.get(), 65536, 4096));
  VSR_H5(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG));
  return access;
}

Hdf5Type variable_text() {
  Hdf5Type type(VSR_H5(H5Tcopy(H5T_C_S1)));
  VSR_H5(H5Tset_size(type.get(), H5T_VARIABLE));
  VSR_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

Hdf5Type fixed_text(std::size_t bytes) {
  Hdf5Type type(VSR_H5(H5Tcopy(H5T_C_S1)));
  VSR_H5(H5Tset_size(type.get(), std::max<std::size_t>(bytes, 1)));
  VSR_H5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  VSR_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

void write_raw(const Hdf5Dataset& dataset, hid_t memory_type, const void* values,
               std::size_t count) {
  if (count == 0) return;
  VSR_H5(H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values));
}

}  // namespace

MemoryFile::MemoryFile() : descriptor_(::memfd_create("vsr_checkpoint", MFD_CLOEXEC)) {
  if (!descriptor_)
    throw IoError(std::string("cannot make a file in memory: ") + std::strerror(errno));
  path_ = "/proc/self/fd/" + std::to_string(descriptor_.get());
  const Hdf5Properties access = memory_file_access();
  file_ = Hdf5File(VSR_H5(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())));
}

void MemoryFile::close() {
  VSR_H5(H5Fclose(file_.release()));
}

std::int64_t MemoryFile::size_bytes() const {
  struct stat status = {};
  if (::fstat(descriptor_.get(), &status) != 0)
    throw IoError(std::string("cannot look at a file in memory: ") + std::strerror(errno));
  return status.st_size;
}

std::vector<std::byte> MemoryFile::read(std::int64_t begin_bytes, std::int64_t end_bytes) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(end_bytes - begin_bytes));
  InputFile(path_).read_at(bytes, begin_bytes);
  return bytes;
}

Hdf5Space space_of(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return Hdf5Space(VSR_H5(H5Screate(H5S_SCALAR)));
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return Hdf5Space(
      VSR_H5(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)));
}

Hdf5Properties dataset_properties() {
  Hdf5Properties properties(VSR_H5(H5Pcreate(H5P_DATASET_CREATE)));
  VSR_H5(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

Hdf5Type file_type(const std::string& dtype) {
  const auto copy = [](hid_t type) { return Hdf5Type(VSR_H5(H5Tcopy(type))); };
  if (dtype == "fp32") return copy(H5T_IEEE_F32LE);
  if (dtype == "fp64") return copy(H5T_IEEE_F64LE);
  if (dtype == "int32") return copy(H5T_STD_I32LE);
  if (dtype == "int64") return copy(H5T_STD_I64LE);
  if (dtype == "uint8") return copy(H5T_STD_U8LE);
  if (dtype == "bf16") return copy(H5T_STD_U16LE);
  if (dtype != "fp16") throw CheckpointError("'" + dtype + "' is no dtype of ours");
  Hdf5Type half = copy(H5T_IEEE_F32LE);
  VSR_H5(H5Tset_fields(half.get(), 15, 10, 5, 0, 10));
  VSR_H5(H5Tset_size(half.get(), 2));
  VSR_H5(H5Tset_ebias(half.get(), 15));
  return half;
}

Hdf5Dataset create_dataset(hid_t parent, const std::string& name, hid_t type, hid_t space,
                           const Hdf5Properties& properties) {
  return Hdf5Dataset(VSR_H5(
      H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, properties.get(), H5P_DEFAULT)));
}

void write_int64(hid_t parent, const std::string& name, const std::vector<std::int64_t>& values,
                 const std::vector<std::int64_t>& shape) {
  const Hdf5Dataset dataset =
      create_dataset(parent, name, H5T_STD_I64LE, space_of(shape).get(), dataset_properties());
  write_raw(dataset, H5T_NATIVE_INT64, values.data(), values.size());
}

void write_double(hid_t parent, const std::string& name, const std::vector<double>& values) {
  const Hdf5Space space = space_of({static_cast<std::int64_t>(values.size())});
  const Hdf5Dataset dataset =
      create_dataset(parent, name, H5T_IEEE_F64LE, space.get(), dataset_properties());
  write_raw(dataset, H5T_NATIVE_DOUBLE, values.data(), values.size());
}

void write_strings(hid_t parent, const std::string& name, const std::vector<std::string>& values) {
  const Hdf5Type type = variable_text();
  const Hdf5Space space = space_of({static_cast<std::int64_t>(values.size())});
  const Hdf5Dataset dataset =
      create_dataset(parent, name, type.get(), space.get(), dataset_properties());
  std::vector<const char*> pointers;
  for (const std::string& value : values) pointers.push_back(value.c_str());
  write_raw(dataset, type.get(), pointers.data(), pointers.size());
}

void write_text(hid_t parent, const std::string& name, const std::string& text) {
  const Hdf5Type type = fixed_text(text.size());
  const Hdf5Dataset dataset =
      create_dataset(parent, name, type.get(), space_of({}).get(), dataset_properties());
  write_raw(dataset, type.get(), text.data(), 1);
}

void write_attribute(hid_t object, const std::string& name, std::int64_t value) {
  const Hdf5Space space = space_of({});
  const Hdf5Attribute attribute(VSR_H5(
      H5Acreate2(object, name.c_str(), H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  VSR_H5(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value));
}

void write_attribute(hid_t object, const std::string& name, const std::string& text) {
  const Hdf5Type type = fixed_text(text.size());
  const Hdf5Space space = space_of({});
  const Hdf5Attribute attribute(
      VSR_H5(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  VSR_H5(H5Awrite(attribute.get(), type.get(), text.c_str()));
}

Hdf5Group create_group(hid_t parent, const std::string& name) {
  const Hdf5Properties properties(VSR_H5(H5Pcreate(H5P_GROUP_CREATE)));
  VSR_H5(H5Pset_obj_track_times(properties.get(), false));
  return Hdf5Group(
      VSR_H5(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT)));
}

}  // namespace vsr::runtime
