// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/stored_zip.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kDirectoryEnd = 0x06054b50;
constexpr std::uint32_t kDirectoryEnd64 = 0x06064b50;
constexpr std::uint32_t kLocator64 = 0x07064b50;
constexpr std::int64_t kLocalHeaderBytes = 30;
constexpr std::int64_t kDirectoryEntryBytes = 46;
constexpr std::int64_t kDirectoryEndBytes = 22;
constexpr std::int64_t kLocator64Bytes = 20;
constexpr std::int64_t kDirectoryEnd64Bytes = 56;
constexpr std::int64_t kMostCommentBytes = 65535;
/// Room for the names of several 100000 tensors.
constexpr std::int64_t kMostDirectoryBytes = std::int64_t{1} << 26;
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint16_t kEncrypted = 1;
constexpr std::uint32_t kIn64 = 0xffffffff;

/// Little-endian numbers from bytes, every read within them.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T next() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size()) throw CheckpointError("its directory is cut off");
    const auto part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }
  bool is_empty() const noexcept { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

struct Directory {
  std::uint64_t entries = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset_bytes = 0;
};

std::vector<std::byte> read_part(const InputFile& file, std::int64_t offset, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  file.read_at(bytes, offset);
  return bytes;
}

/// Where the directory is, when the record at its end says that the numbers stand elsewhere.
Directory directory_64(const InputFile& file, std::int64_t end_record) {
  if (end_record < kLocator64Bytes) throw CheckpointError("its zip64 records are missing");
  const auto locator_bytes = read_part(file, end_record - kLocator64Bytes, kLocator64Bytes);
  Fields locator(locator_bytes);
  if (locator.next<std::uint32_t>() != kLocator64)
    throw CheckpointError("its zip64 records are missing");
  locator.next<std::uint32_t>();
  const auto place = locator.next<std::uint64_t>();
  if (place > static_cast<std::uint64_t>(file.size_bytes()) ||
      static_cast<std::int64_t>(place) > file.size_bytes() - kDirectoryEnd64Bytes)
    throw CheckpointError("its zip64 records lie outside");
  const auto bytes = read_part(file, static_cast<std::int64_t>(place), kDirectoryEnd64Bytes);
  Fields fields(bytes);
  if (fields.next<std::uint32_t>() != kDirectoryEnd64)
    throw CheckpointError("its zip64 records are damaged");
  fields.take(20);  // size of this record, versions, numbers of disks
  Directory directory;
  fields.next<std::uint64_t>();
  directory.entries = fields.next<std::uint64_t>();
  directory.size_bytes = fields.next<std::uint64_t>();
  directory.offset_bytes = fields.next<std::uint64_t>();
  return directory;
}

Directory find_directory(const InputFile& file) {
  const std::int64_t tail = std::min(file.size_bytes(), kDirectoryEndBytes + kMostCommentBytes);
  const auto bytes = read_part(file, file.size_bytes() - tail, tail);
  for (std::int64_t at = tail - kDirectoryEndBytes; at >= 0; --at) {
    Fields fields(std::span<const std::byte>(bytes).subspan(static_cast<std::size_t>(at)));
    if (fields.next<std::uint32_t>() != kDirectoryEnd) continue;
    fields.take(6);  // numbers of disks, entries on this one
    Directory directory;
    directory.entries = fields.next<std::uint16_t>();
    directory.size_bytes = fields.next<std::uint32_t>();
    directory.offset_bytes = fields.next<std::uint32_t>();
    if (fields.next<std::uint16_t>() != tail - at - kDirectoryEndBytes) continue;
    if (directory.entries == 0xffff || directory.size_bytes == kIn64 ||
        directory.offset_bytes == kIn64)
      return directory_64(file, file.size_bytes() - tail + at);
    return directory;
  }
  throw CheckpointError("it is cut off or no zip archive: it has no directory");
}

struct Entry {
  std::string name;
  std::uint64_t header = 0;
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;
};

/// Sizes and place that do not fit 32 bits stand in an extra field, in this order.
void take_64(std::span<const std::byte> extra, Entry& entry, std::uint64_t& packed) {
  Fields fields(extra);
  while (!fields.is_empty()) {
    const auto kind = fields.next<std::uint16_t>();
    Fields content(fields.take(fields.next<std::uint16_t>()));
    if (kind != kExtra64) continue;
    for (std::uint64_t* value : {&entry.size, &packed, &entry.header})
      if (*value == kIn64) *value = content.next<std::uint64_t>();
    return;
  }
}

Entry next_entry(Fields& fields) {
  if (fields.next<std::uint32_t>() != kDirectoryEntry)
    throw CheckpointError("its directory is damaged");
  fields.take(4);  // versions
  const auto flags = fields.next<std::uint16_t>();
  const auto method = fields.next<std::uint16_t>();
  fields.take(4);  // time
  Entry entry;
  entry.crc32 = fields.next<std::uint32_t>();
  std::uint64_t packed = fields.next<std::uint32_t>();
  entry.size = fields.next<std::uint32_t>();
  const auto name_bytes = fields.next<std::uint16_t>();
  const auto extra_bytes = fields.next<std::uint16_t>();
  const auto comment_bytes = fields.next<std::uint16_t>();
  fields.take(8);  // disk, attributes
  entry.header = fields.next<std::uint32_t>();
  const auto name = fields.take(name_bytes);
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  take_64(fields.take(extra_bytes), entry, packed);
  fields.take(comment_bytes);
  if (method != 0 || packed != entry.size || (flags & kEncrypted) != 0)
    throw CheckpointError("its member '" + entry.name +
                          "' is compressed or encrypted, which torch.save never does");
  return entry;
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes) noexcept {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> values = {};
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      values[i] = i;
      for (int bit = 0; bit < 8; ++bit)
        values[i] = (values[i] >> 1) ^ ((values[i] & 1) != 0 ? 0xedb88320U : 0U);
    }
    return values;
  }();
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes)
    crc = table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

