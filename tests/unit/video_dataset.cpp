// SPDX-License-Identifier: Apache-2.0
// What is trained on and what is validated never meet: shown by listing every frame of every
// window. And samples are what they claim to be: aligned crops of whole degraded frames.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "comm/error.hpp"
#include "runtime/video/crop_window.hpp"
#include "runtime/video/dataset.hpp"
#include "runtime/video/frame_cache.hpp"
#include "runtime/video/random.hpp"
#include "runtime/video/resample.hpp"
#include "video_support.hpp"
#include "video_vectors.hpp"

namespace vsr::runtime {
namespace {

using test::contains;
using test::message_of;
using test::TemporaryFolder;
using Paths = std::vector<std::filesystem::path>;

TEST(Split, HoldsOutTheEndAfterAGap) {
  const ClipSplit split = split_clip(132, 0.2, 3);
  EXPECT_EQ(split.held_out.first, 106);
  EXPECT_EQ(split.held_out.count, 26);
  EXPECT_EQ(split.train.first, 0);
  EXPECT_EQ(split.train.count, 103);
}

TEST(Split, NeverOverlapsForAnyLengthFractionAndGap) {
  for (std::int64_t frames = 1; frames <= 120; ++frames) {
    for (const double fraction : {0.01, 0.1, 0.2, 0.5, 0.9}) {
      for (const std::int64_t gap : {1, 3, 7}) {
        const ClipSplit split = split_clip(frames, fraction, gap);
        ASSERT_GE(split.held_out.count, 1);
        ASSERT_EQ(split.held_out.first + split.held_out.count, frames);
        ASSERT_GE(split.train.count, 0);
        if (split.train.count > 0) {
          ASSERT_EQ(split.train.count + gap, split.held_out.first);
        }
      }
    }
  }
  EXPECT_EQ(split_clip(50, 0.0, 3).train.count, 50);
  EXPECT_EQ(split_clip(50, 0.0, 3).held_out.count, 0);
}

TEST(Split, ReflectionNeedsNoMinimumLength) {
  const FrameRange range{10, 4};
  const std::vector<std::int64_t> expected = {12, 13, 12, 11, 10, 11, 12, 13, 12, 11, 10};
  for (std::int64_t i = 0; i < 11; ++i) {
    EXPECT_EQ(reflect_into(range, 6 + i), expected[static_cast<std::size_t>(i)]) << 6 + i;
  }
  EXPECT_EQ(reflect_into({5, 1}, 9), 5);
  EXPECT_EQ(reflect_into({5, 2}, 8), 6);
}

TEST(Dataset, NoHeldOutFrameInAnyTrainingWindowNorTheOtherWayRound) {
  const TemporaryFolder folder;
  test::write_clip(folder / "set/a", test::moving_frames(31, 16, 20, 1));
  test::write_clip(folder / "set/b", test::moving_frames(60, 20, 16, 2));
  const Paths paths = {folder / "set"};
  for (const std::int64_t num_frame : {1, 3, 5, 7}) {
    const DatasetOptions options{.num_frame = num_frame, .gt_size = 16, .scale = 4};
    const WindowDataset data(paths, options);
    EXPECT_EQ(data.train_clip_count(), 2);
    std::set<std::pair<std::int64_t, std::int64_t>> trained;
    for (std::int64_t window = 0; window < data.window_count(); ++window) {
      const auto place = data.train_place(window);
      ASSERT_EQ(static_cast<std::int64_t>(place.frames.size()), num_frame);
      for (std::size_t i = 0; i < place.frames.size(); ++i) {
        ASSERT_EQ(place.frames[i], place.frames[0] + static_cast<std::int64_t>(i));
        trained.emplace(place.clip, place.frames[i]);
      }
    }
    std::set<std::pair<std::int64_t, std::int64_t>> validated;
    for (std::int64_t i = 0; i < data.held_out_count(); ++i) {
      const auto place = data.held_out_place(i);
      for (const std::int64_t frame : place.frames) validated.emplace(place.clip, frame);
    }
    // a: 6 of 31 are held out, b: 12 of 60; nobody sees the gap.
    EXPECT_EQ(data.held_out_count(), 18);
    EXPECT_EQ(validated.size(), 18U);
    EXPECT_EQ(data.window_count(),
              (31 - 6 - num_frame) + (60 - 12 - num_frame) - 2 * (num_frame - 1));
    for (const auto& frame : validated) {
      EXPECT_FALSE(trained.contains(frame)) << frame.first << " " << frame.second;
      const std::int64_t last_trained = frame.first == 0 ? 24 - num_frame : 47 - num_frame;
      EXPECT_GE(frame.second - last_trained, num_frame + 1);
      EXPECT_TRUE(trained.contains({frame.first, last_trained}));
    }
  }
}

struct Fixture {
  Fixture() { test::write_clip(folder / "clip", frames); }
  TemporaryFolder folder;
  std::vector<ImageU8> frames = test::moving_frames(24, 38, 53);
  DatasetOptions options{.num_frame = 3, .gt_size = 16, .scale = 4};
};

float plane_value(std::span<const float> planes, std::int64_t size, std::int64_t c, std::int64_t y,
                  std::int64_t x) {
  return planes[static_cast<std::size_t>((c * size + y) * size + x)];
}

float unit(const ImageU8& image, std::int64_t y, std::int64_t x, std::int64_t c) {
  return static_cast<float>(image.row(y)[static_cast<std::size_t>(x * 3 + c)]) / 255.0F;
}

TEST(Dataset, SamplesAreAlignedCropsOfWholeDegradedFrames) {
  const Fixture fixture;
  for (const int scale : {2, 3, 4}) {
    DatasetOptions options = fixture.options;
    options.scale = scale;
    options.gt_size = 4 * scale;
    WindowDataset data(Paths{fixture.folder / "clip"}, options);
    SampleDraw draw{.window = 5, .crop_y = 0xffffffff, .crop_x = 0x40000000};
    const Sample sample = data.fetch(draw);
    ASSERT_EQ(sample.lr_size, 4);
    ASSERT_EQ(sample.gt.size(), static_cast<std::size_t>(3 * 16 * scale * scale));
    ASSERT_EQ(sample.lr.size(), 3U * 3U * 16U);
    const std::int64_t top = 38 / scale - 4;
    const std::int64_t left = (53 / scale - 4 + 1) / 4;
    const ImageU8 gt = modcrop(fixture.frames[6], scale);
    for (std::int64_t c = 0; c < 3; ++c) {
      for (std::int64_t y = 0; y < 4 * scale; ++y) {
        for (std::int64_t x = 0; x < 4 * scale; ++x) {
          ASSERT_EQ(plane_value(sample.gt, 4 * scale, c, y, x),
                    unit(gt, top * scale + y, left * scale + x, c));
        }
      }
      for (std::int64_t f = 0; f < 3; ++f) {
        const ImageU8 low =
            downscale(modcrop(fixture.frames[static_cast<std::size_t>(5 + f)], scale), scale);
        const auto planes = std::span(sample.lr).subspan(static_cast<std::size_t>(f * 48), 48);
        for (std::int64_t y = 0; y < 4; ++y) {
          for (std::int64_t x = 0; x < 4; ++x) {
            ASSERT_EQ(plane_value(planes, 4, c, y, x), unit(low, top + y, left + x, c));
          }
        }
      }
    }
  }
}

TEST(Dataset, FlipsTurnLowAndHighTogether) {
  const Fixture fixture;
  WindowDataset data(Paths{fixture.folder / "clip"}, fixture.options);
  const SampleDraw plain_draw{.window = 2, .crop_y = 7, .crop_x = 0x90000000};
  const Sample plain = data.fetch(plain_draw);
  for (int flips = 0; flips < 8; ++flips) {
    SampleDraw draw = plain_draw;
    draw.flip_horizontal = (flips & 1) != 0;
    draw.flip_vertical = (flips & 2) != 0;
    draw.transpose = (flips & 4) != 0;
    const Sample turned = data.fetch(draw);
    const auto check = [&](std::span<const float> before, std::span<const float> after,
                           std::int64_t size) {
      for (std::int64_t y = 0; y < size; ++y) {
        for (std::int64_t x = 0; x < size; ++x) {
          std::int64_t to_y = draw.flip_vertical ? size - 1 - y : y;
          std::int64_t to_x = draw.flip_horizontal ? size - 1 - x : x;
          if (draw.transpose) std::swap(to_y, to_x);
          ASSERT_EQ(plane_value(before, size, 1, y, x), plane_value(after, size, 1, to_y, to_x));
        }
      }
    };
    check(plain.gt, turned.gt, 16);
    check(std::span(plain.lr).last(48), std::span(turned.lr).last(48), 4);
  }
}

TEST(Dataset, HeldOutFramesAreWholeAndNamed) {
  const Fixture fixture;
  WindowDataset data(Paths{fixture.folder / "clip"}, fixture.options);
  ASSERT_EQ(data.held_out_count(), 5);  // round(24 * 0.2)
  const HeldOutFrame first = data.held_out(0);
  EXPECT_EQ(first.clip, "clip");
  EXPECT_EQ(first.frame, 19);
  EXPECT_EQ(first.gt, modcrop(fixture.frames[19], 4));
  EXPECT_EQ(first.lr_frame, downscale(first.gt, 4));
  EXPECT_EQ(first.lr_height, 9);
  EXPECT_EQ(first.lr_width, 13);
  ASSERT_EQ(first.lr.size(), 3U * 3U * 9U * 13U);
  // Before the first held-out frame stands its reflection, never a frame of the gap.
  std::vector<float> planes(3 * 9 * 13);
  const std::array<std::size_t, 3> frames = {20, 19, 20};
  for (std::size_t i = 0; i < 3; ++i) {
    to_planes(downscale(modcrop(fixture.frames[frames[i]], 4), 4), planes);
    EXPECT_TRUE(std::equal(planes.begin(), planes.end(),
                           first.lr.begin() + static_cast<std::ptrdiff_t>(i * planes.size())));
  }
  EXPECT_EQ(data.held_out(4).frame, 23);
  EXPECT_THROW(data.held_out(5), ArgumentError);
  EXPECT_THROW(data.fetch({.window = data.window_count()}), ArgumentError);
}

TEST(Dataset, ValidationClipsLeaveAllFramesToTraining) {
  const Fixture fixture;
  test::write_clip(fixture.folder / "city.mp4", test::moving_frames(4, 24, 36, 9));
  const Paths train = {fixture.folder / "clip"};
  const std::vector<ValidationClip> validation = {{"town", fixture.folder / "city.mp4"}};
  WindowDataset data(train, validation, fixture.options);
  EXPECT_EQ(data.window_count(), 22);
  EXPECT_EQ(data.held_out_count(), 4);
  EXPECT_EQ(data.train_clip_count(), 1);
  EXPECT_EQ(data.held_out(3).clip, "town");
  EXPECT_EQ(data.held_out(3).frame, 3);
  EXPECT_EQ(data.held_out_place(3).frames, (std::vector<std::int64_t>{2, 3, 2}));
  EXPECT_TRUE(contains(data.describe(), "town: ") && contains(data.describe(), "0..23"));
  const std::vector<ValidationClip> same = {{"again", fixture.folder / "clip/"}};
  const auto message = message_of<DataError>([&] { WindowDataset(train, same, fixture.options); });
  EXPECT_TRUE(contains(message, "trained on as well as validated")) << message;
}

TEST(Dataset, TheCacheChangesNothingButTime) {
  const Fixture fixture;
  DatasetOptions options = fixture.options;
  WindowDataset roomy(Paths{fixture.folder / "clip"}, options);
  const std::int64_t frame_bytes = 36 * 52 * 3 + 9 * 13 * 3;
  options.cache_bytes = 3 * frame_bytes;
  WindowDataset tight(Paths{fixture.folder / "clip"}, options);
  options.cache_bytes = 0;
  WindowDataset none(Paths{fixture.folder / "clip"}, options);
  for (std::int64_t i = 0; i < 40; ++i) {
    const SampleDraw draw{.window = i % roomy.window_count(),
                          .crop_y = static_cast<std::uint32_t>(i) * 0x01234567U};
    const Sample expected = roomy.fetch(draw);
    for (WindowDataset* other : {&tight, &none}) {
      const Sample got = other->fetch(draw);
      EXPECT_EQ(got.gt, expected.gt);
      EXPECT_EQ(got.lr, expected.lr);
    }
    EXPECT_LE(tight.cached_bytes(), options.cache_bytes + 3 * frame_bytes);
  }
  EXPECT_GT(tight.cached_bytes(), 0);
  EXPECT_EQ(none.cached_bytes(), 0);
  EXPECT_LE(roomy.cached_bytes(), 24 * frame_bytes);
}

TEST(Dataset, ThreadsMayFetchTogether) {
  const Fixture fixture;
  DatasetOptions options = fixture.options;
  options.cache_bytes = 20'000;
  WindowDataset data(Paths{fixture.folder / "clip"}, options);
  std::vector<Sample> expected;
  for (std::int64_t w = 0; w < data.window_count(); ++w)
    expected.push_back(data.fetch({.window = w}));
  std::vector<std::thread> threads;
  std::array<int, 3> wrong{};
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t w = 0; w < data.window_count(); ++w) {
        const auto window = (w * 5 + static_cast<std::int64_t>(t)) % data.window_count();
        const Sample sample = data.fetch({.window = window});
        if (sample.lr != expected[static_cast<std::size_t>(window)].lr) ++wrong[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 3>{}));
}

TEST(Dataset, SaysWhatIsWrongWithTheDataAndWhatToChange) {
  const Fixture fixture;
  const Paths clip = {fixture.folder / "clip"};
  DatasetOptions options = fixture.options;
  options.gt_size = 64;
  std::string message = message_of<DataError>([&] { WindowDataset(clip, options); });
  EXPECT_TRUE(contains(message, clip[0].string()) && contains(message, "38x53") &&
              contains(message, "64x64") && contains(message, "--gt-size for it is 36"))
      << message;

  options = fixture.options;
  options.num_frame = 25;
  message = message_of<DataError>([&] { WindowDataset(clip, options); });
  EXPECT_TRUE(contains(message, "24 frames") && contains(message, "window of 25") &&
              contains(message, "--num-frame"))
      << message;

  options.num_frame = 11;  // 24 - 5 - 11 leaves 8
  message = message_of<DataError>([&] { WindowDataset(clip, options); });
  EXPECT_TRUE(contains(message, "leaving 8 to train on") && contains(message, "a window needs 11"))
      << message;

  EXPECT_THROW(WindowDataset(Paths{}, fixture.options), DataError);
  std::filesystem::create_directory(fixture.folder / "void");
  message = message_of<DataError>(
      [&] { WindowDataset(Paths{fixture.folder / "void"}, fixture.options); });
  EXPECT_TRUE(contains(message, "void")) << message;
  EXPECT_THROW(WindowDataset(clip, std::span<const ValidationClip>(), fixture.options), DataError);
}

TEST(Dataset, RefusesOptionsOutsideTheirRange) {
  const Fixture fixture;
  const Paths clip = {fixture.folder / "clip"};
  const auto refused = [&](auto change) {
    DatasetOptions options = fixture.options;
    change(options);
    return message_of<ArgumentError>([&] { WindowDataset(clip, options); });
  };
  EXPECT_TRUE(contains(refused([](auto& o) { o.num_frame = 4; }), "odd"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.scale = 5; }), "scale 5"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.gt_size = 18; }), "multiple"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.held_out_fraction = 1.0; }), "[0, 1)"));
}

