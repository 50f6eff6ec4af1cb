// SPDX-License-Identifier: Apache-2.0
// This rank's shard of the FP32 state: masters, the moments of the update rule and the moving
// average, and what is said about them to checkpoints and to the hash. How they are stepped is the
// business of the rules (fused_step.hpp, libtorch_rule.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/leaf_exchange.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/large_array.hpp"

namespace vsr::optim {

/// Counters of one parameter.
struct ParameterCounters {
  std::int64_t steps = 0;  ///< applied steps in which the parameter was used
  /// beta1^steps as a running FP64 product; 1 for rules without; SGD: 0 once its momentum began.
  double beta1_power = 1.0;
  double beta2_power = 1.0;
  friend bool operator==(const ParameterCounters&, const ParameterCounters&) = default;
};

/// One piece of this rank's shard, open for reading and for loading.
struct ShardPiece {
  std::size_t parameter = 0;
  comm::Interval logical;  ///< elements of the unpadded concatenation of all parameters
  std::vector<std::span<float>> values;  ///< one for each name in ShardView::arrays
};

/// This rank's FP32 state in ascending logical order; frozen parameters are part of it.
/// Valid as long as its optimizer, until add_param_group.
struct ShardView {
  std::vector<std::string> arrays;  ///< "master", the moments, and "ema" where there is one
  std::vector<ShardPiece> pieces;
  /// The logical intervals of the pieces.
  std::vector<comm::Interval> intervals() const;
  /// Elements of all pieces.
  std::int64_t elements() const;
  /// A copy of array `array`, the pieces one after the other.
  std::vector<float> copy(std::size_t array) const;
  /// Put such a copy back.
  /// @throws ArgumentError for another number of values
  void fill(std::size_t array, std::span<const float> values) const;
  /// Index of an array.
  /// @throws ArgumentError when there is none of that name
  std::size_t index_of(std::string_view array) const;
};

/// Masters, moments and averages of one rank.
class MasterShard {
 public:
  static constexpr std::size_t kMaster = 0;
  static constexpr std::size_t kFirstMoment = 1;

  /// `world` and `layout` outlive this object. All values are zero.
  /// @param moments names of the FP32 arrays that the rule keeps beside the masters
  MasterShard(comm::Communicator& world, const FlatLayout& layout, std::vector<std::string> moments,
              bool has_ema);

  comm::Communicator& world() const noexcept { return world_; }
  const FlatLayout& layout() const noexcept { return layout_; }
  Isa isa() const noexcept { return isa_; }
  /// What I own, in ascending logical order.
  std::span<const Piece> pieces() const noexcept { return pieces_; }
  /// `piece` counted from the start of my shard of its segment.
  comm::Interval in_shard(const Piece& piece) const;
  std::size_t segment_of(const Piece& piece) const {
    return layout_.places()[piece.parameter].segment;
  }

  /// "master", the moments, and "ema" where there is one.
  const std::vector<std::string>& arrays() const noexcept { return names_; }
  bool has_ema() const noexcept { return has_ema_; }
  std::size_t ema() const noexcept { return names_.size() - 1; }
  /// My shard of `segment` of an array.
  std::span<float> part(std::size_t array, std::size_t segment) const;
  /// The elements of `piece` in an array.
  std::span<float> part(std::size_t array, const Piece& piece) const;
  /// Elements of an array: my shards of all segments, one after the other.
  std::size_t elements() const noexcept { return elements_; }
  /// The same parts of an array of the caller that has as many elements.
  std::span<float> part(std::span<float> array, std::size_t segment) const;
  std::span<float> part(std::span<float> array, const Piece& piece) const;
  ShardView view() const;

  /// Keep my part of the FP32 values of a parameter, given whole in logical order.
  /// @throws ArgumentError for another number of values
  void set(std::size_t array, std::size_t parameter, std::span<const float> values);
  /// Collective. The values of a parameter from all ranks, whole, in logical order.
  std::vector<float> gather(std::size_t array, std::size_t parameter) const;
  /// Collective. The same of an array of the caller with elements() values.
  std::vector<float> gather(std::span<float> array, std::size_t parameter) const;

  /// Count a step for each used parameter; on all ranks alike. `betas` may be null.
  void count_step(std::span<const std::uint8_t> used,
                  const std::vector<std::pair<double, double>>* betas);
  std::span<const ParameterCounters> counters() const noexcept { return counters_; }
  std::span<ParameterCounters> counters() noexcept { return counters_; }

  /// The average becomes the masters. Local.
  void start_ema();
  /// Move the averages of all parameters one step towards the masters. Local.
  void step_ema(double decay);

  /// Write an array of my shard, rounded, to my replica and to those in reach. Local.
  void round_to_replicas(std::size_t array, const comm::ShardPublisher& publisher) const;
  /// The same for one piece of the masters.
  void round_piece(std::size_t array, const Piece& piece,
                   const comm::ShardPublisher& publisher) const;

  /// Collective. XXH3-128 over the trainable parameters sorted by name bytewise: name, a zero byte,
  /// number of dimensions and extents as 64-bit little-endian, FP32 values in logical order.
  /// @param trainable one flag a parameter
  std::string masters_hash(std::span<const std::uint8_t> trainable) const;

 private:
  comm::Communicator& world_;
  const FlatLayout& layout_;
  Isa isa_;
  bool has_ema_;
  std::vector<std::string> names_;
  std::vector<comm::Interval> shards_;  // of each segment
  std::vector<std::size_t> first_;      // of each segment in the arrays below
  std::size_t elements_ = 0;
  std::vector<LargeArray<float>> values_;
  std::vector<Piece> pieces_;
  std::vector<ParameterCounters> counters_;
};

}  // namespace vsr::optim
