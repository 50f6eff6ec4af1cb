// SPDX-License-Identifier: Apache-2.0
// Agree: one all-gather of a small record per rank, folded by every rank in the same order, so that
// overflow, clip factor, losses and requests are equal everywhere by construction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/reduction.hpp"

namespace vsr::optim {

/// Bits that a rank says of each parameter.
struct ParameterFlags {
  static constexpr std::uint8_t kUsed = 1;       ///< a leaf of this rank gave it a gradient
  static constexpr std::uint8_t kTrainable = 2;  ///< must be equal on all ranks
};

/// What one rank brings.
struct StepRecord {
  NonFinite non_finite = {};
  std::uint64_t requests = 0;
  float loss_scale = 1.0F;                     ///< must be equal on all ranks
  double max_norm = 0.0;                       ///< 0: no clipping; must be equal on all ranks
  Norm norm = Norm::two;                       ///< must be equal on all ranks
  double power = 2.0;                          ///< p of Norm::power; must be equal on all ranks
  std::uint64_t replica = 0;                   ///< hash of the replica, or 0 on all ranks
  std::uint64_t options = 0;                   ///< hash of the optimizer's options
  std::uint64_t buffers = 0;                   ///< hash of the module's buffers before the step
  std::span<const double> losses = {};         ///< of this rank's leaves, ascending
  std::span<const double> buffer_values = {};  ///< of the same leaves, one after the other
  std::span<const std::uint8_t> used = {};     ///< ParameterFlags of each parameter
  std::span<const double> block_norms = {};    ///< of this rank's shard
};

/// What all ranks know afterwards.
struct Agreed {
  NonFinite non_finite;  ///< of all shards; first_* of the lowest logical index
  std::uint64_t requests = 0;
  std::vector<double> losses;                      ///< in leaf order
  std::vector<std::vector<double>> buffer_values;  ///< in leaf order
  std::vector<std::uint8_t> used;                  ///< by any leaf of any rank
  double norm = 0.0;                               ///< of the scaled sum over leaves
  bool is_overflow() const noexcept { return non_finite.inf_count + non_finite.nan_count > 0; }
};

/// Thrown by exchange() on all ranks; where they differ is for the owner of the replicas to say.
struct ReplicasDiffer {
  std::vector<std::uint64_t> hashes;  ///< of each rank
};

/// The exchange of one optimizer; sizes are fixed by its layout.
class Agreement {
 public:
  /// References outlive this object.
  /// @param buffer_values numbers that each leaf brings from the module's buffers
  Agreement(comm::Communicator& world, const FlatLayout& layout, int leaves,
            std::size_t buffer_values);

  /// Why options that differ on `rank` are refused.
  static std::string other_options(std::size_t rank);

  /// Collective.
  /// @throws ArgumentError on all ranks when a rank brings another number of leaves than it has, or
  ///         when ranks clip differently, hold different loss scales, options or buffers, or freeze
  ///         other parameters
  /// @throws ReplicasDiffer on all ranks when replicas do
  Agreed exchange(const StepRecord& record) const;

 private:
  int leaves_of(int rank) const noexcept;
  std::vector<std::byte> pack(const StepRecord& record) const;
  void fold_flags(std::span<const std::uint8_t> first, std::span<const std::uint8_t> flags,
                  std::size_t rank, std::span<std::uint8_t> used) const;

  comm::Communicator& world_;
  const FlatLayout& layout_;
  int leaves_;
  std::size_t buffer_values_;
  std::vector<std::size_t> sizes_bytes_;  // of each rank's record
};

}  // namespace vsr::optim
