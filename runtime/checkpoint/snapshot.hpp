// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, as plain values: the training loop fills one, the store writes it, and a
// load on any number of ranks gives it back. Nothing here knows HDF5 or LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/shard.hpp"

namespace vsr::runtime {

/// One parameter of the network. Parameters lie one after the other, in registration order and
/// without padding, on the *logical global index*; it does not depend on the number of ranks.
struct ParameterRecord {
  std::string name;                     ///< unique; neither empty nor "." nor with '/' or NUL
  std::vector<std::int64_t> shape;      ///< empty for a scalar; a 0 in it means no elements
  std::string dtype;                    ///< of the replica: "fp16", "bf16" or "fp32"
  std::int64_t begin = 0;               ///< first element on the logical global index
  std::int64_t numel = 0;               ///< product of `shape`
  std::int64_t steps = 0;               ///< applied steps of this parameter
  std::map<std::string, double> extra;  ///< further finite numbers, kept bit for bit
                                        ///< ("beta1_power"); the same keys for all parameters
  friend bool operator==(const ParameterRecord&, const ParameterRecord&) = default;
};

/// One buffer of the network (batch-norm statistics), whole on every rank.
struct BufferRecord {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;             ///< "fp16", "bf16", "fp32", "fp64", "int32", "int64", "uint8"
  std::vector<std::byte> bytes;  ///< values in logical order, little-endian
  friend bool operator==(const BufferRecord&, const BufferRecord&) = default;
};

/// The part of the FP32 state that one rank owns.
struct ShardData {
  /// Pieces of the logical global index: ascending, disjoint; empty ones are allowed.
  std::vector<comm::Interval> intervals;
  /// "master", "exp_avg", "exp_avg_sq" (later "ema"): the same names on all ranks, each with the
  /// values of all intervals one after the other.
  std::map<std::string, std::vector<float>> arrays;
};

/// All ranks give the same, but for `shard`.
struct Snapshot {
  std::int64_t iteration = 0;
  std::vector<ParameterRecord> parameters;
  std::vector<BufferRecord> buffers;
  /// Counters of the optimizer, scaler, schedule, sampler position, seed, configuration, leaves,
  /// threads, best metric. Finite numbers only: JSON has no inf and no NaN.
  nlohmann::json state;
  ShardData shard;
};

/// Elements on the logical global index: the end of the last parameter.
std::int64_t total_elements(const std::vector<ParameterRecord>& parameters);

/// Elements in all `intervals`.
std::int64_t elements_of(const std::vector<comm::Interval>& intervals);

/// Product of `shape`, or -1 where an extent is negative or the product leaves int64.
std::int64_t elements_of_shape(const std::vector<std::int64_t>& shape);

/// Bytes of one element of `dtype` ("fp16" is 2).
/// @throws ArgumentError for a name that is not one of ours
std::int64_t element_bytes(const std::string& dtype);

/// Refuse a snapshot that breaks the rules above.
/// @throws ArgumentError naming the parameter, buffer, array or key of `state` and the rule
void validate(const Snapshot& snapshot);

}  // namespace vsr::runtime
