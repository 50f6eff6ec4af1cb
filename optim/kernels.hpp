// SPDX-License-Identifier: Apache-2.0
// The first of the two sweeps over memory that a step costs on the CPU, and the conversions around
// them. Each exists for three instruction sets with equal bits; the best one of the machine is
// used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/shard.hpp"
#include "optim/arithmetic.hpp"
#include "optim/flat_layout.hpp"

namespace vsr::optim {

enum class Isa : std::uint8_t { scalar, avx2, avx512 };

/// "scalar", "avx2" or "avx512".
std::string_view isa_name(Isa isa) noexcept;
/// Whether this machine (and this build) can run it.
bool is_supported(Isa isa) noexcept;
/// The best supported one, or the one that VSR_FORCE_ISA=scalar|avx2|avx512 names.
/// @throws ConfigurationError for another value of VSR_FORCE_ISA, or one the machine cannot run
Isa active_isa();

/// Which norm the blocks are summed for; `power` is the p-norm for any other p.
enum class Norm : std::uint8_t { one, two, infinity, power };

/// Non-finite values found in gradients.
struct Census {
  std::int64_t inf_count = 0;
  std::int64_t nan_count = 0;
  std::int64_t first_element = -1;  ///< lowest element of the shard with a non-finite value, or -1
  int first_slice = -1;             ///< lowest slice that holds one there
};

/// Sweep 1 over one shard of one segment.
struct SumLeaves {
  Dtype dtype = Dtype::fp16;
  /// One leaf gradient each, in leaf order, all of the shard's length (whole norm blocks).
  std::span<const std::span<const std::byte>> slices = {};
  /// FP64, shard's length, or empty. Given: it receives the sums.
  std::span<double> accumulator = {};
  /// Add to what the accumulator holds; false: start from +0.0.
  bool accumulate = false;
  Norm norm = Norm::two;
  double power = 2.0;  ///< p of Norm::power, above 0; its bits depend on the C library's pow
  /// FP64, one value a block: the sum of squares (of magnitudes, of their p-th powers; the largest
  /// magnitude).
  std::span<double> block_norms = {};
};

/// Add the leaves in FP64 in slice order, starting at +0.0, take norm blocks of the sums, and count
/// non-finite values of the inputs. Squares go to eight lanes (element mod 8) that are folded in a
/// fixed tree.
/// @throws ArgumentError when lengths do not match
Census sum_leaves(const SumLeaves& sweep, Isa isa);

/// Add the slices in their own type in slice order, rounding at each addition, into `sum`.
/// @throws ArgumentError when lengths do not match
void add_rounded(Dtype dtype, std::span<const std::span<const std::byte>> slices,
                 std::span<std::byte> sum, Isa isa);

/// Round FP32 values to nearest even.
/// @throws ArgumentError when lengths do not match
void round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded, Isa isa);
/// The FP32 values of `values`, exact.
/// @throws ArgumentError when lengths do not match
void widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened, Isa isa);

/// Norm of all blocks, folded in the order given: sqrt of the sum, the sum, its p-th root, or the
/// maximum.
double fold_blocks(Norm norm, double power, std::span<const double> block_norms) noexcept;

}  // namespace vsr::optim
