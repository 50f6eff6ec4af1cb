// SPDX-License-Identifier: Apache-2.0
#include "optim/master_shard.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "comm/error.hpp"
#include "optim/hash.hpp"
#include "optim/update_kernels.hpp"

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

std::vector<comm::Interval> ShardView::intervals() const {
  std::vector<comm::Interval> intervals;
  for (const ShardPiece& piece : pieces) intervals.push_back(piece.logical);
  return intervals;
}

std::int64_t ShardView::elements() const {
  std::int64_t elements = 0;
  for (const ShardPiece& piece : pieces) elements += piece.logical.size();
  return elements;
}

std::vector<float> ShardView::copy(std::size_t array) const {
  std::vector<float> values;
  reserve_large(values, static_cast<std::size_t>(elements()));
  for (const ShardPiece& piece : pieces)
    values.insert(values.end(), piece.values[array].begin(), piece.values[array].end());
  return values;
}

void ShardView::fill(std::size_t array, std::span<const float> values) const {
  VSR_CHECK(static_cast<std::int64_t>(values.size()) == elements(),
            "the values of " + arrays[array] + " are as many as another shard has");
  for (const ShardPiece& piece : pieces) {
    const std::span<float> target = piece.values[array];
    std::ranges::copy(values.first(target.size()), target.begin());
    values = values.subspan(target.size());
  }
}

std::size_t ShardView::index_of(std::string_view array) const {
  const auto found = std::ranges::find(arrays, array);
  VSR_CHECK(found != arrays.end(), "the shard has no array " + std::string(array));
  return static_cast<std::size_t>(found - arrays.begin());
}

MasterShard::MasterShard(comm::Communicator& world, const FlatLayout& layout,
                         std::vector<std::string> moments, bool has_ema)
    : world_(world),
      layout_(layout),
      isa_(active_isa()),
      has_ema_(has_ema),
      names_{"master"},
      pieces_(layout.pieces(world.rank(), world.world())),
      counters_(layout.parameters().size()) {
  names_.insert(names_.end(), moments.begin(), moments.end());
  if (has_ema) names_.emplace_back("ema");
  for (const Segment& segment : layout.segments()) {
    shards_.push_back(comm::shard_of(segment.elements, world.rank(), world.world()));
    first_.push_back(elements_);
    elements_ += static_cast<std::size_t>(shards_.back().size());
  }
  for (std::size_t i = 0; i < names_.size(); ++i) values_.emplace_back(elements_);
}

comm::Interval MasterShard::in_shard(const Piece& piece) const {
  return shifted(piece.in_segment, shards_[segment_of(piece)].begin);
}

std::span<float> MasterShard::part(std::span<float> array, std::size_t segment) const {
  return array.subspan(first_[segment], static_cast<std::size_t>(shards_[segment].size()));
}

std::span<float> MasterShard::part(std::span<float> array, const Piece& piece) const {
  return subspan_of(part(array, segment_of(piece)), in_shard(piece));
}

std::span<float> MasterShard::part(std::size_t array, std::size_t segment) const {
  return part(values_[array].span(), segment);
}

std::span<float> MasterShard::part(std::size_t array, const Piece& piece) const {
  return part(values_[array].span(), piece);
}

ShardView MasterShard::view() const {
  ShardView view{names_, {}};
  for (const Piece& piece : pieces_) {
    view.pieces.push_back({piece.parameter, piece.logical, {}});
    for (std::size_t array = 0; array < names_.size(); ++array)
      view.pieces.back().values.push_back(part(array, piece));
  }
  return view;
}

void MasterShard::set(std::size_t array, std::size_t parameter, std::span<const float> values) {
  VSR_CHECK(static_cast<std::int64_t>(values.size()) == layout_.places()[parameter].numel,
            "parameter " + layout_.parameters()[parameter].name + " has another number of values");
  // Pieces are in logical order, and so in that of parameters.
  for (const Piece& piece : std::ranges::equal_range(pieces_, parameter, {}, &Piece::parameter))
    std::ranges::copy(subspan_of(values, piece.in_parameter), part(array, piece).begin());
}

std::vector<float> MasterShard::gather(std::size_t array, std::size_t parameter) const {
  return gather(values_[array].span(), parameter);
}

std::vector<float> MasterShard::gather(std::span<float> array, std::size_t parameter) const {
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
    values = subspan_of(part(array, place.segment), shifted(mine, shards_[place.segment].begin));
  return world_.all_gather(values, counts);
}

void MasterShard::count_step(std::span<const std::uint8_t> used,
                             const std::vector<std::pair<double, double>>* betas) {
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    if (used[i] == 0) continue;
    ++counters_[i].steps;
    if (betas == nullptr) continue;
    counters_[i].beta1_power *= (*betas)[i].first;
    counters_[i].beta2_power *= (*betas)[i].second;
  }
}

void MasterShard::start_ema() {
  if (has_ema_) std::ranges::copy(values_[kMaster].span(), values_[ema()].span().begin());
}

void MasterShard::step_ema(double decay) {
  if (has_ema_) update_ema(values_[kMaster].span(), values_[ema()].span(), decay, isa_);
}

void MasterShard::round_piece(std::size_t array, const Piece& piece,
                              const comm::ShardPublisher& publisher) const {
  const Dtype dtype = layout_.segments()[segment_of(piece)].dtype;
  const comm::Interval mine = in_shard(piece);
  const auto width = static_cast<std::int64_t>(element_bytes(dtype));
  for (const std::span<std::byte> destination : publisher.destinations(segment_of(piece)))
    round_to(dtype, part(array, piece),
             subspan_of(destination, {mine.begin * width, mine.end * width}), isa_);
}

void MasterShard::round_to_replicas(std::size_t array,
                                    const comm::ShardPublisher& publisher) const {
  for (const Piece& piece : pieces_) round_piece(array, piece, publisher);
}

std::string MasterShard::masters_hash(std::span<const std::uint8_t> trainable) const {
  const std::span<const ParameterSpec> specs = layout_.parameters();
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // std::string compares bytes as unsigned char.
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::string_view(specs[i].name); });
  Xxh3Stream stream;
  for (const std::size_t i : order) {
    if (trainable[i] == 0) continue;
    const auto dimensions = static_cast<std::int64_t>(specs[i].shape.size());
    stream.update(std::as_bytes(std::span(specs[i].name.c_str(), specs[i].name.size() + 1)));
    stream.update(std::as_bytes(std::span(&dimensions, 1)));
    stream.update(std::as_bytes(std::span(specs[i].shape)));
    const std::vector<float> values = gather(kMaster, i);
    stream.update(std::as_bytes(std::span(values)));
  }
  return stream.hex();
}

}  // namespace vsr::optim
