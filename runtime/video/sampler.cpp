// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/sampler.hpp"

#include <string>

#include "comm/error.hpp"
#include "runtime/video/random.hpp"

namespace vsr::runtime {
namespace {

// Streams of one epoch key; a number is never reused, so adding a kind of randomness later leaves
// the others as they are.
constexpr std::uint64_t kCropStream = 1;
constexpr std::uint64_t kFlipStream = 2;

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  VSR_CHECK(options.window_count > 0 && options.batch > 0 && options.leaves > 0,
            "a sampler of " + std::to_string(options.window_count) + " windows, batch " +
                std::to_string(options.batch) + ", leaves " + std::to_string(options.leaves));
}

std::int64_t Sampler::position(std::int64_t step, std::int64_t leaf, std::int64_t sample) const {
  VSR_CHECK(
      step >= 0 && leaf >= 0 && leaf < options_.leaves && sample >= 0 && sample < options_.batch,
      "step " + std::to_string(step) + ", leaf " + std::to_string(leaf) + ", sample " +
          std::to_string(sample));
  return (step * options_.leaves + leaf) * options_.batch + sample;
}

SampleDraw Sampler::draw(std::int64_t position) const {
  VSR_CHECK(position >= 0, "position " + std::to_string(position) + ", expected at least 0");
  SampleDraw draw;
  draw.epoch = position / options_.window_count;
  const std::uint64_t key = derive_key(options_.seed, static_cast<std::uint64_t>(draw.epoch));
  draw.window = permute(key, options_.window_count, position % options_.window_count);
  const auto window = static_cast<std::uint64_t>(draw.window);
  const auto place = RandomStream(key, kCropStream).words(window);
  draw.crop_y = place[0];
  draw.crop_x = place[1];
  if (options_.augment == Augment::flips) {
    const auto coins = RandomStream(key, kFlipStream).words(window);
    draw.flip_horizontal = (coins[0] >> 31) != 0;
    draw.flip_vertical = (coins[1] >> 31) != 0;
    draw.transpose = (coins[2] >> 31) != 0;
  }
  return draw;
}

std::vector<SampleDraw> Sampler::leaf(std::int64_t step, std::int64_t leaf) const {
  std::vector<SampleDraw> draws;
  draws.reserve(static_cast<std::size_t>(options_.batch));
  for (std::int64_t b = 0; b < options_.batch; ++b) draws.push_back(draw(position(step, leaf, b)));
  return draws;
}

double Sampler::steps_per_epoch() const noexcept {
  return static_cast<double>(options_.window_count) /
         static_cast<double>(options_.batch * options_.leaves);
}

}  // namespace vsr::runtime
