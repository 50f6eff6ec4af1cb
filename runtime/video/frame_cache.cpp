// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/frame_cache.hpp"

#include <utility>

namespace vsr::runtime {
namespace {

std::int64_t bytes_of(const ImageU8& image) {
  return static_cast<std::int64_t>(image.values.size());
}

}  // namespace

std::uint64_t FrameCache::key_of(std::int64_t clip, std::int64_t frame, FrameKind kind) noexcept {
  return (static_cast<std::uint64_t>(clip) << 40) | (static_cast<std::uint64_t>(frame) << 1) |
         (kind == FrameKind::high ? 1U : 0U);
}

FramePointer FrameCache::find(std::int64_t clip, std::int64_t frame, FrameKind kind) {
  const auto found = places_.find(key_of(clip, frame, kind));
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->image;
}

void FrameCache::insert(std::int64_t clip, std::int64_t frame, FrameKind kind, FramePointer image) {
  const std::uint64_t key = key_of(clip, frame, kind);
  const std::int64_t added = bytes_of(*image);
  if (added > capacity_bytes_ || places_.contains(key)) return;
  while (bytes_ + added > capacity_bytes_) {
    bytes_ -= bytes_of(*entries_.back().image);
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(image)});
  places_.emplace(key, entries_.begin());
  bytes_ += added;
}

}  // namespace vsr::runtime
