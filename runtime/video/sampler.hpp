// SPDX-License-Identifier: Apache-2.0
// Which training window stands at which place of which step. Pure arithmetic on counters: resuming
// costs nothing, and neither ranks nor threads can change what is drawn.
#pragma once

#include <cstdint>
#include <vector>

namespace vsr::runtime {

enum class Augment {
  off,
  flips
};  ///< flips: horizontal, vertical, transpose, each with chance 1/2

/// What is random about one sample. The crop words are uniform 32-bit numbers, which the dataset
/// maps to the positions that the frame allows.
struct SampleDraw {
  std::int64_t epoch = 0;
  std::int64_t window = 0;  ///< [0, window_count)
  std::uint32_t crop_y = 0;
  std::uint32_t crop_x = 0;
  bool flip_horizontal = false;
  bool flip_vertical = false;
  bool transpose = false;
  bool operator==(const SampleDraw&) const = default;
};

struct SamplerOptions {
  std::uint64_t seed = 0;
  std::int64_t window_count = 0;  ///< N, windows of an epoch
  std::int64_t batch = 1;         ///< B, samples of a leaf
  std::int64_t leaves = 1;        ///< V, leaves of a step
  Augment augment = Augment::flips;
};

/// Global sample position s belongs to epoch s / N and is window permute((seed, epoch), N, s mod
/// N); crop and flips are keyed by (seed, epoch, window). Samples that do not fill a step are
/// carried into the next epoch, so every leaf is full and every window is seen once an epoch.
class Sampler {
 public:
  /// @throws ArgumentError unless window_count, batch and leaves are positive
  explicit Sampler(const SamplerOptions& options);

  /// Global position of sample `sample` of leaf `leaf` of step `step` (0-based):
  /// (step * V + leaf) * B + sample.
  std::int64_t position(std::int64_t step, std::int64_t leaf, std::int64_t sample) const;
  /// @throws ArgumentError for a negative position
  SampleDraw draw(std::int64_t position) const;
  /// The B draws of one leaf, in order.
  std::vector<SampleDraw> leaf(std::int64_t step, std::int64_t leaf) const;
  /// Windows / samples per step: not an integer in general.
  double steps_per_epoch() const noexcept;
  const SamplerOptions& options() const noexcept { return options_; }

 private:
  SamplerOptions options_;
};

}  // namespace vsr::runtime
