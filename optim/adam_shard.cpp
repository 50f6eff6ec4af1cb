// SPDX-License-Identifier: Apache-2.0
#include "optim/adam_shard.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "comm/error.hpp"
#include "optim/hash.hpp"

namespace vsr::optim {
namespace {

static_assert(std::endian::native == std::endian::little, "the hash is defined little-endian");

template <typename T>
std::span<T> subspan_of(std::span<T> values, comm::Interval interval) {
  return values.subspan(static_cast<std::size_t>(interval.begin),
                        static_cast<std::size_t>(interval.size()));
}

comm::Interval shifted(comm::Interval interval, std::int64_t by) {
  return {interval.begin - by, interval.end - by};
}

}  // namespace

AdamShard::AdamShard(comm::Communicator& world, const FlatLayout& layout)
    : world_(world),
      layout_(layout),
      isa_(active_isa()),
      pieces_(layout.pieces(world.rank(), world.world())),
      counters_(layout.parameters().size()) {
  std::size_t elements = 0;
  for (const Segment& segment : layout.segments()) {
    shards_.push_back(comm::shard_of(segment.elements, world.rank(), world.world()));
    first_.push_back(elements);
    elements += static_cast<std::size_t>(shards_.back().size());
  }
  master_ = LargeArray<float>(elements);
  exp_avg_ = LargeArray<float>(elements);
  exp_avg_sq_ = LargeArray<float>(elements);
}

std::span<float> AdamShard::part_of(const LargeArray<float>& array, std::size_t segment) const {
  return array.span().subspan(first_[segment], static_cast<std::size_t>(shards_[segment].size()));
}

std::vector<ShardPiece> AdamShard::pieces() const {
  std::vector<ShardPiece> views;
  for (const Piece& piece : pieces_) {
    const std::size_t segment = layout_.places()[piece.parameter].segment;
    const comm::Interval in_shard = shifted(piece.in_segment, shards_[segment].begin);
    views.push_back({piece.logical, subspan_of(part_of(master_, segment), in_shard),
                     subspan_of(part_of(exp_avg_, segment), in_shard),
                     subspan_of(part_of(exp_avg_sq_, segment), in_shard)});
  }
  return views;
}

void AdamShard::set_master(std::size_t parameter, std::span<const float> values) {
  VSR_CHECK(static_cast<std::int64_t>(values.size()) == layout_.places()[parameter].numel,
            "parameter " + layout_.parameters()[parameter].name + " has another number of values");
  for (const Piece& piece : pieces_) {
    if (piece.parameter != parameter) continue;
    const std::size_t segment = layout_.places()[parameter].segment;
    const comm::Interval in_shard = shifted(piece.in_segment, shards_[segment].begin);
    std::ranges::copy(subspan_of(values, piece.in_parameter),
                      subspan_of(part_of(master_, segment), in_shard).begin());
  }
}

void AdamShard::step(const GradientReducer& gradients, double factor,
                     std::span<const std::uint8_t> used, std::span<const AdamOptions> options,
                     const comm::ShardPublisher& publisher) {
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    if (used[i] == 0) continue;
    ++counters_[i].steps;
    counters_[i].beta1_power *= options[i].beta1;
    counters_[i].beta2_power *= options[i].beta2;
  }
  for (const Piece& piece : pieces_) {
    const std::size_t i = piece.parameter;
    if (used[i] == 0) continue;
    const std::size_t segment = layout_.places()[i].segment;
    update_shard({.dtype = layout_.segments()[segment].dtype,
                  .piece = shifted(piece.in_segment, shards_[segment].begin),
                  .slices = gradients.slices(segment),
                  .sums = gradients.sums(segment),
                  .factor = factor,
                  .decay = weight_decay_of(options[i]),
                  .coefficients = adam_coefficients(options[i], counters_[i].beta1_power,
                                                    counters_[i].beta2_power),
                  .master = part_of(master_, segment),
                  .exp_avg = part_of(exp_avg_, segment),
                  .exp_avg_sq = part_of(exp_avg_sq_, segment),
                  .destinations = publisher.destinations(segment)},
                 isa_);
  }
}

void AdamShard::round_masters(const comm::ShardPublisher& publisher) const {
  for (const Piece& piece : pieces_) {
    const std::size_t segment = layout_.places()[piece.parameter].segment;
    const Dtype dtype = layout_.segments()[segment].dtype;
    const comm::Interval in_shard = shifted(piece.in_segment, shards_[segment].begin);
    const auto width = static_cast<std::int64_t>(element_bytes(dtype));
    for (const std::span<std::byte> destination : publisher.destinations(segment))
      round_to(dtype, subspan_of(part_of(master_, segment), in_shard),
               subspan_of(destination, {in_shard.begin * width, in_shard.end * width}), isa_);
  }
}

std::vector<float> AdamShard::gather_master(std::size_t parameter) const {
  const ParameterPlace& place = layout_.places()[parameter];
  const comm::Interval whole = {place.offset, place.offset + place.numel};
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < world_.world(); ++rank) {
    const std::int64_t elements = layout_.segments()[place.segment].elements;
    counts.push_back(static_cast<std::size_t>(
        comm::intersect(whole, comm::shard_of(elements, rank, world_.world())).size()));
  }
  const comm::Interval mine = comm::intersect(whole, shards_[place.segment]);
  std::span<const float> values;
  if (!mine.is_empty())
    values =
        subspan_of(part_of(master_, place.segment), shifted(mine, shards_[place.segment].begin));
  return world_.all_gather(values, counts);
}

std::string AdamShard::masters_hash() const {
  const std::span<const ParameterSpec> specs = layout_.parameters();
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // std::string compares bytes as unsigned char.
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::string_view(specs[i].name); });
  Xxh3Stream stream;
  for (const std::size_t i : order) {
    if (!specs[i].trainable) continue;
    const auto dimensions = static_cast<std::int64_t>(specs[i].shape.size());
    stream.update(std::as_bytes(std::span(specs[i].name.c_str(), specs[i].name.size() + 1)));
    stream.update(std::as_bytes(std::span(&dimensions, 1)));
    stream.update(std::as_bytes(std::span(specs[i].shape)));
    const std::vector<float> values = gather_master(i);
    stream.update(std::as_bytes(std::span(values)));
  }
  return stream.hex();
}

}  // namespace vsr::optim