TEST(FrameCache, DropsTheLeastRecentlyUsed) {
  FrameCache cache(3 * 300);
  const auto image = [] { return std::make_shared<const ImageU8>(10, 10); };
  cache.insert(0, 0, FrameKind::high, image());
  cache.insert(0, 1, FrameKind::high, image());
  cache.insert(1, 0, FrameKind::high, image());
  EXPECT_EQ(cache.bytes(), 900);
  EXPECT_NE(cache.find(0, 0, FrameKind::high), nullptr);  // now the most recent
  EXPECT_EQ(cache.find(0, 0, FrameKind::low), nullptr);
  cache.insert(1, 1, FrameKind::low, image());
  EXPECT_EQ(cache.find(0, 1, FrameKind::high), nullptr);
  EXPECT_NE(cache.find(0, 0, FrameKind::high), nullptr);
  cache.insert(2, 0, FrameKind::high, std::make_shared<const ImageU8>(100, 100));
  EXPECT_EQ(cache.find(2, 0, FrameKind::high), nullptr);
  EXPECT_EQ(cache.bytes(), 900);
}

TEST(CropWindow, ReachesBothEndsAndNoFurther) {
  const DatasetOptions options{.num_frame = 1, .gt_size = 8, .scale = 4};
  const auto low_end = place_crop({}, options, 20, 28);
  EXPECT_EQ(low_end.top, 0);
  EXPECT_EQ(low_end.left, 0);
  const auto high_end = place_crop({.crop_y = 0xffffffff, .crop_x = 0xffffffff}, options, 20, 28);
  EXPECT_EQ(high_end.top, 3);
  EXPECT_EQ(high_end.left, 5);
  EXPECT_EQ(high_end.scaled(4).top, 12);
  std::vector<float> planes(12);
  EXPECT_THROW(cut_planes(ImageU8(4, 4), {.top = 3, .left = 0, .size = 2}, planes), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
