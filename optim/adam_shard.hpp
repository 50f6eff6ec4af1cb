// SPDX-License-Identifier: Apache-2.0
// This rank's shard of the FP32 state: masters and Adam's moments, its step, and what is said about
// it to checkpoints and to the hash.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/leaf_exchange.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/large_array.hpp"
#include "optim/reduction.hpp"

namespace vsr::optim {

/// Adam's counters of one parameter.
struct ParameterCounters {
  std::int64_t steps = 0;    ///< applied steps in which the parameter was used
  double beta1_power = 1.0;  ///< beta1^steps as a running FP64 product
  double beta2_power = 1.0;
  friend bool operator==(const ParameterCounters&, const ParameterCounters&) = default;
};

/// One piece of this rank's shard, open for reading and for loading.
struct ShardPiece {
  comm::Interval logical;  ///< elements of the unpadded concatenation of all parameters
  std::span<float> master;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
};

/// Masters and moments of one rank.
class AdamShard {
 public:
  /// `world` and `layout` outlive this object. All values are zero.
  AdamShard(comm::Communicator& world, const FlatLayout& layout);

  /// The pieces in ascending logical order; the spans are valid as long as this object.
  std::vector<ShardPiece> pieces() const;
  /// Keep my part of the FP32 values of parameter `parameter`, given whole in logical order.
  void set_master(std::size_t parameter, std::span<const float> values);

  /// Step every used parameter of my shard and write the rounded masters to my replica and to those
  /// in reach. Counters of used parameters advance on all ranks alike. Local.
  /// @param factor clip factor / (scale × leaves)
  /// @param used one flag a parameter
  /// @param options Adam's options, one a parameter
  void step(const GradientReducer& gradients, double factor, std::span<const std::uint8_t> used,
            std::span<const AdamOptions> options, const comm::ShardPublisher& publisher);
  /// Write all rounded masters of my shard to my replica and to those in reach. Local.
  void round_masters(const comm::ShardPublisher& publisher) const;

  std::span<const ParameterCounters> counters() const noexcept { return counters_; }
  std::span<ParameterCounters> counters() noexcept { return counters_; }

  /// Collective. The masters of parameter `parameter` from all ranks, whole, in logical order.
  std::vector<float> gather_master(std::size_t parameter) const;
  /// Collective. XXH3-128 over the trainable parameters sorted by name bytewise: name, a zero byte,
  /// number of dimensions and extents as 64-bit little-endian, FP32 values in logical order.
  std::string masters_hash() const;

 private:
  std::span<float> part_of(const LargeArray<float>& array, std::size_t segment) const;

  comm::Communicator& world_;
  const FlatLayout& layout_;
  Isa isa_;
  std::vector<comm::Interval> shards_;  // of each segment
  std::vector<std::size_t> first_;      // of each segment in the arrays below
  LargeArray<float> master_;
  LargeArray<float> exp_avg_;
  LargeArray<float> exp_avg_sq_;
  std::vector<Piece> pieces_;
  std::vector<ParameterCounters> counters_;
};

}  // namespace vsr::optim
