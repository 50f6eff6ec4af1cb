// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/torch_archive.hpp"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/pickle_reader.hpp"
#include "runtime/checkpoint/snapshot.hpp"
#include "runtime/checkpoint/stored_zip.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

/// Room for the description of 100000 tensors.
constexpr std::int64_t kMostPickleBytes = std::int64_t{1} << 25;
constexpr std::string_view kPickleName = "/data.pkl";

/// Refuse what torch.save wrote before it wrote zip archives; such a file can only be read by
/// running it.
void refuse_legacy(const fs::path& path) {
  const InputFile file(path);
  std::array<std::byte, 4> start = {};
  if (file.size_bytes() < static_cast<std::int64_t>(start.size()))
    throw CheckpointError("'" + path.string() + "' is too short for an archive of torch.save");
  file.read_at(start, 0);
  constexpr std::array<std::byte, 4> kZip = {std::byte{'P'}, std::byte{'K'}, std::byte{3},
                                             std::byte{4}};
  if (start == kZip) return;
  throw CheckpointError(
      "'" + path.string() +
      "' is no zip archive of torch.save; if it is from before PyTorch 1.6, save it anew where you "
      "trust it: python3 -c \"import torch; torch.save(torch.load('" +
      path.filename().string() + "', map_location='cpu'), 'new.pth')\"");
}

/// The folder inside the archive that all its members are in.
std::string folder_of(const StoredZip& zip) {
  std::string folder;
  int found = 0;
  for (const auto& [name, member] : zip.members())
    if (name.ends_with(kPickleName) && name.find('/') == name.size() - kPickleName.size()) {
      folder = name.substr(0, name.find('/') + 1);
      ++found;
    }
  if (found != 1) throw CheckpointError("it is no archive of torch.save: it has no data.pkl");
  return folder;
}

void check_byte_order(const StoredZip& zip, const std::string& folder) {
  if (!zip.members().contains(folder + "byteorder")) return;  // before PyTorch 2.1
  if (zip.members().at(folder + "byteorder").size_bytes != 6)
    throw CheckpointError("its numbers are not little-endian");
  const auto bytes = zip.read(folder + "byteorder");
  if (std::memcmp(bytes.data(), "little", bytes.size()) != 0)
    throw CheckpointError("its numbers are not little-endian");
}

class TorchArchive : public WeightsFile {
 public:
  TorchArchive(const fs::path& path, const std::string& key) : path_(path), zip_(path) {
    try {
      read_description(key);
    } catch (const CheckpointError& error) {
      throw CheckpointError("'" + path_.string() + "': " + error.what());
    }
  }

  const std::vector<TensorEntry>& tensors() const override { return entries_; }

  std::vector<std::byte> read(std::size_t index) const override {
    const PickledTensor& tensor = tensors_.at(index);
    if (entries_[index].numel == 0) return {};
    const auto element = static_cast<std::size_t>(element_bytes(tensor.dtype));
    const std::vector<std::byte> storage = zip_.read(folder_ + "data/" + tensor.storage);
    std::vector<std::byte> bytes(static_cast<std::size_t>(entries_[index].numel) * element);
    std::vector<std::int64_t> place(tensor.shape.size(), 0);
    std::int64_t at = tensor.offset;
    for (std::size_t i = 0; i < bytes.size(); i += element) {
      std::memcpy(bytes.data() + i, storage.data() + static_cast<std::size_t>(at) * element,
                  element);
      // Count up in logical order: the last dimension first.
      for (std::size_t d = place.size(); d-- > 0;) {
        at += tensor.strides[d];
        if (++place[d] < tensor.shape[d]) break;
        at -= tensor.strides[d] * tensor.shape[d];
        place[d] = 0;
      }
    }
    return bytes;
  }

 private:
  void read_description(const std::string& key) {
    folder_ = folder_of(zip_);
    check_byte_order(zip_, folder_);
    const std::string pickle = folder_ + std::string(kPickleName.substr(1));
    if (zip_.members().at(pickle).size_bytes > kMostPickleBytes)
      throw CheckpointError("its data.pkl is larger than that of any state dict");
    tensors_ = tensors_in_pickle(zip_.read(pickle), key);
    for (const PickledTensor& tensor : tensors_) {
      const auto found = zip_.members().find(folder_ + "data/" + tensor.storage);
      std::int64_t expected = 0;
      if (found == zip_.members().end() ||
          __builtin_mul_overflow(tensor.storage_elements, element_bytes(tensor.dtype), &expected) ||
          found->second.size_bytes != expected)
        throw CheckpointError("the storage of tensor '" + tensor.name +
                              "' is missing or of another size than described");
      entries_.push_back(
          {tensor.name, tensor.shape, tensor.dtype, elements_of_shape(tensor.shape)});
    }
  }

  fs::path path_;
  StoredZip zip_;
  std::string folder_;
  std::vector<PickledTensor> tensors_;
  std::vector<TensorEntry> entries_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_archive(const fs::path& path, const std::string& key) {
  refuse_legacy(path);
  return std::make_unique<TorchArchive>(path, key);
}

}  // namespace vsr::runtime
