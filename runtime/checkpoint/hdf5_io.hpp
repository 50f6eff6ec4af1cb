// SPDX-License-Identifier: Apache-2.0
// The few ways in which this folder writes datasets and attributes. Private; call inside
// an Hdf5Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/hdf5_handles.hpp"

namespace vsr::runtime {

/// A new HDF5 file in anonymous memory. Space that is reserved but never written costs no memory.
class MemoryFile {
 public:
  /// @throws IoError when the system gives no such file; Hdf5Error
  MemoryFile();
  hid_t get() const noexcept { return file_.get(); }
  /// Finish the HDF5 file; afterwards only the two functions below may be called.
  void close();
  std::int64_t size_bytes() const;
  std::vector<std::byte> read(std::int64_t begin_bytes, std::int64_t end_bytes) const;

 private:
  FileDescriptor descriptor_;
  std::string path_;
  Hdf5File file_;
};

/// A data space of `shape`; scalar for an empty one.
Hdf5Space space_of(const std::vector<std::int64_t>& shape);
/// Properties of a dataset without time stamps: equal states give equal bytes.
Hdf5Properties dataset_properties();
/// The type in files of one of our dtypes. HDF5 has no BF16: those are shown as uint16.
Hdf5Type file_type(const std::string& dtype);

Hdf5Dataset create_dataset(hid_t parent, const std::string& name, hid_t type, hid_t space,
                           const Hdf5Properties& properties);
void write_int64(hid_t parent, const std::string& name, const std::vector<std::int64_t>& values,
                 const std::vector<std::int64_t>& shape);
void write_double(hid_t parent, const std::string& name, const std::vector<double>& values);
void write_strings(hid_t parent, const std::string& name, const std::vector<std::string>& values);
void write_text(hid_t parent, const std::string& name, const std::string& text);
void write_attribute(hid_t object, const std::string& name, std::int64_t value);
void write_attribute(hid_t object, const std::string& name, const std::string& text);

Hdf5Group create_group(hid_t parent, const std::string& name);

}  // namespace vsr::runtime
