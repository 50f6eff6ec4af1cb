// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/test_clip.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "comm/error.hpp"
#include "runtime/video/random.hpp"

namespace vsr::runtime {
namespace {

constexpr int kWaves = 20;
constexpr int kDiscs = 5;
// Cycles per high-resolution pixel. The finest waves lie beyond the Nyquist limit of a picture
// shrunk by 4 (0.125), the coarsest are visible in it.
constexpr double kCoarsest = 0.01;
constexpr double kFinest = 0.2;

struct Wave {
  double fx, fy, phase, amplitude[kChannels];
};

struct Disc {
  double y, x, velocity_y, velocity_x, radius, colour[kChannels];
};

struct Scene {
  double velocity_y, velocity_x;  // pixels a frame
  Wave waves[kWaves];
  Disc discs[kDiscs];
};

// Hands out the numbers of one stream in order.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : stream_(seed, 0x636c6970) {}
  double between(double low, double high) { return low + (high - low) * stream_.uniform(next_++); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

Scene make_scene(const TestClipOptions& options) {
  Draws draws(options.seed);
  Scene scene{};
  scene.velocity_y = draws.between(0.6, 1.7);
  scene.velocity_x = draws.between(1.2, 2.9);
  for (int w = 0; w < kWaves; ++w) {
    const double share = static_cast<double>(w) / (kWaves - 1);
    const double frequency = kCoarsest * std::pow(kFinest / kCoarsest, share);
    const double angle = draws.between(0.0, std::numbers::pi);
    Wave& wave = scene.waves[w];
    wave.fx = 2.0 * std::numbers::pi * frequency * std::cos(angle);
    wave.fy = 2.0 * std::numbers::pi * frequency * std::sin(angle);
    wave.phase = draws.between(0.0, 2.0 * std::numbers::pi);
    for (double& amplitude : wave.amplitude) {
      amplitude = draws.between(0.7, 1.3) * 17.0 * std::pow(0.94, w);
    }
  }
  for (Disc& disc : scene.discs) {
    disc.y = draws.between(0.0, 1.0) * static_cast<double>(options.height);
    disc.x = draws.between(0.0, 1.0) * static_cast<double>(options.width);
    disc.velocity_y = draws.between(-1.5, 1.5);
    disc.velocity_x = draws.between(-2.5, 2.5);
    disc.radius = draws.between(0.06, 0.16) * static_cast<double>(options.height);
    for (double& colour : disc.colour) colour = draws.between(20.0, 235.0);
  }
  return scene;
}

// sin(a + b) of a row from tables over x: two multiplications a value instead of a sine.
void add_waves(const Scene& scene, double time, ImageF& frame) {
  const auto width = static_cast<std::size_t>(frame.width);
  std::vector<double> sine(width);
  std::vector<double> cosine(width);
  for (const Wave& wave : scene.waves) {
    for (std::size_t x = 0; x < width; ++x) {
      const double angle = wave.fx * (static_cast<double>(x) + scene.velocity_x * time);
      sine[x] = std::sin(angle);
      cosine[x] = std::cos(angle);
    }
    for (std::int64_t y = 0; y < frame.height; ++y) {
      const double angle =
          wave.fy * (static_cast<double>(y) + scene.velocity_y * time) + wave.phase;
      const double s = std::sin(angle);
      const double c = std::cos(angle);
      double* value = frame.row(y).data();
      for (std::size_t x = 0; x < width; ++x, value += kChannels) {
        const double height = sine[x] * c + cosine[x] * s;
        for (int k = 0; k < kChannels; ++k) value[k] += wave.amplitude[k] * height;
      }
    }
  }
}

// A soft edge about 1.5 pixels wide keeps the frame free of its own aliasing.
void add_disc(const Disc& disc, double time, ImageF& frame) {
  const double height = static_cast<double>(frame.height);
  const double width = static_cast<double>(frame.width);
  const auto wrap = [](double value, double period) {
    return value - period * std::floor(value / period);
  };
  const double centre_y = wrap(disc.y + disc.velocity_y * time, height);
  const double centre_x = wrap(disc.x + disc.velocity_x * time, width);
  for (std::int64_t y = 0; y < frame.height; ++y) {
    double* value = frame.row(y).data();
    for (std::int64_t x = 0; x < frame.width; ++x, value += kChannels) {
      const double distance =
          std::hypot(static_cast<double>(y) - centre_y, static_cast<double>(x) - centre_x);
      const double cover = std::clamp((disc.radius - distance) / 1.5 + 0.5, 0.0, 1.0);
      for (int k = 0; k < kChannels; ++k) value[k] += cover * (disc.colour[k] - value[k]);
    }
  }
}

ImageU8 render(const Scene& scene, const TestClipOptions& options, std::int64_t number) {
  ImageF frame(options.height, options.width);
  std::fill(frame.values.begin(), frame.values.end(), 127.0);
  add_waves(scene, static_cast<double>(number), frame);
  for (const Disc& disc : scene.discs) add_disc(disc, static_cast<double>(number), frame);
  return to_u8(frame);
}

void check(const TestClipOptions& options) {
  VSR_CHECK(
      options.frames > 0 && options.height > 0 && options.width > 0,
      std::to_string(options.frames) + " frames of " + size_text(options.height, options.width));
}

}  // namespace

ImageU8 make_test_frame(const TestClipOptions& options, std::int64_t frame) {
  check(options);
  VSR_CHECK(frame >= 0 && frame < options.frames,
            "frame " + std::to_string(frame) + " of " + std::to_string(options.frames));
  return render(make_scene(options), options, frame);
}

std::vector<ImageU8> make_test_clip(const TestClipOptions& options) {
  check(options);
  const Scene scene = make_scene(options);
  std::vector<ImageU8> frames;
  for (std::int64_t i = 0; i < options.frames; ++i) frames.push_back(render(scene, options, i));
  return frames;
}

}  // namespace vsr::runtime
