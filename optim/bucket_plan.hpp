// SPDX-License-Identifier: Apache-2.0
// Which gradients travel together, and when they are complete: backward passes go through a network
// from its end, so buckets leave from the end of the flat buffer while earlier layers are still at
// work. Layout and shards do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/leaf_exchange.hpp"
#include "optim/flat_layout.hpp"

namespace vsr::optim {

/// A quarter of the gradients, at least 1 MiB and at most 25 MiB: small networks, too, have
/// something on its way before their backward pass is over.
std::size_t default_bucket_bytes(std::size_t total_bytes) noexcept;

/// Cut all segments into buckets of about `bucket_bytes`, in the order in which they leave: from
/// the end of the last segment to the start of the first, in whole norm blocks.
/// @throws ArgumentError for bucket_bytes 0
std::vector<comm::Bucket> plan_buckets(const FlatLayout& layout, std::size_t bucket_bytes);

/// Counts, within one backward pass, which buckets are complete. A bucket leaves only when all
/// before it have: so every rank sends them in the same order, whatever its autograd does.
class BucketProgress {
 public:
  BucketProgress() = default;
  BucketProgress(const FlatLayout& layout, std::span<const comm::Bucket> buckets);

  /// A backward pass begins; only parameters that are `trainable` (not 0) will get gradients.
  void start(std::span<const std::uint8_t> trainable);
  /// The gradient of `parameter` is complete.
  /// @throws ArgumentError the second time in a pass: it may have left already
  void complete(std::size_t parameter);
  /// How many of the first buckets are complete.
  std::size_t ready() const noexcept { return ready_; }

 private:
  std::vector<std::vector<std::size_t>> buckets_of_;     // of each parameter
  std::vector<std::vector<std::size_t>> parameters_of_;  // of each bucket
  std::vector<std::size_t> missing_;                     // of each bucket
  std::vector<std::uint8_t> is_complete_;                // of each parameter
  std::size_t ready_ = 0;
};

}  // namespace vsr::optim
