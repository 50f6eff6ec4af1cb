// SPDX-License-Identifier: Apache-2.0
// Delivers leaf slices for the `exact` reduction and publishes shards: only movement, no
// arithmetic. In shared memory a slice is the peer's own buffer; between nodes it is a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/peer_buffer.hpp"

namespace vsr::comm {

/// One segment of a flat buffer: `elements` (a multiple of kBlockElements) of `element_bytes` each,
/// from `offset_bytes` on.
struct SegmentPlace {
  std::size_t offset_bytes = 0;
  std::int64_t elements = 0;
  std::size_t element_bytes = 0;
};

/// How the ranks of a world reach each other in one PeerBuffer; the same on all of them.
struct Reach {
  bool is_memory_used = false;     ///< some rank reads or writes the memory of another one
  bool are_messages_used = false;  ///< some rank reaches another one by messages only
};

/// Moves the gradients of a round of leaves to their owners.
/// A round is: every rank fills its gradient buffer (or has no leaf) → deliver → owners read slices
/// → release → buffers may be written again.
class LeafExchange {
 public:
  /// Collective; the same segments on all ranks. Both references outlive this object. Memory for
  /// messages is taken here, not later: my shards once per rank that shared memory does not reach.
  /// @throws ArgumentError when a segment does not fit the buffer or is no whole number of blocks
  LeafExchange(Communicator& world, PeerBuffer& gradients, std::vector<SegmentPlace> segments);

  /// Collective. My gradients are complete. Afterwards the slices of ranks [0, `sources`) can be
  /// read; ranks from `sources` on contribute no leaf in this round and send nothing. Where shared
  /// memory reaches every rank this is one barrier.
  /// @throws ArgumentError when `sources` is outside [0, world]
  void deliver(int sources);
  /// My shard of segment `segment` in the gradients of rank `source`: bytes of shard_of(elements,
  /// rank, world), empty for ranks >= `sources`. Local; valid between deliver and release.
  std::span<const std::byte> slice(int source, std::size_t segment) const;
  /// Collective. My reading is done; afterwards every rank may write its gradients again.
  void release();

 private:
  void count_shared();
  void send_segment(std::size_t segment);

  Communicator& world_;
  PeerBuffer& gradients_;
  std::vector<SegmentPlace> segments_;
  Reach reach_;
  std::vector<std::vector<std::byte>> staging_;  // [source]: slices that come by message
  std::vector<std::vector<std::span<const std::byte>>> slices_;  // [source][segment]
  int sources_ = 0;                                              // of the round in progress
};

/// Brings updated shards to all replicas: the owner writes its peers' memory directly where it can,
/// and sends messages to the others.
class ShardPublisher {
 public:
  /// Collective; the same segments on all ranks. Both references outlive this object.
  /// @throws ArgumentError when a segment does not fit the buffer or is no whole number of blocks
  ShardPublisher(Communicator& world, PeerBuffer& replica, std::vector<SegmentPlace> segments);

  /// My shard of `segment` in my own replica first, then in that of every rank in reach of shared
  /// memory: the update writes all of them in its one sweep. Local.
  std::span<const std::span<std::byte>> destinations(std::size_t segment) const;
  /// Collective. All destinations of all segments are written; afterwards every replica holds every
  /// shard.
  void publish();

 private:
  void send_segment(std::size_t segment);

  Communicator& world_;
  PeerBuffer& replica_;
  std::vector<SegmentPlace> segments_;
  Reach reach_;
  std::vector<std::vector<std::span<std::byte>>> destinations_;  // [segment][rank in reach]
};

}  // namespace vsr::comm
