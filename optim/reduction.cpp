// SPDX-License-Identifier: Apache-2.0
#include "optim/reduction.hpp"

#include <algorithm>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

// Up to here adding the slices a second time moves fewer bytes than an FP64 array of sums written
// and read: 2 × world against 16 bytes an element of the shard.
constexpr int kMostSlicesAddedTwice = 8;

}  // namespace

std::string_view reduction_name(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::exact:
      return "exact";
    case Reduction::allreduce:
      return "allreduce";
    default:
      return "fast";
  }
}

SplitDivide split_divide(int summands) {
  VSR_CHECK(summands >= 1,
            "a mean over " + std::to_string(summands) + " values, expected at least 1");
  std::int64_t before = 1;
  while (before * before < summands && summands % before == 0) before *= 2;
  return {static_cast<double>(before), static_cast<double>(summands) / static_cast<double>(before)};
}

std::vector<comm::SegmentPlace> segment_places(const FlatLayout& layout) {
  std::vector<comm::SegmentPlace> places;
  for (const Segment& segment : layout.segments())
    places.push_back({segment.offset_bytes, segment.elements, element_bytes(segment.dtype)});
  return places;
}

GradientReducer::GradientReducer(comm::Communicator& world, comm::PeerBuffer& gradients,
                                 const FlatLayout& layout, Reduction reduction, int leaves)
    : world_(world),
      gradients_(gradients),
      layout_(layout),
      reduction_(reduction),
      leaves_(leaves),
      rounds_((leaves + world.world() - 1) / world.world()),
      isa_(active_isa()) {
  if (reduction != Reduction::exact) divided_before_ = split_divide(leaves).before;
  VSR_CHECK(leaves >= 1, "a step needs at least one leaf, got " + std::to_string(leaves));
  const auto elements =
      static_cast<std::size_t>(layout.shard_elements(world.rank(), world.world()));
  const bool keeps_sums =
      reduction == Reduction::exact && (rounds_ > 1 || sources_of(0) > kMostSlicesAddedTwice);
  if (keeps_sums) accumulator_ = LargeArray<double>(elements);
  std::size_t bytes = 0;
  std::size_t first = 0;
  for (const Segment& segment : layout.segments()) {
    const comm::Interval shard = comm::shard_of(segment.elements, world.rank(), world.world());
    const auto size = static_cast<std::size_t>(shard.size());
    shards_.push_back(shard);
    sums_of_segment_.push_back(keeps_sums ? accumulator_.span().subspan(first, size)
                                          : std::span<double>());
    sums_.emplace_back(sums_of_segment_.back());
    first += size;
    bytes += size * element_bytes(segment.dtype);
  }
  slices_.resize(shards_.size());
  block_norms_.resize(elements / comm::kBlockElements);
  if (reduction == Reduction::fast) rounded_sum_ = LargeArray<std::byte>(bytes);
  if (reduction != Reduction::allreduce)
    exchange_ = std::make_unique<comm::LeafExchange>(world, gradients, segment_places(layout));
}

// Leaves of a round are those of ranks 0, 1, …; only the last round may be short of some.
int GradientReducer::sources_of(int round) const noexcept {
  return std::min(world_.world(), leaves_ - round * world_.world());
}

void GradientReducer::start() noexcept {
  rounds_done_ = 0;
  non_finite_ = {};
}

void GradientReducer::collect_slices(int sources) {
  for (std::size_t segment = 0; segment < slices_.size(); ++segment) {
    slices_[segment].clear();
    for (int source = 0; source < sources; ++source)
      slices_[segment].push_back(exchange_->slice(source, segment));
  }
}

