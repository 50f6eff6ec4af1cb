// SPDX-License-Identifier: Apache-2.0
// Reduce to owners: three ways to bring the gradients of all leaves to the rank that steps them,
// behind one class. `comm` moves the slices, the kernels add them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/bulk_memory.hpp"
#include "comm/communicator.hpp"
#include "comm/leaf_exchange.hpp"
#include "comm/peer_buffer.hpp"
#include "optim/bucket_plan.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/large_array.hpp"

namespace vsr::optim {

/// Names of `--reduction`. `exact`: FP64 sum of all leaves, the same bits on any number of ranks.
/// `allreduce`: flat gradients through an all-reduce in their own type. `fast`: reduce-scatter in
/// their own type, added in rank order. The last two: the same bits for the same number of ranks;
/// leaves of one rank are added in the gradient's type. There the loss is divided by
/// split_divide(leaves).before ahead of backward; a sum may still overflow where no leaf does.
enum class Reduction : std::uint8_t { exact, allreduce, fast };

/// "exact", "allreduce" or "fast".
std::string_view reduction_name(Reduction reduction) noexcept;

/// How a mean over `summands` values is divided around a sum in FP16: by `before`, a power of two
/// near the root of the number, and by `after`; their product is the number. So neither the sum
/// overflows where the mean fits, nor do small values underflow more than they must.
struct SplitDivide {
  double before = 1.0;
  double after = 1.0;
};
/// @throws ArgumentError unless summands >= 1
SplitDivide split_divide(int summands);

/// Segments of `layout` as `comm` names them.
std::vector<comm::SegmentPlace> segment_places(const FlatLayout& layout);

/// Non-finite gradient values in this rank's shard.
struct NonFinite {
  std::int64_t inf_count = 0;
  std::int64_t nan_count = 0;
  std::int64_t first_logical = -1;  ///< lowest logical index, or -1
  int first_leaf = -1;              ///< lowest leaf there; -1 where leaves were added before
};

/// Whether gradients leave while a backward pass is still at work (`exact` only). `automatic`:
/// where messages do not need this rank's processor, which is NCCL. Never a different bit.
enum class Overlap : std::uint8_t { automatic, on, off };

/// Reduces the flat gradients of one step after another.
class GradientReducer {
 public:
  /// Collective. References outlive this object.
  /// @param leaves leaves of a step over all ranks, at least 1
  /// @param bucket_bytes what leaves together where gradients leave early; 0: default_bucket_bytes
  GradientReducer(comm::Communicator& world, comm::PeerBuffer& gradients, const FlatLayout& layout,
                  Reduction reduction, int leaves, Overlap overlap = Overlap::automatic,
                  std::size_t bucket_bytes = 0);

  /// Whether gradients leave early. Equal on all ranks.
  bool overlaps() const noexcept { return overlaps_; }
  /// Buckets that leave one after the other.
  std::size_t buckets() const noexcept { return exchange_ ? exchange_->buckets() : 1; }
  /// The last backward pass of a leaf begins; `trainable` as BucketProgress takes it. Local.
  void start_pass(std::span<const std::uint8_t> trainable);
  /// The gradient of `parameter` will not change in this pass: buckets that are complete leave.
  /// Never waits for a rank. Local.
  void complete(std::size_t parameter);
  /// Some of this rank's gradients have left and their round is not over. Local.
  bool has_begun() const noexcept { return exchange_ && exchange_->begun() > 0; }
  /// Collective. Give up the round in progress: what has left is waited for.
  void give_up();
  /// Milliseconds that this rank has waited for messages of gradients so far. Local.
  double waited_ms() const noexcept { return exchange_ ? exchange_->waited_ms() : 0.0; }

  /// Whether this rank's gradients go to their owners after each of its leaves, or once at the end.
  bool reduces_each_leaf() const noexcept { return reduction_ == Reduction::exact; }
  /// What the loss is divided by before backward, so that sums of leaves in the gradients' type
  /// fit: 1 for `exact`, else split_divide(leaves).before.
  double divided_before() const noexcept { return divided_before_; }
  /// Rounds of leaves in a step.
  int rounds() const noexcept { return rounds_; }
  /// Rounds reduced since start().
  int rounds_done() const noexcept { return rounds_done_; }

  /// Begin a step. Local.
  void start() noexcept;
  /// Collective. Add a round that is not the last; afterwards gradients may be written again.
  void reduce_round();
  /// Collective. Add the last round (or everything) and take block norms. The gradients stay in
  /// place until release().
  /// @param power p of Norm::power
  void reduce_last(Norm norm, double power);
  /// Collective after reduce_last, else nothing happens. Reading is done; afterwards gradients may
  /// be written again.
  void release();

  // Results of reduce_last, for this rank's shard of each segment.

  std::span<const std::span<const std::byte>> slices(std::size_t segment) const {
    return slices_[segment];
  }
  /// FP64 sums, or empty where the slices are to be added again.
  std::span<const double> sums(std::size_t segment) const { return sums_[segment]; }
  /// Norms of my blocks, segment after segment.
  std::span<const double> block_norms() const noexcept { return block_norms_; }
  const NonFinite& non_finite() const noexcept { return non_finite_; }

 private:
  int sources_of(int round) const noexcept;
  void deliver(int sources, Norm norm, double power, int round);
  void all_reduce_segments();
  void reduce_scatter_segments();
  void reduce_arrived(std::size_t segment, comm::Interval elements, int sources, Norm norm,
                      double power, int round);
  void sweep(std::size_t segment, comm::Interval elements,
             std::span<const std::span<const std::byte>> slices, Norm norm, double power,
             int round);

  comm::Communicator& world_;
  comm::PeerBuffer& gradients_;
  const FlatLayout& layout_;
  Reduction reduction_;
  int leaves_;
  int rounds_;
  int rounds_done_ = 0;
  bool is_held_ = false;  // between reduce_last and release
  double divided_before_ = 1.0;
  Isa isa_;
  bool overlaps_ = false;
  BucketProgress progress_;
  std::unique_ptr<comm::LeafExchange> exchange_;  // null for allreduce
  std::vector<comm::Interval> shards_;            // of each segment
  std::vector<std::size_t> first_block_;          // of each segment's shard in block_norms_
  std::vector<std::vector<std::span<const std::byte>>> slices_;
  LargeArray<double> accumulator_;  // all segments; empty where slices are added twice
  std::vector<std::span<double>> sums_of_segment_;
  std::vector<std::span<const double>> sums_;
  comm::BulkMemory rounded_sum_;  // fast
  std::vector<std::span<std::byte>> rounded_of_segment_;
  std::vector<std::span<const std::byte>> part_;  // of each source; kept for its memory
  std::vector<double> block_norms_;
  NonFinite non_finite_;
};

}  // namespace vsr::optim
