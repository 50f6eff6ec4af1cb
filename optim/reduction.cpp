// SPDX-License-Identifier: Apache-2.0
#include "optim/reduction.hpp"

#include <algorithm>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

// Up to here adding the slices a second time moves fewer bytes than an FP64 array of sums written
// and read: 2 × world against 16 bytes an element of the shard.
constexpr int kMostSlicesAddedTwice = 8;

comm::SumType sum_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return comm::SumType::fp16;
    case Dtype::bf16:
      return comm::SumType::bf16;
    default:
      return comm::SumType::fp32;
  }
}

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
                                 const FlatLayout& layout, Reduction reduction, int leaves,
                                 Overlap overlap, std::size_t bucket_bytes)
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
    first_block_.push_back(first / comm::kBlockElements);
    first += size;
    bytes += size * element_bytes(segment.dtype);
  }
  slices_.resize(shards_.size());
  block_norms_.resize(elements / comm::kBlockElements);
  if (reduction == Reduction::fast) {
    rounded_sum_ = comm::BulkMemory(world, bytes);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const std::size_t size =
          static_cast<std::size_t>(shards_[i].size()) * element_bytes(layout.segments()[i].dtype);
      rounded_of_segment_.push_back(rounded_sum_.bytes().subspan(begin, size));
      begin += size;
    }
  }
  if (reduction == Reduction::allreduce) return;
  const bool is_wanted =
      overlap == Overlap::on || (overlap == Overlap::automatic && world.bulk_device() != nullptr);
  std::vector<comm::Bucket> buckets;
  if (is_wanted && reduces_each_leaf())
    buckets = plan_buckets(
        layout, bucket_bytes == 0 ? default_bucket_bytes(layout.total_bytes()) : bucket_bytes);
  progress_ = BucketProgress(layout, buckets);
  const bool has_buckets = !buckets.empty();
  exchange_ = std::make_unique<comm::LeafExchange>(world, gradients, segment_places(layout),
                                                   std::move(buckets));
  // In shared memory an owner reads its peers in place: nothing travels that could leave early.
  overlaps_ = has_buckets && exchange_->sends_messages();
}

void GradientReducer::start_pass(std::span<const std::uint8_t> trainable) {
  progress_.start(trainable);
}

void GradientReducer::complete(std::size_t parameter) {
  const comm::Communicator::Purpose purpose(world_, "reduce");
  progress_.complete(parameter);
  while (exchange_->begun() < progress_.ready()) exchange_->begin_next(sources_of(rounds_done_));
}

void GradientReducer::give_up() {
  if (overlaps_) exchange_->give_up(sources_of(rounds_done_));
}

// Leaves of a round are those of ranks 0, 1, …; only the last round may be short of some.
int GradientReducer::sources_of(int round) const noexcept {
  return std::min(world_.world(), leaves_ - round * world_.world());
}

void GradientReducer::start() noexcept {
  rounds_done_ = 0;
  non_finite_ = {};
}

// Parts are reduced as they come in, while the rest is on its way.
void GradientReducer::deliver(int sources, Norm norm, double power, int round) {
  exchange_->deliver(sources, [&](std::size_t segment, comm::Interval elements) {
    reduce_arrived(segment, elements, sources, norm, power, round);
  });
  for (std::size_t segment = 0; segment < slices_.size(); ++segment) {
    slices_[segment].clear();
    if (reduction_ == Reduction::fast) {
      slices_[segment].emplace_back(rounded_of_segment_[segment]);
      continue;
    }
    for (int source = 0; source < sources; ++source)
      slices_[segment].push_back(exchange_->slice(source, segment));
  }
}

void GradientReducer::reduce_arrived(std::size_t segment, comm::Interval elements, int sources,
                                     Norm norm, double power, int round) {
  const Dtype dtype = layout_.segments()[segment].dtype;
  const std::size_t begin = static_cast<std::size_t>(elements.begin) * element_bytes(dtype);
  const std::size_t bytes = static_cast<std::size_t>(elements.size()) * element_bytes(dtype);
  part_.clear();
  for (int source = 0; source < sources; ++source)
    part_.push_back(exchange_->slice(source, segment).subspan(begin, bytes));
  if (reduction_ == Reduction::fast) {
    const std::span<std::byte> sum = rounded_of_segment_[segment].subspan(begin, bytes);
    add_rounded(dtype, part_, sum, isa_);
    part_ = {sum};
  }
  sweep(segment, elements, part_, norm, power, round);
}

