// SPDX-License-Identifier: Apache-2.0
// The table that makes frame numbers out of timestamps: which frame a packet becomes, and at which
// keyframe decoding must begin to reach it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <vector>

namespace vsr::runtime {

class PacketIndex {
 public:
  /// Read all packets of the best video stream once, without decoding them.
  /// @throws DataError on a damaged or cut off file
  explicit PacketIndex(const std::filesystem::path& path);

  /// True when every packet has its own timestamp, so that frames can be told apart by it.
  bool has_usable_timestamps() const noexcept { return usable_; }
  std::int64_t frame_count() const noexcept { return static_cast<std::int64_t>(order_.size()); }
  /// Timestamp of frame `frame` (order of presentation).
  std::int64_t pts(std::int64_t frame) const { return packet(decode_position(frame)).pts; }
  /// The frame with timestamp `pts`, if any.
  std::optional<std::int64_t> frame_of(std::int64_t pts) const;
  /// Place in the file of the packet of `frame`, counted in packets.
  std::int64_t decode_position(std::int64_t frame) const {
    return order_[static_cast<std::size_t>(frame)];
  }
  /// Place of the last keyframe from which `frame` can be decoded.
  std::int64_t keyframe_position(std::int64_t frame) const;
  /// The keyframe before the one at `position`; -1 before the first.
  std::int64_t earlier_keyframe(std::int64_t position) const;

  struct Packet {
    std::int64_t pts;
    std::int64_t dts;
    bool is_key;
  };
  const Packet& packet(std::int64_t position) const {
    return packets_[static_cast<std::size_t>(position)];
  }

 private:
  void sort_frames();
  bool is_order_possible(std::int64_t reorder_depth) const;

  bool usable_ = true;
  std::vector<Packet> packets_;          // as they lie in the file, without discarded ones
  std::vector<std::int64_t> order_;      // [frame] -> place in packets_
  std::vector<std::int64_t> keyframes_;  // places in packets_, ascending
  std::unordered_map<std::int64_t, std::int64_t> frames_;  // pts -> frame
};

}  // namespace vsr::runtime
