// SPDX-License-Identifier: Apache-2.0
#include "optim/bucket_plan.hpp"

#include <algorithm>
#include <string>

#include "comm/error.hpp"

namespace vsr::optim {

std::size_t default_bucket_bytes(std::size_t total_bytes) noexcept {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return std::clamp(total_bytes / 4, kMiB, 25 * kMiB);
}

std::vector<comm::Bucket> plan_buckets(const FlatLayout& layout, std::size_t bucket_bytes) {
  VSR_CHECK(bucket_bytes > 0, "buckets of 0 bytes");
  std::vector<comm::Bucket> buckets;
  const auto segments = layout.segments();
  for (std::size_t i = segments.size(); i-- > 0;) {
    const std::int64_t width = static_cast<std::int64_t>(element_bytes(segments[i].dtype));
    const std::int64_t elements =
        std::max(comm::kBlockElements, static_cast<std::int64_t>(bucket_bytes) / width /
                                           comm::kBlockElements * comm::kBlockElements);
    for (std::int64_t end = segments[i].elements; end > 0;) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - elements);
      buckets.push_back({i, {begin, end}});
      end = begin;
    }
  }
  return buckets;
}

BucketProgress::BucketProgress(const FlatLayout& layout, std::span<const comm::Bucket> buckets)
    : buckets_of_(layout.places().size()), parameters_of_(buckets.size()) {
  for (std::size_t p = 0; p < layout.places().size(); ++p) {
    const ParameterPlace& place = layout.places()[p];
    const comm::Interval elements{place.offset, place.offset + place.numel};
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].segment != place.segment ||
          comm::intersect(buckets[b].elements, elements).is_empty())
        continue;
      buckets_of_[p].push_back(b);
      parameters_of_[b].push_back(p);
    }
  }
}

void BucketProgress::start(std::span<const std::uint8_t> trainable) {
  missing_.assign(parameters_of_.size(), 0);
  for (std::size_t b = 0; b < parameters_of_.size(); ++b)
    for (const std::size_t p : parameters_of_[b]) missing_[b] += trainable[p] != 0 ? 1 : 0;
  is_complete_.assign(buckets_of_.size(), 0);
  ready_ = 0;
}

void BucketProgress::complete(std::size_t parameter) {
  VSR_CHECK(is_complete_[parameter] == 0,
            "parameter " + std::to_string(parameter) +
                " got a gradient twice within one backward pass (a pass inside the pass?), and the "
                "first may have left already; use Overlap::off");
  is_complete_[parameter] = 1;
  for (const std::size_t b : buckets_of_[parameter]) --missing_[b];
  while (ready_ < missing_.size() && missing_[ready_] == 0) ++ready_;
}

}  // namespace vsr::optim
