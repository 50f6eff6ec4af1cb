// SPDX-License-Identifier: Apache-2.0
// Decoded frames that were used lately, within a budget of bytes. Decoding a frame costs tens of
// milliseconds, and shuffled windows come back to the same frames.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

using FramePointer = std::shared_ptr<const ImageU8>;

enum class FrameKind { low, high };

/// Least recently used out first. Not thread-safe. A frame handed out stays valid after eviction.
class FrameCache {
 public:
  explicit FrameCache(std::int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// The frame, now the most recent one; null when it is not here.
  FramePointer find(std::int64_t clip, std::int64_t frame, FrameKind kind);
  /// Keep `image`, pushing out others; one larger than the whole budget is not kept.
  void insert(std::int64_t clip, std::int64_t frame, FrameKind kind, FramePointer image);
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  struct Entry {
    std::uint64_t key;
    FramePointer image;
  };
  static std::uint64_t key_of(std::int64_t clip, std::int64_t frame, FrameKind kind) noexcept;

  std::int64_t capacity_bytes_;
  std::int64_t bytes_ = 0;
  std::list<Entry> entries_;  // most recent first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> places_;
};

}  // namespace vsr::runtime
