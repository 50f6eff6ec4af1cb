// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/packet_index.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "runtime/video/stream_decoder.hpp"

namespace vsr::runtime {

PacketIndex::PacketIndex(const std::filesystem::path& path) {
  StreamDecoder stream(path);
  std::int64_t read = 0;
  const std::int64_t promised = stream.promised_packets();
  while (const AVPacket* packet = stream.next_packet()) {
    ++read;
    // Cut away by an edit list: the decoder needs it but shows no frame.
    if ((packet->flags & AV_PKT_FLAG_DISCARD) != 0) {
      usable_ = false;
      continue;
    }
    usable_ = usable_ && packet->pts != AV_NOPTS_VALUE;
    packets_.push_back({packet->pts, packet->dts, (packet->flags & AV_PKT_FLAG_KEY) != 0});
  }
  if (read < promised) {
    stream.fail("cut off: " + std::to_string(promised) +
                " frames are promised, the file ends after " + std::to_string(read));
  }
  if (packets_.empty()) stream.fail("its video stream has no frames");
  usable_ = usable_ && packets_.front().is_key;
  if (usable_) sort_frames();
  usable_ = usable_ && is_order_possible(stream.reorder_depth());
}

void PacketIndex::sort_frames() {
  order_.resize(packets_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [this](std::int64_t a, std::int64_t b) {
    return packet(a).pts < packet(b).pts;
  });
  for (std::int64_t frame = 0; frame < frame_count(); ++frame) {
    if (!frames_.emplace(pts(frame), frame).second) {
      usable_ = false;
      return;
    }
  }
  for (std::size_t i = 0; i < packets_.size(); ++i) {
    if (packets_[i].is_key) keyframes_.push_back(static_cast<std::int64_t>(i));
  }
}

// A decoder that holds back d frames shows frame r once it has seen packet r + d, so no frame can
// lie later in the file; timestamps that say otherwise are wrong.
bool PacketIndex::is_order_possible(std::int64_t reorder_depth) const {
  for (std::int64_t frame = 0; frame < frame_count(); ++frame) {
    if (decode_position(frame) - frame > reorder_depth) return false;
  }
  return true;
}

std::optional<std::int64_t> PacketIndex::frame_of(std::int64_t pts) const {
  const auto found = frames_.find(pts);
  if (found == frames_.end()) return std::nullopt;
  return found->second;
}

std::int64_t PacketIndex::keyframe_position(std::int64_t frame) const {
  std::int64_t key = earlier_keyframe(decode_position(frame) + 1);
  // A frame shown before the keyframe it follows in the file needs the group before as well.
  while (key > 0 && packet(key).pts > pts(frame)) key = earlier_keyframe(key);
  return std::max<std::int64_t>(key, 0);
}

std::int64_t PacketIndex::earlier_keyframe(std::int64_t position) const {
  const auto after = std::lower_bound(keyframes_.begin(), keyframes_.end(), position);
  return after == keyframes_.begin() ? -1 : *(after - 1);
}

}  // namespace vsr::runtime
