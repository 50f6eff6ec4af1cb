// SPDX-License-Identifier: Apache-2.0
// Where every parameter lies in the flat buffers, and which part of it each rank owns. Pure index
// arithmetic: buffers, kernels, checkpoints and tests all ask here, so that there is one answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shard.hpp"

namespace vsr::optim {

/// Element types a segment can have.
enum class Dtype : std::uint8_t { fp16, bf16, fp32 };

/// 2 for fp16 and bf16, 4 for fp32.
std::size_t element_bytes(Dtype dtype) noexcept;
/// "fp16", "bf16" or "fp32".
std::string_view dtype_name(Dtype dtype) noexcept;

/// Elements that the start of every parameter is a multiple of.
inline constexpr std::int64_t kParameterAlignment = 64;

/// What the layout must know of a parameter.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major (logical) order; may hold a zero
  Dtype dtype = Dtype::fp16;
  bool trainable = true;  ///< false: keeps its value, is part of checkpoints, not of the hash
};

/// Where a parameter lies.
struct ParameterPlace {
  std::size_t segment = 0;         ///< index into FlatLayout::segments()
  std::int64_t offset = 0;         ///< first element in the segment
  std::int64_t numel = 0;          ///< elements, without padding
  std::int64_t logical_begin = 0;  ///< first element in the unpadded concatenation of all
};

/// A run of elements of one type in the flat buffer.
struct Segment {
  Dtype dtype = Dtype::fp16;
  std::int64_t elements = 0;     ///< with padding; a multiple of comm::kBlockElements
  std::size_t offset_bytes = 0;  ///< from the start of the flat buffer; a multiple of 64
  std::int64_t first_block = 0;  ///< number of norm blocks in the segments before
};

/// The part of one parameter that lies in the shard of one rank; never empty.
struct Piece {
  std::size_t parameter = 0;
  comm::Interval in_parameter;  ///< elements of the parameter
  comm::Interval in_segment;    ///< elements of its segment
  comm::Interval logical;       ///< elements of the unpadded concatenation (what checkpoints store)
};

/// The layout of all parameters of a run. Segments stand in the order of first use by a parameter;
/// inside a segment parameters stand in registration order.
class FlatLayout {
 public:
  /// @throws ArgumentError for a negative extent or a name that occurs twice
  explicit FlatLayout(std::vector<ParameterSpec> parameters);

  std::span<const ParameterSpec> parameters() const noexcept { return specs_; }
  std::span<const ParameterPlace> places() const noexcept { return places_; }
  std::span<const Segment> segments() const noexcept { return segments_; }
  /// Size of a flat buffer.
  std::size_t total_bytes() const noexcept { return total_bytes_; }
  /// Elements of all parameters, without padding: the range of the logical index.
  std::int64_t logical_elements() const noexcept { return logical_elements_; }
  /// Norm blocks of all segments.
  std::int64_t total_blocks() const noexcept { return total_blocks_; }
  /// Elements that `rank` of `world` owns in all segments together, padding included.
  std::int64_t shard_elements(int rank, int world) const;
  /// Norm blocks that `rank` of `world` owns in all segments together.
  std::int64_t shard_blocks(int rank, int world) const;
  /// What `rank` of `world` owns, in ascending logical order; empty where it owns nothing.
  std::vector<Piece> pieces(int rank, int world) const;
  /// The parameter that holds element `element` of `segment`, or -1 for padding.
  std::int64_t parameter_at(std::size_t segment, std::int64_t element) const noexcept;

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<ParameterPlace> places_;
  std::vector<Segment> segments_;
  std::size_t total_bytes_ = 0;
  std::int64_t logical_elements_ = 0;
  std::int64_t total_blocks_ = 0;
};

}  // namespace vsr::optim
