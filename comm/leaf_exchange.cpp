// SPDX-License-Identifier: Apache-2.0
#include "comm/leaf_exchange.hpp"

#include <atomic>
#include <string>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

void check_segments(std::span<const SegmentPlace> segments, std::size_t buffer_bytes) {
  for (const SegmentPlace& segment : segments) {
    VSR_CHECK(segment.elements >= 0 && segment.elements % kBlockElements == 0,
              "got a segment of " + std::to_string(segment.elements) +
                  " elements, expected a multiple of " + std::to_string(kBlockElements));
    VSR_CHECK(segment.element_bytes > 0, "got elements of 0 bytes");
    const auto bytes = static_cast<std::size_t>(segment.elements) * segment.element_bytes;
    VSR_CHECK(segment.offset_bytes <= buffer_bytes && bytes <= buffer_bytes - segment.offset_bytes,
              "got a segment of " + std::to_string(bytes) + " bytes from " +
                  std::to_string(segment.offset_bytes) + " on in a buffer of " +
                  std::to_string(buffer_bytes));
  }
}

// Where the shard of `rank` lies in a buffer that holds `segment`.
std::span<std::byte> shard_bytes(std::span<std::byte> buffer, const SegmentPlace& segment, int rank,
                                 int world) {
  const Interval shard = shard_of(segment.elements, rank, world);
  return buffer.subspan(
      segment.offset_bytes + static_cast<std::size_t>(shard.begin) * segment.element_bytes,
      static_cast<std::size_t>(shard.size()) * segment.element_bytes);
}

Reach agree_on_reach(Communicator& world, const PeerBuffer& buffer) {
  Reach mine;
  for (int rank = 0; rank < world.world(); ++rank) {
    if (rank == world.rank()) continue;
    (buffer.is_shared_with(rank) ? mine.is_memory_used : mine.are_messages_used) = true;
  }
  Reach all;
  for (const Reach& one : world.all_gather(mine)) {
    all.is_memory_used |= one.is_memory_used;
    all.are_messages_used |= one.are_messages_used;
  }
  return all;
}

// All plain stores before this call, on any rank, are seen by all plain loads after it.
void memory_barrier(Communicator& world) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  world.barrier();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool needs_message(const Communicator& world, const PeerBuffer& buffer, int rank) {
  return rank != world.rank() && !buffer.is_shared_with(rank);
}

}  // namespace

LeafExchange::LeafExchange(Communicator& world, PeerBuffer& gradients,
                           std::vector<SegmentPlace> segments)
    : world_(world), gradients_(gradients), segments_(std::move(segments)) {
  check_segments(segments_, gradients_.mine().size());
  reach_ = agree_on_reach(world_, gradients_);
  const int ranks = world_.world();
  staging_.resize(static_cast<std::size_t>(ranks));
  slices_.resize(static_cast<std::size_t>(ranks));
  for (int source = 0; source < ranks; ++source) {
    auto& staging = staging_[static_cast<std::size_t>(source)];
    auto& slices = slices_[static_cast<std::size_t>(source)];
    const bool is_staged = needs_message(world_, gradients_, source);
    std::size_t my_bytes = 0;
    for (const SegmentPlace& segment : segments_) {
      my_bytes += shard_bytes(gradients_.mine(), segment, world_.rank(), ranks).size();
    }
    if (is_staged) staging.resize(my_bytes);
    std::size_t at = 0;
    for (const SegmentPlace& segment : segments_) {
      if (is_staged) {
        const auto size = shard_bytes(gradients_.mine(), segment, world_.rank(), ranks).size();
        slices.push_back(std::span<const std::byte>(staging).subspan(at, size));
        at += size;
      } else {
        slices.push_back(shard_bytes(gradients_.of(source), segment, world_.rank(), ranks));
      }
    }
  }
}

void LeafExchange::deliver(int sources) {
  VSR_CHECK(sources >= 0 && sources <= world_.world(), "got " + std::to_string(sources) +
                                                           " sources in a world of " +
                                                           std::to_string(world_.world()));
  sources_ = sources;
  if (reach_.is_memory_used) {
    memory_barrier(world_);
    count_shared();
  }
  if (!reach_.are_messages_used) return;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) send_segment(segment);
}

void LeafExchange::count_shared() {
  if (world_.rank() >= sources_) return;
  for (int owner = 0; owner < world_.world(); ++owner) {
    if (owner == world_.rank() || !gradients_.is_shared_with(owner)) continue;
    for (const SegmentPlace& segment : segments_) {
      const auto shard = shard_bytes(gradients_.mine(), segment, owner, world_.world());
      world_.count_sent(static_cast<std::int64_t>(shard.size()));
    }
  }
}