StoredZip::StoredZip(const fs::path& path) : path_(path), file_(path) {
  try {
    read_directory();
  } catch (const CheckpointError& error) {
    throw CheckpointError("'" + path_.string() + "': " + error.what());
  }
}

void StoredZip::read_directory() {
  const Directory directory = find_directory(file_);
  const auto file_bytes = static_cast<std::uint64_t>(file_.size_bytes());
  if (directory.size_bytes > static_cast<std::uint64_t>(kMostDirectoryBytes) ||
      directory.size_bytes > file_bytes ||
      directory.offset_bytes > file_bytes - directory.size_bytes ||
      directory.entries > directory.size_bytes / kDirectoryEntryBytes)
    throw CheckpointError("its directory of " + std::to_string(directory.entries) + " members in " +
                          std::to_string(directory.size_bytes) + " bytes does not fit the file");
  const auto bytes = read_part(file_, static_cast<std::int64_t>(directory.offset_bytes),
                               static_cast<std::int64_t>(directory.size_bytes));
  Fields fields(bytes);
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < directory.entries; ++i) entries.push_back(next_entry(fields));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.header < b.header; });
  std::uint64_t next = 0;
  for (const Entry& entry : entries) {
    const std::uint64_t frame = kLocalHeaderBytes + entry.name.size();
    if (entry.header < next || entry.header > directory.offset_bytes ||
        entry.size > directory.offset_bytes - entry.header ||
        frame > directory.offset_bytes - entry.header - entry.size)
      throw CheckpointError("its member '" + entry.name + "' overlaps another or leaves the file");
    next = entry.header + frame + entry.size;
    if (!members_
             .emplace(entry.name, Member{static_cast<std::int64_t>(entry.header),
                                         static_cast<std::int64_t>(entry.size), entry.crc32})
             .second)
      throw CheckpointError("it has two members '" + entry.name + "'");
  }
}

std::vector<std::byte> StoredZip::read(const std::string& name) const {
  const std::string what = "'" + path_.string() + "': its member '" + name + "' ";
  const auto found = members_.find(name);
  if (found == members_.end()) throw CheckpointError(what + "is missing");
  const Member& member = found->second;
  const auto header = read_part(file_, member.header_bytes, kLocalHeaderBytes);
  Fields fields(header);
  const bool is_header = fields.next<std::uint32_t>() == kLocalHeader;
  fields.take(22);  // what the directory says too
  const auto name_bytes = fields.next<std::uint16_t>();
  const auto extra_bytes = fields.next<std::uint16_t>();
  if (!is_header || name_bytes != name.size())
    throw CheckpointError(what + "has another header than the directory says");
  const std::int64_t begin = member.header_bytes + kLocalHeaderBytes + name_bytes + extra_bytes;
  if (begin > file_.size_bytes() - member.size_bytes)
    throw CheckpointError(what + "leaves the file");
  std::vector<std::byte> bytes = read_part(file_, begin, member.size_bytes);
  if (crc32_of(bytes) != member.crc32)
    throw CheckpointError(what + "was changed: it does not match its CRC-32");
  return bytes;
}

}  // namespace vsr::runtime
