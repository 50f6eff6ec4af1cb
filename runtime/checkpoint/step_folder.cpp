// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/step_folder.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/files.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPointerLimitBytes = 4096;
constexpr std::string_view kPrefix = "step_";
constexpr std::size_t kMostDigits = 18;  // fits int64

/// Folders directly in `folder` whose names `accept` takes; none when it is not there.
template <typename Accept>
std::vector<fs::path> folders_in(const fs::path& folder, Accept accept) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && accept(entry->path().filename().string()))
      found.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw IoError("cannot list '" + folder.string() + "': " + error.message());
  return found;
}

std::vector<fs::path> steps_in(const fs::path& folder) {
  std::vector<fs::path> steps =
      folders_in(folder, [](const std::string& name) { return iteration_of(name) >= 0; });
  std::sort(steps.begin(), steps.end(), [](const fs::path& a, const fs::path& b) {
    return iteration_of(a.filename().string()) > iteration_of(b.filename().string());
  });
  return steps;
}

}  // namespace

std::string step_name(std::int64_t iteration) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "step_%08lld", static_cast<long long>(iteration));
  return text.data();
}

std::int64_t iteration_of(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) return -1;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.empty() || digits.size() > kMostDigits ||
      !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); }))
    return -1;
  return std::stoll(digits);
}

std::string shard_name(int rank, int world) {
  std::array<char, 48> text = {};
  std::snprintf(text.data(), text.size(), "shard_%05d-of-%05d.h5", rank, world);
  return text.data();
}

std::vector<fs::path> step_folders_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    throw CheckpointError("'" + path.string() + "' is no folder of a checkpoint or a run");
  if (fs::exists(path / "MANIFEST.json", ignored)) return {path};
  std::vector<fs::path> steps = steps_in(path / "ckpt");
  if (steps.empty()) steps = steps_in(path);
  // A step folder without its manifest: let the reader say so.
  if (steps.empty() && iteration_of(path.filename().string()) >= 0) return {path};
  return steps;
}

std::vector<fs::path> list_checkpoints(const fs::path& run_folder) {
  return steps_in(run_folder / "ckpt");
}

fs::path pointed_at(const fs::path& run_folder, const std::string& name) {
  const fs::path file = run_folder / "ckpt" / name;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return {};
  const std::string text = read_file(file, kPointerLimitBytes);
  const std::string step = text.substr(0, text.find_first_of(" \n"));
  const fs::path folder = run_folder / "ckpt" / step;
  return iteration_of(step) >= 0 && fs::is_directory(folder, ignored) ? folder : fs::path();
}

std::vector<fs::path> damaged_folders(const fs::path& run_folder) {
  std::vector<fs::path> found = folders_in(run_folder / "ckpt", [](const std::string& name) {
    return name.rfind(kPrefix, 0) == 0 && name.find(".corrupt") != std::string::npos;
  });
  std::sort(found.begin(), found.end());
  return found;
}

struct FrameChecksum::State {
  XXH3_state_t* xxh = XXH3_createState();
};

FrameChecksum::FrameChecksum() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_->xxh);
}

FrameChecksum::~FrameChecksum() {
  XXH3_freeState(state_->xxh);
}

void FrameChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t FrameChecksum::value() const {
  return XXH3_64bits_digest(state_->xxh);
}

}  // namespace vsr::runtime