void GradientReducer::sweep(Norm norm, double power, int round) {
  std::size_t block = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const auto blocks = static_cast<std::size_t>(shards_[i].size() / comm::kBlockElements);
    const Census census =
        sum_leaves({.dtype = layout_.segments()[i].dtype,
                    .slices = slices_[i],
                    .accumulator = sums_of_segment_[i],
                    .accumulate = round > 0,
                    .norm = norm,
                    .power = power,
                    .block_norms = std::span<double>(block_norms_).subspan(block, blocks)},
                   isa_);
    block += blocks;
    non_finite_.inf_count += census.inf_count;
    non_finite_.nan_count += census.nan_count;
    if (census.first_element < 0) continue;
    const std::int64_t element = shards_[i].begin + census.first_element;
    const std::int64_t parameter = layout_.parameter_at(i, element);
    VSR_CHECK(parameter >= 0, "a non-finite value lies in the padding of the flat gradients");
    const ParameterPlace& place = layout_.places()[static_cast<std::size_t>(parameter)];
    const std::int64_t logical = place.logical_begin + element - place.offset;
    if (non_finite_.first_logical >= 0 && non_finite_.first_logical <= logical) continue;
    non_finite_.first_logical = logical;
    non_finite_.first_leaf = reduces_each_leaf() ? round * world_.world() + census.first_slice : -1;
  }
}

void GradientReducer::reduce_round() {
  const comm::Communicator::Purpose purpose(world_, "reduce");
  VSR_CHECK(reduces_each_leaf() && rounds_done_ + 1 < rounds_, "no round is left before the last");
  exchange_->deliver(sources_of(rounds_done_));
  collect_slices(sources_of(rounds_done_));
  sweep(Norm::two, 2.0, rounds_done_);
  exchange_->release();
  ++rounds_done_;
}

void GradientReducer::all_reduce_segments() {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Segment& segment = layout_.segments()[i];
    const std::span<std::byte> bytes =
        gradients_.mine().subspan(segment.offset_bytes, static_cast<std::size_t>(segment.elements) *
                                                            element_bytes(segment.dtype));
    // The flat buffer holds values of this type at this aligned place.
    auto* const shorts = reinterpret_cast<std::uint16_t*>(bytes.data());
    if (segment.dtype == Dtype::fp16) world_.all_reduce_sum_fp16({shorts, bytes.size() / 2});
    if (segment.dtype == Dtype::bf16) world_.all_reduce_sum_bf16({shorts, bytes.size() / 2});
    if (segment.dtype == Dtype::fp32)
      world_.all_reduce_sum_fp32({reinterpret_cast<float*>(bytes.data()), bytes.size() / 4});
    const std::size_t width = element_bytes(segment.dtype);
    slices_[i] = {bytes.subspan(static_cast<std::size_t>(shards_[i].begin) * width,
                                static_cast<std::size_t>(shards_[i].size()) * width)};
  }
}

void GradientReducer::add_in_rank_order() {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Dtype dtype = layout_.segments()[i].dtype;
    const std::span<std::byte> sum = rounded_sum_.span().subspan(
        offset, static_cast<std::size_t>(shards_[i].size()) * element_bytes(dtype));
    add_rounded(dtype, slices_[i], sum, isa_);
    slices_[i] = {sum};
    offset += sum.size();
  }
}

void GradientReducer::reduce_last(Norm norm, double power) {
  const comm::Communicator::Purpose purpose(world_, "reduce");
  while (reduces_each_leaf() && rounds_done_ + 1 < rounds_) reduce_round();
  if (reduction_ == Reduction::allreduce) {
    all_reduce_segments();
  } else {
    const int sources =
        reduces_each_leaf() ? sources_of(rounds_done_) : std::min(world_.world(), leaves_);
    exchange_->deliver(sources);
    collect_slices(sources);
    if (reduction_ == Reduction::fast) add_in_rank_order();
  }
  is_held_ = true;
  sweep(norm, power, reduces_each_leaf() ? rounds_done_ : 0);
  rounds_done_ = rounds_;
}

void GradientReducer::release() {
  const comm::Communicator::Purpose purpose(world_, "release");
  if (is_held_ && exchange_ != nullptr) exchange_->release();
  is_held_ = false;
}

}  // namespace vsr::optim
