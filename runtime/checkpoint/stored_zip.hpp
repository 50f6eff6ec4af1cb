// SPDX-License-Identifier: Apache-2.0
// Zip archives whose members are stored as they are, which is all that torch.save writes. Anything
// else a zip can be is refused: the fewer forms a reader knows, the fewer ways there are to fool
// it. Private to this folder.
#pragma once

#include <map>
#include <vector>

#include "runtime/checkpoint/files.hpp"

namespace vsr::runtime {

/// An open archive. @throws CheckpointError naming file and member; IoError
class StoredZip {
 public:
  /// Read and check the directory at the end of the file: members are stored, do not overlap, and
  /// their names are unique. Zip64 is known.
  explicit StoredZip(const std::filesystem::path& path);

  struct Member {
    std::int64_t header_bytes = 0;  ///< place of the local header in the file
    std::int64_t size_bytes = 0;
    std::uint32_t crc32 = 0;
  };
  const std::map<std::string, Member>& members() const noexcept { return members_; }
  /// All bytes of a member, checked against its CRC-32.
  std::vector<std::byte> read(const std::string& name) const;

 private:
  void read_directory();

  std::filesystem::path path_;
  InputFile file_;
  std::map<std::string, Member> members_;
};

/// The CRC-32 of zip and PNG.
std::uint32_t crc32_of(std::span<const std::byte> bytes) noexcept;

}  // namespace vsr::runtime
