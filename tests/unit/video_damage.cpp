// SPDX-License-Identifier: Apache-2.0
// Every kind of bad file ends in one message that names it, in whatever order it is read.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/error.hpp"
#include "mp4_surgery.hpp"
#include "runtime/video/random.hpp"
#include "runtime/video/video_reader.hpp"
#include "video_support.hpp"

namespace vsr::runtime {
namespace {

using test::contains;
using test::message_of;
using test::TemporaryFolder;

TEST(BadFile, MissingAndEmptyAndText) {
  const TemporaryFolder folder;
  const auto missing = folder / "missing.mp4";
  std::string message = message_of<DataError>([&] { open_clip(missing); });
  EXPECT_TRUE(contains(message, missing.string()) && contains(message, "no such file")) << message;

  test::write_bytes(folder / "empty.mp4", "");
  message = message_of<DataError>([&] { open_clip(folder / "empty.mp4"); });
  EXPECT_TRUE(contains(message, "empty.mp4") && contains(message, "file is empty")) << message;

  test::write_bytes(folder / "text.mp4", "This is a letter, not a film.\nRegards.\n");
  testing::internal::CaptureStderr();
  message = message_of<DataError>([&] { open_clip(folder / "text.mp4"); });
  EXPECT_TRUE(contains(message, "text.mp4") && contains(message, "not a video")) << message;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");

  EXPECT_THROW(VideoReader reader(folder.path()), DataError);
}

TEST(BadFile, SoundHasNoVideoStream) {
  const TemporaryFolder folder;
  std::string wave(
      "RIFF\x24\x10\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0"
      "data\0\x10\0\0",
      44);
  wave.append(4096, '\x80');
  test::write_bytes(folder / "sound.mp4", wave);
  const auto message = message_of<DataError>([&] { open_clip(folder / "sound.mp4"); });
  EXPECT_TRUE(contains(message, "sound.mp4") && contains(message, "no video stream")) << message;
}

TEST(BadFile, CutOffBeforeOrAfterItsIndex) {
  const TemporaryFolder folder;
  test::write_clip(folder / "good.mp4", test::moving_frames(30, 48, 64), {.gop = 6});
  const std::string bytes = test::read_bytes(folder / "good.mp4");
  test::write_bytes(folder / "lost.mp4", bytes.substr(0, bytes.size() / 2));
  std::string message = message_of<DataError>([&] { open_clip(folder / "lost.mp4"); });
  EXPECT_TRUE(contains(message, "lost.mp4") && contains(message, "moov")) << message;

  const std::string streamed = test::with_index_in_front(bytes);
  for (const double share : {0.5, 0.75, 0.95}) {
    const auto keep = static_cast<std::size_t>(share * static_cast<double>(streamed.size()));
    test::write_bytes(folder / "cut.mp4", streamed.substr(0, keep));
    message = message_of<DataError>([&] { open_clip(folder / "cut.mp4"); });
    EXPECT_TRUE(contains(message, "cut.mp4") && contains(message, "cut off")) << message;
  }
}

TEST(BadFile, CutOffMatroska) {
  const TemporaryFolder folder;
  test::write_clip(folder / "good.mkv", test::moving_frames(30, 48, 64), {.gop = 6});
  const std::string bytes = test::read_bytes(folder / "good.mkv");
  test::write_bytes(folder / "cut.mkv", bytes.substr(0, bytes.size() * 6 / 10));
  const auto message = message_of<DataError>([&] { open_clip(folder / "cut.mkv"); });
  EXPECT_TRUE(contains(message, "cut.mkv") && contains(message, "cut off")) << message;
}

// Noise over pictures: whichever way the damaged frame is reached, the same frame is named.
TEST(BadFile, DamagedPicturesAreNamedInAnyOrder) {
  const TemporaryFolder folder;
  test::write_clip(folder / "good.mp4", test::moving_frames(36, 96, 128),
                   {.gop = 12, .b_frames = 0});
  std::string bytes = test::read_bytes(folder / "good.mp4");
  const std::size_t begin = test::content_of(bytes, "mdat");
  const std::size_t end = test::content_of(bytes, "moov") - 8;
  const RandomStream noise(1, 1);
  for (std::size_t at = begin + (end - begin) / 2; at < begin + (end - begin) / 2 + 2500; ++at) {
    bytes[at] = static_cast<char>(noise.words(at)[0]);
  }
  test::write_bytes(folder / "bad.mp4", bytes);
  VideoReader forwards(folder / "bad.mp4");
  VideoReader backwards(folder / "bad.mp4");
  std::vector<std::string> messages(36);
  ImageU8 frame;
  for (std::int64_t i = 0; i < 36; ++i) {
    try {
      forwards.read(i, frame);
    } catch (const DataError& error) {
      messages[static_cast<std::size_t>(i)] = error.what();
    }
  }
  const auto first = std::find_if(messages.begin(), messages.end(),
                                  [](const std::string& text) { return !text.empty(); });
  ASSERT_NE(first, messages.end());
  EXPECT_TRUE(contains(*first, "bad.mp4") && contains(*first, "frame ")) << *first;
  EXPECT_TRUE(messages.front().empty());
  for (std::int64_t i = 35; i >= 0; --i) {
    std::string message;
    try {
      backwards.read(i, frame);
    } catch (const DataError& error) {
      message = error.what();
    }
    EXPECT_EQ(message.empty(), messages[static_cast<std::size_t>(i)].empty()) << i;
  }
}

}  // namespace
}  // namespace vsr::runtime
