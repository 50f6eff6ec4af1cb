// SPDX-License-Identifier: Apache-2.0
// Names of checkpoint folders, and the parts of reading one that the store and the reader share.
// Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"

namespace vsr::runtime {

/// A checkpoint that is being replaced by one of the same iteration, where names cannot be swapped.
inline constexpr const char* kReplacedPrefix = ".replaced-";

/// "step_00012000".
std::string step_name(std::int64_t iteration);
/// The iteration in such a name, or -1 for any other name.
std::int64_t iteration_of(const std::string& name);
/// "shard_00003-of-00008.h5".
std::string shard_name(int rank, int world);

/// Step folders of a run that were set aside as damaged.
std::vector<std::filesystem::path> damaged_folders(const std::filesystem::path& run_folder);

/// The manifest alone, with the sizes of all files compared.
/// @throws CheckpointError, IoError
Manifest read_manifest(const std::filesystem::path& step_folder);
/// Check the bytes of a shard file outside its arrays.
/// @throws CheckpointError, IoError
void verify_frame(const CheckpointHeader& header, std::size_t shard_index);

/// What `use` makes of the first of the step folders that `path` stands for, newest first, that it
/// does not refuse by CheckpointError or IoError; the refused ones go to `passed_over`, each with
/// its reason.
/// @throws CheckpointError (65) with all reasons when none is left
template <typename Use>
auto first_usable(const std::filesystem::path& path, Use use,
                  std::vector<std::string>& passed_over) {
  const auto refuse = [&](const std::filesystem::path& folder, const Error& error) {
    passed_over.push_back("'" + folder.string() + "': " + error.what());
  };
  for (const std::filesystem::path& folder : step_folders_of(path)) {
    try {
      return use(folder);
    } catch (const CheckpointError& error) {
      refuse(folder, error);
    } catch (const IoError& error) {
      refuse(folder, error);
    }
  }
  std::string message = "no usable checkpoint in '" + path.string() + "'";
  if (passed_over.empty()) message += ": there is none";
  for (const std::string& reason : passed_over) message += "\n  " + reason;
  throw CheckpointError(message);
}

/// XXH3-64 of bytes that come in parts.
class FrameChecksum {
 public:
  FrameChecksum();
  ~FrameChecksum();
  FrameChecksum(const FrameChecksum&) = delete;
  FrameChecksum& operator=(const FrameChecksum&) = delete;
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vsr::runtime
