// SPDX-License-Identifier: Apache-2.0
#include "comm/leaf_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Whole blocks of every type; the sum of one piece fits into a processor's cache.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

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

// Together every element of every segment once.
void check_buckets(std::vector<Bucket> buckets, std::span<const SegmentPlace> segments) {
  std::ranges::sort(buckets, [](const Bucket& a, const Bucket& b) {
    return std::pair(a.segment, a.elements.begin) < std::pair(b.segment, b.elements.begin);
  });
  std::size_t next = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    std::int64_t covered = 0;
    for (; next < buckets.size() && buckets[next].segment == i; ++next) {
      const Interval elements = buckets[next].elements;
      VSR_CHECK(elements.begin == covered && elements.size() % kBlockElements == 0 &&
                    (!elements.is_empty() || segments[i].elements == 0),
                "a bucket begins at element " + std::to_string(elements.begin) + " of segment " +
                    std::to_string(i) + ", expected whole blocks from " + std::to_string(covered));
      covered = elements.end;
    }
    VSR_CHECK(covered == segments[i].elements, "buckets cover " + std::to_string(covered) + " of " +
                                                   std::to_string(segments[i].elements) +
                                                   " elements of segment " + std::to_string(i));
  }
  VSR_CHECK(next == buckets.size(), "a bucket of segment " + std::to_string(buckets[next].segment) +
                                        ", of which there are " + std::to_string(segments.size()));
}

}  // namespace

LeafExchange::LeafExchange(Communicator& world, PeerBuffer& gradients,
                           std::vector<SegmentPlace> segments, std::vector<Bucket> buckets)
    : world_(world),
      gradients_(gradients),
      segments_(std::move(segments)),
      buckets_(std::move(buckets)) {
  check_segments(segments_, gradients_.mine().size());
  if (buckets_.empty())
    for (std::size_t i = 0; i < segments_.size(); ++i)
      buckets_.push_back({i, {0, segments_[i].elements}});
  check_buckets(buckets_, segments_);
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
    if (is_staged) staging = BulkMemory(world_, my_bytes);
    std::size_t at = 0;
    for (const SegmentPlace& segment : segments_) {
      if (is_staged) {
        const auto size = shard_bytes(gradients_.mine(), segment, world_.rank(), ranks).size();
        slices.push_back(std::span<const std::byte>(staging.bytes()).subspan(at, size));
        at += size;
      } else {
        slices.push_back(shard_bytes(gradients_.of(source), segment, world_.rank(), ranks));
      }
    }
  }
}

void LeafExchange::deliver(int sources, const Arrived& arrived) {
  VSR_CHECK(sources >= 0 && sources <= world_.world(), "got " + std::to_string(sources) +
                                                           " sources in a world of " +
                                                           std::to_string(world_.world()));
  sources_ = sources;
  if (reach_.is_memory_used) {
    memory_barrier(world_);
    count_shared();
  }
  while (reach_.are_messages_used && begun() < buckets()) begin_next(sources);
  finish_buckets(arrived);
}

void LeafExchange::begin_next(int sources) {
  VSR_CHECK(begun() < buckets(), "all " + std::to_string(buckets()) + " buckets have left");
  const Transfer transfer = messages_of(buckets_[begun()], sources);
  pending_.push_back(world_.begin_exchange({&transfer, 1}, kPieceBytes));
}

// Time in `arrived` is work, the rest of an exchange is waiting.
void LeafExchange::finish_buckets(const Arrived& arrived) {
  std::vector<std::unique_ptr<PendingExchange>> pending = std::exchange(pending_, {});
  std::exception_ptr failure;
  const auto deliver_part = [&](std::size_t segment, Interval part) {
    if (failure || part.is_empty()) return;
    const auto start = Clock::now();
    try {
      arrived(segment, part);
    } catch (...) {
      failure = std::current_exception();
    }
    waited_ms_ -= ms_since(start);
  };
  for (std::size_t i = 0; i < buckets(); ++i) {
    const auto start = Clock::now();
    const Bucket& bucket = buckets_[i];
    const auto width = static_cast<std::int64_t>(segments_[bucket.segment].element_bytes);
    Interval left = my_part_of(bucket);
    if (i < pending.size()) {
      const std::int64_t first = left.begin;
      world_.finish_exchange(std::move(pending[i]), [&](std::size_t, std::size_t, std::size_t end) {
        const std::int64_t until = first + static_cast<std::int64_t>(end) / width;
        deliver_part(bucket.segment, {std::exchange(left.begin, until), until});
      });
    }
    // What comes from no other rank by message: memory alone, or no source but this rank.
    deliver_part(bucket.segment, left);
    waited_ms_ += ms_since(start);
  }
  if (failure) std::rethrow_exception(failure);
}

void LeafExchange::give_up(int sources) {
  if (!reach_.are_messages_used) return;
  const std::vector<std::size_t> begun_by_rank = world_.all_gather(begun());
  if (std::ranges::all_of(begun_by_rank, [](std::size_t count) { return count == 0; })) return;
  while (begun() < buckets()) begin_next(sources);
  finish_buckets([](std::size_t, Interval) {});
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

// Elements of my shard of its segment, from the start of that shard.
Interval LeafExchange::my_part_of(const Bucket& bucket) const {
  const Interval shard =
      shard_of(segments_[bucket.segment].elements, world_.rank(), world_.world());
  const Interval part = intersect(shard, bucket.elements);
  return part.is_empty() ? Interval{} : Interval{part.begin - shard.begin, part.end - shard.begin};
}

Transfer LeafExchange::messages_of(const Bucket& bucket, int sources) const {
  const auto ranks = static_cast<std::size_t>(world_.world());
  const SegmentPlace& segment = segments_[bucket.segment];
  const Interval mine = my_part_of(bucket);
  const auto bytes = [&](Interval part) {
    return std::pair{static_cast<std::size_t>(part.begin) * segment.element_bytes,
                     static_cast<std::size_t>(part.size()) * segment.element_bytes};
  };
  Transfer transfer{std::vector<std::span<const std::byte>>(ranks),
                    std::vector<std::span<std::byte>>(ranks)};
  for (int peer = 0; peer < world_.world(); ++peer) {
    if (!needs_message(world_, gradients_, peer)) continue;
    const auto at = static_cast<std::size_t>(peer);
    const Interval theirs =
        intersect(shard_of(segment.elements, peer, world_.world()), bucket.elements);
    if (world_.rank() < sources && !theirs.is_empty()) {
      const auto [begin, size] = bytes(theirs);
      transfer.outgoing[at] = gradients_.mine().subspan(segment.offset_bytes + begin, size);
    }
    if (peer < sources && !mine.is_empty()) {
      const std::span<const std::byte> place = slices_[at][bucket.segment];
      const auto offset = static_cast<std::size_t>(place.data() - staging_[at].bytes().data());
      const auto [begin, size] = bytes(mine);
      transfer.incoming[at] = staging_[at].bytes().subspan(offset + begin, size);
    }
  }
  return transfer;
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
    world_.all_gather_bulk(replica_.mine().subspan(place.offset_bytes, bytes), sizes);
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
