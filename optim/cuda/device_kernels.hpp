// SPDX-License-Identifier: Apache-2.0
// The two sweeps of a step on a GPU: the same arithmetic in the same order as kernels.hpp and
// update_kernels.hpp, so the same bits. Every call puts work on a stream and returns; nothing here
// waits for the device, so that agree stays the only synchronisation of a step. Free of CUDA
// headers. One launch steps many parameters, because launching one kernel for each of hundreds of
// small parameters takes longer than their arithmetic.
//
// All spans are memory of the current device (or of a peer it can reach) and begin at a multiple of
// 16 bytes, as shards do. What they point to must live until the stream has passed the call; the
// spans themselves are copied. NaNs stay NaNs, with the payload of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/shard.hpp"
#include "optim/cuda/census_record.hpp"
#include "optim/flat_layout.hpp"
#include "optim/kernels.hpp"
#include "optim/update_kernels.hpp"
#include "optim/update_rules.hpp"

struct CUstream_st;

namespace vsr::optim {

/// A cudaStream_t; null is the default stream.
using CudaStream = CUstream_st*;

/// What a record that was copied to the host says.
Census census_of(const CensusRecord& record) noexcept;

/// Sweep 1 over one shard of one segment; fields mean what they mean in SumLeaves.
struct DeviceSum {
  Dtype dtype = Dtype::fp16;
  /// Up to 64 without an accumulator, up to 65536 with one.
  std::span<const std::span<const std::byte>> slices = {};
  std::span<double> accumulator = {};
  bool accumulate = false;
  Norm norm = Norm::two;
  double power = 2.0;  ///< p of Norm::power; its bits are those of the device's pow
  std::span<double> block_norms = {};
  std::span<CensusRecord, 1> census;  ///< in device memory, all zero bytes; counts are added to it
};

/// Add the leaves in FP64 in slice order, take norm blocks, count non-finite inputs: one pass.
/// Async: results are valid once `stream` has passed this call. Bits: those of optim::sum_leaves.
/// @throws ArgumentError when lengths do not match, memory is not aligned, or there are too many
///         slices (before any launch); CudaError when a launch fails
void enqueue_sum_leaves(const DeviceSum& sweep, CudaStream stream);

/// Clip factor / (scale × leaves): a number, or where it will lie in device memory.
struct Factor {
  double value = 1.0;
  const double* on_device = nullptr;  ///< given: read there when the kernel runs
};

/// The shard of one segment as the second sweep sees it; fields mean what they mean in UpdatePiece.
struct DeviceShard {
  Dtype dtype = Dtype::fp16;
  std::span<const std::span<const std::byte>> slices = {};  ///< up to 64, unless sums are given
  std::span<const double> sums = {};
  Factor factor;
  std::span<float> master = {};
  std::span<float> moment1 = {};
  std::span<float> moment2 = {};
  std::span<const std::span<std::byte>> destinations = {};  ///< up to 16
};

/// A piece of a shard and the constants of its parameter. Pieces of one call do not overlap.
struct AdamPiece {
  comm::Interval piece = {};
  WeightDecay decay = WeightDecay::none;
  AdamCoefficients coefficients;
};
struct SgdPiece {
  comm::Interval piece = {};
  SgdCoefficients coefficients;
};
struct LambPiece {
  comm::Interval piece = {};
  LambCoefficients coefficients;
};

/// Step Adam or AdamW on all pieces and round the masters into every destination.
/// Async. Bits: those of optim::update_adam.
/// @throws ArgumentError when lengths do not match, memory is not aligned, pieces overlap or there
///         are too many slices or destinations (before any launch); CudaError when a launch fails
void enqueue_adam(const DeviceShard& shard, std::span<const AdamPiece> pieces, CudaStream stream);

/// Step SGD; `moment1` may be empty when no piece has momentum. Like enqueue_adam.
void enqueue_sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces, CudaStream stream);

/// First pass of LAMB: step the moments and sum the squares of masters and directions.
/// Like enqueue_adam; bits: those of optim::step_lamb_moments.
/// @param blocks [out] device; one value for each norm block that a piece touches, piece after
///        piece
/// @throws ArgumentError also when a piece does not begin at a multiple of 8
void enqueue_lamb_moments(const DeviceShard& shard, std::span<const LambPiece> pieces,
                          std::span<LambBlock> blocks, CudaStream stream);

/// Second pass of LAMB: step the masters, round them into every destination. Gradients are not
/// read. Like enqueue_adam.
void enqueue_lamb_apply(const DeviceShard& shard, std::span<const LambPiece> pieces,
                        CudaStream stream);

/// The mean gradient of the pieces as every rule sees it, into the same places of `gradient`, which
/// has the shard's length. Like enqueue_adam; masters are not read.
void enqueue_mean_gradient(const DeviceShard& shard, std::span<const comm::Interval> pieces,
                           std::span<float> gradient, CudaStream stream);

/// Move the averages of masters one step: ema + (master - ema) × (1 - decay). Async.
/// @throws ArgumentError when lengths do not match or memory is not aligned
void enqueue_ema(std::span<const float> master, std::span<float> ema, double decay,
                 CudaStream stream);

/// Round FP32 values to nearest even. Async. NaN payloads too are those of optim::round_to.
/// @throws ArgumentError when lengths do not match or memory is not aligned
void enqueue_round_to(Dtype dtype, std::span<const float> values, std::span<std::byte> rounded,
                      CudaStream stream);

/// The FP32 values of `values`, exact. Async. NaN payloads too are those of optim::widen.
/// @throws ArgumentError when lengths do not match or memory is not aligned
void enqueue_widen(Dtype dtype, std::span<const std::byte> values, std::span<float> widened,
                   CudaStream stream);

}  // namespace vsr::optim