void GradientReducer::sweep(std::size_t segment, comm::Interval elements,
                            std::span<const std::span<const std::byte>> slices, Norm norm,
                            double power, int round) {
  constexpr auto kBlock = static_cast<std::size_t>(comm::kBlockElements);
  const auto begin = static_cast<std::size_t>(elements.begin);
  const auto size = static_cast<std::size_t>(elements.size());
  const std::span<double> sums = sums_of_segment_[segment];
  const Census census = sum_leaves(
      {.dtype = layout_.segments()[segment].dtype,
       .slices = slices,
       .accumulator = sums.empty() ? sums : sums.subspan(begin, size),
       .accumulate = round > 0,
       .norm = norm,
       .power = power,
       .block_norms = std::span<double>(block_norms_)
                          .subspan(first_block_[segment] + begin / kBlock, size / kBlock)},
      isa_);
  non_finite_.inf_count += census.inf_count;
  non_finite_.nan_count += census.nan_count;
  if (census.first_element < 0) return;
  const std::int64_t element = shards_[segment].begin + elements.begin + census.first_element;
  const std::int64_t parameter = layout_.parameter_at(segment, element);
  VSR_CHECK(parameter >= 0, "a non-finite value lies in the padding of the flat gradients");
  const ParameterPlace& place = layout_.places()[static_cast<std::size_t>(parameter)];
  const std::int64_t logical = place.logical_begin + element - place.offset;
  if (non_finite_.first_logical >= 0 && non_finite_.first_logical <= logical) return;
  non_finite_.first_logical = logical;
  non_finite_.first_leaf = reduces_each_leaf() ? round * world_.world() + census.first_slice : -1;
}

void GradientReducer::reduce_round() {
  const comm::Communicator::Purpose purpose(world_, "reduce");
  VSR_CHECK(reduces_each_leaf() && rounds_done_ + 1 < rounds_, "no round is left before the last");
  deliver(sources_of(rounds_done_), Norm::two, 2.0, rounds_done_);
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

// The backend adds on the way; a rank without a leaf gives zeros.
void GradientReducer::reduce_scatter_segments() {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Segment& segment = layout_.segments()[i];
    const std::size_t width = element_bytes(segment.dtype);
    std::vector<std::size_t> sizes;
    for (int rank = 0; rank < world_.world(); ++rank)
      sizes.push_back(
          static_cast<std::size_t>(comm::shard_of(segment.elements, rank, world_.world()).size()) *
          width);
    const std::span<std::byte> sum = rounded_of_segment_[i];
    world_.reduce_scatter_sum(
        sum_type(segment.dtype),
        gradients_.mine().subspan(segment.offset_bytes,
                                  static_cast<std::size_t>(segment.elements) * width),
        sum, sizes);
    slices_[i] = {sum};
  }
}

void GradientReducer::reduce_last(Norm norm, double power) {
  const comm::Communicator::Purpose purpose(world_, "reduce");
  while (reduces_each_leaf() && rounds_done_ + 1 < rounds_) reduce_round();
  is_held_ = true;
  const bool is_added_on_the_way = reduction_ == Reduction::allreduce ||
                                   (reduction_ == Reduction::fast && world_.reduces_on_the_way());
  if (is_added_on_the_way) {
    if (reduction_ == Reduction::allreduce)
      all_reduce_segments();
    else
      reduce_scatter_segments();
    for (std::size_t i = 0; i < shards_.size(); ++i)
      sweep(i, {0, shards_[i].size()}, slices_[i], norm, power, 0);
  } else if (reduces_each_leaf()) {
    deliver(sources_of(rounds_done_), norm, power, rounds_done_);
  } else {
    deliver(std::min(world_.world(), leaves_), norm, power, 0);
  }
  rounds_done_ = rounds_;
}

void GradientReducer::release() {
  const comm::Communicator::Purpose purpose(world_, "release");
  if (is_held_ && exchange_ != nullptr) exchange_->release();
  is_held_ = false;
}

}  // namespace vsr::optim
