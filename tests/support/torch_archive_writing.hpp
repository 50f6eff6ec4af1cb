// SPDX-License-Identifier: Apache-2.0
// Archives as torch.save writes them, put together byte by byte, so that tests can also write what
// torch never would.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/stored_zip.hpp"

namespace vsr::test {

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// A zip archive of stored members.
class ZipBuilder {
 public:
  /// `flags`, `method` as in the format; the data of each member starts at a multiple of 64.
  ZipBuilder& add(const std::string& name, const std::string& data, std::uint16_t flags = 0x0800,
                  std::uint16_t method = 0) {
    const std::uint32_t crc = runtime::crc32_of(std::as_bytes(std::span<const char>(data)));
    const std::size_t before = bytes_.size() + 30 + name.size() + 4;
    const std::string padding((64 - before % 64) % 64, 'Z');
    const std::string common = little_endian<std::uint16_t>(0) + little_endian(flags) +
                               little_endian(method) + std::string(4, '\0') + little_endian(crc) +
                               little_endian(static_cast<std::uint32_t>(data.size())) +
                               little_endian(static_cast<std::uint32_t>(data.size())) +
                               little_endian(static_cast<std::uint16_t>(name.size()));
    directory_ += "PK\x01\x02" + little_endian<std::uint16_t>(0) + common +
                  little_endian<std::uint16_t>(0) + std::string(10, '\0') +
                  little_endian(static_cast<std::uint32_t>(bytes_.size())) + name;
    bytes_ += "PK\x03\x04" + common +
              little_endian(static_cast<std::uint16_t>(padding.size() + 4)) + name + "FB" +
              little_endian(static_cast<std::uint16_t>(padding.size())) + padding + data;
    ++count_;
    return *this;
  }

  /// With the numbers of the directory in zip64 records, as for files above 4 GiB.
  std::string finish(bool is_64 = false) const {
    const auto entries = static_cast<std::uint64_t>(count_);
    std::string end;
    if (is_64)
      end = "PK\x06\x06" + little_endian<std::uint64_t>(44) + std::string(12, '\0') +
            little_endian(entries) + little_endian(entries) +
            little_endian<std::uint64_t>(directory_.size()) +
            little_endian<std::uint64_t>(bytes_.size()) + "PK\x06\x07" + std::string(4, '\0') +
            little_endian<std::uint64_t>(bytes_.size() + directory_.size()) +
            little_endian<std::uint32_t>(1);
    const auto number = [&](std::uint64_t value) {
      return little_endian(is_64 ? 0xffffffffU : static_cast<std::uint32_t>(value));
    };
    const std::string count =
        little_endian(is_64 ? std::uint16_t{0xffff} : static_cast<std::uint16_t>(entries));
    return bytes_ + directory_ + end + "PK\x05\x06" + std::string(4, '\0') + count + count +
           number(directory_.size()) + number(bytes_.size()) + std::string(2, '\0');
  }

 private:
  std::string bytes_;
  std::string directory_;
  int count_ = 0;
};

/// A tensor as torch pickles it: a view into a storage.
struct TorchTensor {
  std::string name;
  std::string storage_class;  ///< "FloatStorage"
  std::string storage;        ///< "0"
  std::int64_t storage_elements = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

inline std::string pickled(const std::string& text) {
  return "X" + little_endian(static_cast<std::uint32_t>(text.size())) + text;
}

inline std::string pickled(std::int64_t number) {
  if (number >= 0 && number < 256) return "K" + little_endian(static_cast<std::uint8_t>(number));
  if (number >= 0 && number < 65536) return "M" + little_endian(static_cast<std::uint16_t>(number));
  if (number == static_cast<std::int32_t>(number))
    return "J" + little_endian(static_cast<std::int32_t>(number));
  return "\x8a\x08" + little_endian(number);
}

inline std::string pickled(const std::vector<std::int64_t>& numbers) {
  std::string text = "(";
  for (const std::int64_t number : numbers) text += pickled(number);
  return text + "t";
}

inline const std::string kOrderedDict = "ccollections\nOrderedDict\n)R";

inline std::string pickled(const TorchTensor& tensor) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" +
         tensor.storage_class + "\n" + pickled(tensor.storage) + pickled("cpu") +
         pickled(tensor.storage_elements) + "tQ" + pickled(tensor.offset) + pickled(tensor.shape) +
         pickled(tensor.strides) + "\x89" + kOrderedDict + "tR";
}

inline std::string pickled_dict(const std::vector<TorchTensor>& tensors) {
  std::string text = kOrderedDict + "(";
  for (const TorchTensor& tensor : tensors) text += pickled(tensor.name) + pickled(tensor);
  return text + "u";
}

/// A whole pickle from what it leaves.
inline std::string whole_pickle(const std::string& value) {
  return "\x80\x02" + value + ".";
}

template <typename T>
std::string text_of_values(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace vsr::test
