// SPDX-License-Identifier: Apache-2.0
// Damages an MP4 file in the ways that real files are damaged: index in front and then cut off,
// timestamps that contradict the order of frames. Boxes are: 32-bit size, four letters, content.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vsr::test {

inline std::uint32_t read_u32(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value = (value << 8) | static_cast<unsigned char>(bytes.at(at + i));
  }
  return value;
}

inline void write_u32(std::string& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes.at(at + i) = static_cast<char>(value >> (24 - 8 * i));
}

/// Where the content of the first box with these letters begins.
inline std::size_t content_of(const std::string& bytes, const std::string& letters) {
  const auto at = bytes.find(letters);
  if (at == std::string::npos) throw std::runtime_error("no box " + letters);
  return at + 4;
}

/// The index moved in front of the pictures, as for streaming.
inline std::string with_index_in_front(const std::string& file) {
  const std::size_t moov = content_of(file, "moov") - 8;
  const std::size_t first = read_u32(file, 0);  // the size of ftyp, which comes first
  std::string index = file.substr(moov, read_u32(file, moov));
  const std::size_t table = content_of(index, "stco") + 4;
  for (std::uint32_t i = 0; i < read_u32(index, table); ++i) {
    const std::size_t entry = table + 4 + 4 * i;
    write_u32(index, entry, read_u32(index, entry) + static_cast<std::uint32_t>(index.size()));
  }
  return file.substr(0, first) + index + file.substr(first, moov - first);
}

/// Every composition offset replaced by `offset(i)`, i counting runs of the table.
template <typename Offset>
std::string with_composition_offsets(std::string file, Offset offset) {
  const std::size_t table = content_of(file, "ctts") + 4;
  for (std::uint32_t i = 0; i < read_u32(file, table); ++i) {
    write_u32(file, table + 4 + 8 * i + 4, offset(i));
  }
  return file;
}

}  // namespace vsr::test
