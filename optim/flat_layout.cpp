// SPDX-License-Identifier: Apache-2.0
#include "optim/flat_layout.hpp"

#include <algorithm>
#include <set>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

constexpr std::size_t kSegmentAlignmentBytes = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t numel_of(const ParameterSpec& spec) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : spec.shape) {
    VSR_CHECK(extent >= 0,
              "parameter " + spec.name + " has an extent of " + std::to_string(extent));
    numel *= extent;
  }
  return numel;
}

}  // namespace

std::size_t element_bytes(Dtype dtype) noexcept {
  return dtype == Dtype::fp32 ? 4 : 2;
}

std::string_view dtype_name(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::fp16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
    default:
      return "fp32";
  }
}

FlatLayout::FlatLayout(std::vector<ParameterSpec> parameters) : specs_(std::move(parameters)) {
  std::set<std::string_view> names;
  for (const ParameterSpec& spec : specs_) {
    VSR_CHECK(names.insert(spec.name).second, "two parameters are called " + spec.name);
    const auto known = std::find_if(segments_.begin(), segments_.end(),
                                    [&](const Segment& s) { return s.dtype == spec.dtype; });
    const auto index = static_cast<std::size_t>(known - segments_.begin());
    if (known == segments_.end()) segments_.push_back({spec.dtype, 0, 0, 0});
    Segment& segment = segments_[index];
    const std::int64_t offset = round_up(segment.elements, kParameterAlignment);
    const std::int64_t numel = numel_of(spec);
    places_.push_back({index, offset, numel, logical_elements_});
    segment.elements = offset + numel;
    logical_elements_ += numel;
  }
  for (Segment& segment : segments_) {
    segment.elements = comm::padded_to_block(segment.elements);
    segment.offset_bytes = total_bytes_;
    segment.first_block = total_blocks_;
    total_blocks_ += segment.elements / comm::kBlockElements;
    const auto bytes = static_cast<std::size_t>(segment.elements) * element_bytes(segment.dtype);
    total_bytes_ +=
        (bytes + kSegmentAlignmentBytes - 1) / kSegmentAlignmentBytes * kSegmentAlignmentBytes;
  }
}

std::int64_t FlatLayout::shard_elements(int rank, int world) const {
  std::int64_t elements = 0;
  for (const Segment& segment : segments_)
    elements += comm::shard_of(segment.elements, rank, world).size();
  return elements;
}

std::int64_t FlatLayout::shard_blocks(int rank, int world) const {
  return shard_elements(rank, world) / comm::kBlockElements;
}

std::vector<Piece> FlatLayout::pieces(int rank, int world) const {
  std::vector<comm::Interval> shards;
  for (const Segment& segment : segments_)
    shards.push_back(comm::shard_of(segment.elements, rank, world));
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const ParameterPlace& place = places_[i];
    const comm::Interval common =
        comm::intersect({place.offset, place.offset + place.numel}, shards[place.segment]);
    if (common.is_empty()) continue;
    const comm::Interval inside = {common.begin - place.offset, common.end - place.offset};
    pieces.push_back({i,
                      inside,
                      common,
                      {place.logical_begin + inside.begin, place.logical_begin + inside.end}});
  }
  return pieces;
}

std::int64_t FlatLayout::parameter_at(std::size_t segment, std::int64_t element) const noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const ParameterPlace& place = places_[i];
    if (place.segment == segment && place.offset <= element && element < place.offset + place.numel)
      return static_cast<std::int64_t>(i);
  }
  return -1;
}

}  // namespace vsr::optim
