// SPDX-License-Identifier: Apache-2.0
// Delivers leaf slices for the `exact` reduction and publishes shards: only movement, no
// arithmetic. In shared memory a slice is the peer's own buffer; between nodes it is a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/bulk_memory.hpp"
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

/// A run of elements of one segment, whole blocks, whose messages travel together.
struct Bucket {
  std::size_t segment = 0;
  Interval elements;
};

/// How the ranks of a world reach each other in one PeerBuffer; the same on all of them.
struct Reach {
  bool is_memory_used = false;     ///< some rank reads or writes the memory of another one
  bool are_messages_used = false;  ///< some rank reaches another one by messages only
};

/// Moves the gradients of a round of leaves to their owners.
/// A round is: every rank fills its gradient buffer (or has no leaf) → deliver → owners read slices
/// → release → buffers may be written again. Buckets that are complete earlier may leave earlier,
/// while the others are still being filled.
class LeafExchange {
 public:
  /// Collective; the same segments on all ranks. Both references outlive this object. Memory for
  /// messages is taken here, not later: my shards once per rank that shared memory does not reach.
  /// @param buckets in the order in which they leave, together every element once; empty: one for
  ///        each segment
  /// @throws ArgumentError when a segment does not fit the buffer or is no whole number of blocks,
  ///         and for buckets that do not cover the segments
  LeafExchange(Communicator& world, PeerBuffer& gradients, std::vector<SegmentPlace> segments,
               std::vector<Bucket> buckets = {});

  /// Whether buckets can leave early: some ranks reach each other by messages only. Equal on all.
  bool sends_messages() const noexcept { return reach_.are_messages_used; }
  std::size_t buckets() const noexcept { return buckets_.size(); }
  /// Buckets of this round that have left. Local.
  std::size_t begun() const noexcept { return pending_.size(); }
  /// The next bucket is complete in my gradients: send it, and let those of others come. Never
  /// waits for a rank. Every rank begins all buckets of a round in order, the last of them in
  /// deliver.
  /// @param sources that of the deliver of this round
  void begin_next(int sources);

  /// Called when `elements`, counted from the start of my shard of `segment`, can be read in the
  /// slices of all sources.
  using Arrived = std::function<void(std::size_t segment, Interval elements)>;

  /// Collective. My gradients are complete. Afterwards the slices of ranks [0, `sources`) can be
  /// read; ranks from `sources` on contribute no leaf in this round and send nothing. Where shared
  /// memory reaches every rank this is one barrier.
  /// `arrived` is called for parts of whole blocks that cover my shards once, in the order of the
  /// buckets, each as soon as it is here, while later ones are still on their way; an exception out
  /// of it is thrown on when all of them are here.
  /// @throws ArgumentError when `sources` is outside [0, world]
  void deliver(int sources, const Arrived& arrived);
  void deliver(int sources) {
    deliver(sources, [](std::size_t, Interval) {});
  }
  /// My shard of segment `segment` in the gradients of rank `source`: bytes of shard_of(elements,
  /// rank, world), empty for ranks >= `sources`. Local; valid between deliver and release.
  std::span<const std::byte> slice(int source, std::size_t segment) const;
  /// Collective. My reading is done; afterwards every rank may write its gradients again.
  void release();
  /// Collective. Give the round up before deliver, wherever each rank stands in it: what has left
  /// is waited for, and nothing of it is used.
  void give_up(int sources);
  /// Milliseconds that deliver has waited for messages so far. Local.
  double waited_ms() const noexcept { return waited_ms_; }

 private:
  void count_shared();
  Transfer messages_of(const Bucket& bucket, int sources) const;
  Interval my_part_of(const Bucket& bucket) const;
  void finish_buckets(const Arrived& arrived);

  Communicator& world_;
  PeerBuffer& gradients_;
  std::vector<SegmentPlace> segments_;
  Reach reach_;
  std::vector<BulkMemory> staging_;  // [source]: slices that come by message
  std::vector<std::vector<std::span<const std::byte>>> slices_;  // [source][segment]
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<PendingExchange>> pending_;  // of the buckets that have left
  int sources_ = 0;                                        // of the round in progress
  double waited_ms_ = 0.0;
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