void LeafExchange::send_segment(std::size_t segment) {
  const auto ranks = static_cast<std::size_t>(world_.world());
  std::vector<std::span<const std::byte>> outgoing(ranks);
  std::vector<std::span<std::byte>> incoming(ranks);
  for (int peer = 0; peer < world_.world(); ++peer) {
    if (!needs_message(world_, gradients_, peer)) continue;
    const auto at = static_cast<std::size_t>(peer);
    if (world_.rank() < sources_) {
      outgoing[at] = shard_bytes(gradients_.mine(), segments_[segment], peer, world_.world());
    }
    if (peer < sources_) {
      const std::span<const std::byte> place = slices_[at][segment];
      const auto offset = static_cast<std::size_t>(place.data() - staging_[at].data());
      incoming[at] = std::span<std::byte>(staging_[at]).subspan(offset, place.size());
    }
  }
  world_.exchange_bytes(outgoing, incoming);
}

std::span<const std::byte> LeafExchange::slice(int source, std::size_t segment) const {
  VSR_CHECK(
      source >= 0 && source < world_.world(),
      "got source " + std::to_string(source) + " in a world of " + std::to_string(world_.world()));
  VSR_CHECK(segment < segments_.size(),
            "got segment " + std::to_string(segment) + " of " + std::to_string(segments_.size()));
  if (source >= sources_) return {};
  return slices_[static_cast<std::size_t>(source)][segment];
}

void LeafExchange::release() {
  sources_ = 0;
  // A message has left its buffer when deliver returns; only readers in memory need waiting for.
  if (reach_.is_memory_used) memory_barrier(world_);
}

ShardPublisher::ShardPublisher(Communicator& world, PeerBuffer& replica,
                               std::vector<SegmentPlace> segments)
    : world_(world), replica_(replica), segments_(std::move(segments)) {
  check_segments(segments_, replica_.mine().size());
  reach_ = agree_on_reach(world_, replica_);
  for (const SegmentPlace& segment : segments_) {
    auto& places = destinations_.emplace_back();
    places.push_back(shard_bytes(replica_.mine(), segment, world_.rank(), world_.world()));
    for (int peer = 0; peer < world_.world(); ++peer) {
      if (peer == world_.rank() || !replica_.is_shared_with(peer)) continue;
      places.push_back(shard_bytes(replica_.of(peer), segment, world_.rank(), world_.world()));
    }
  }
}

std::span<const std::span<std::byte>> ShardPublisher::destinations(std::size_t segment) const {
  VSR_CHECK(segment < segments_.size(),
            "got segment " + std::to_string(segment) + " of " + std::to_string(segments_.size()));
  return destinations_[segment];
}

void ShardPublisher::publish() {
  const Communicator::Purpose purpose(world_, "publish");
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
    const auto& places = destinations_[segment];
    const std::size_t shared = (places.size() - 1) * places.front().size();
    world_.count_sent(static_cast<std::int64_t>(shared));
    if (reach_.are_messages_used) send_segment(segment);
  }
  if (reach_.is_memory_used) memory_barrier(world_);
}

void ShardPublisher::send_segment(std::size_t segment) {
  const SegmentPlace& place = segments_[segment];
  const std::span<const std::byte> mine = destinations_[segment].front();
  const auto ranks = static_cast<std::size_t>(world_.world());
  if (!reach_.is_memory_used) {
    const auto bytes = static_cast<std::size_t>(place.elements) * place.element_bytes;
    std::vector<std::size_t> sizes;
    for (int rank = 0; rank < world_.world(); ++rank) {
      sizes.push_back(shard_bytes(replica_.mine(), place, rank, world_.world()).size());
    }
    world_.all_gather_bytes(mine, replica_.mine().subspan(place.offset_bytes, bytes), sizes);
    return;
  }
  std::vector<std::span<const std::byte>> outgoing(ranks);
  std::vector<std::span<std::byte>> incoming(ranks);
  for (int peer = 0; peer < world_.world(); ++peer) {
    if (!needs_message(world_, replica_, peer)) continue;
    outgoing[static_cast<std::size_t>(peer)] = mine;
    incoming[static_cast<std::size_t>(peer)] =
        shard_bytes(replica_.mine(), place, peer, world_.world());
  }
  world_.exchange_bytes(outgoing, incoming);
}

}  // namespace vsr::comm
