// SPDX-License-Identifier: Apache-2.0
// Clips in files: frames reached by seeking are those of sequential decoding, colours come back,
// and nothing half-written appears.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "comm/error.hpp"
#include "mp4_surgery.hpp"
#include "runtime/metrics/psnr.hpp"
#include "runtime/video/frame_folder.hpp"
#include "runtime/video/image_file.hpp"
#include "runtime/video/random.hpp"
#include "runtime/video/video_reader.hpp"
#include "video_support.hpp"
#include "video_vectors.hpp"

namespace vsr::runtime {
namespace {

using test::contains;
using test::message_of;
using test::TemporaryFolder;

std::vector<ImageU8> read_all(Clip& clip) {
  std::vector<ImageU8> frames(static_cast<std::size_t>(clip.frame_count()));
  for (std::size_t i = 0; i < frames.size(); ++i)
    clip.read(static_cast<std::int64_t>(i), frames[i]);
  return frames;
}

// Forwards by one clip, then anywhere, backwards and in strides by another.
void expect_same_in_any_order(const std::filesystem::path& path,
                              const std::vector<ImageU8>& expected) {
  const auto clip = open_clip(path);
  const auto n = clip->frame_count();
  ASSERT_EQ(n, static_cast<std::int64_t>(expected.size()));
  ImageU8 frame;
  const auto check = [&](std::int64_t i) {
    clip->read(i, frame);
    ASSERT_EQ(frame, expected[static_cast<std::size_t>(i)]) << path << " frame " << i;
  };
  for (std::int64_t i = 0; i < n; ++i) check(permute(11, n, i));
  for (std::int64_t i = n - 1; i >= 0; --i) check(i);
  for (std::int64_t i = 0; i < n; i += 7) check(i);
}

class ReaderOfGroups : public testing::TestWithParam<std::tuple<int, int, std::string>> {};

TEST_P(ReaderOfGroups, SeekingGivesTheFramesOfSequentialDecoding) {
  const auto [gop, b_frames, extension] = GetParam();
  const TemporaryFolder folder;
  const auto path = folder / ("clip" + extension);
  const auto source = test::moving_frames(40, 48, 64);
  test::write_clip(path, source, {.gop = gop, .b_frames = b_frames});
  VideoReader reader(path);
  EXPECT_TRUE(reader.is_seekable());
  EXPECT_EQ(reader.height(), 48);
  EXPECT_EQ(reader.width(), 64);
  const auto frames = read_all(reader);
  ASSERT_EQ(frames.size(), source.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    EXPECT_GT(psnr_y(frames[i], source[i]), 35.0) << i;
  }
  expect_same_in_any_order(path, frames);
}

INSTANTIATE_TEST_SUITE_P(Groups, ReaderOfGroups,
                         testing::Combine(testing::Values(1, 5, 12, 250), testing::Values(0, 3),
                                          testing::Values(".mp4", ".mkv")));

TEST(Reader, KeepsFractionalFrameRates) {
  const TemporaryFolder folder;
  for (const std::string extension : {".mp4", ".mkv"}) {
    test::write_clip(folder / ("a" + extension), test::moving_frames(30, 32, 32), {},
                     {30000, 1001});
    const FrameRate rate = VideoReader(folder / ("a" + extension)).frame_rate();
    EXPECT_NEAR(static_cast<double>(rate.num) / static_cast<double>(rate.den), 29.97003, 1e-4);
  }
}

TEST(Reader, OddSizesKeepTheirSize) {
  const TemporaryFolder folder;
  const auto source = test::moving_frames(5, 37, 45);
  test::write_clip(folder / "odd.mp4", source);
  VideoReader reader(folder / "odd.mp4");
  EXPECT_EQ(reader.height(), 37);
  EXPECT_EQ(reader.width(), 45);
  ImageU8 frame;
  reader.read(4, frame);
  EXPECT_GT(psnr_rgb(frame, source[4]), 35.0);
}

TEST(Reader, OneFrameIsAClip) {
  const TemporaryFolder folder;
  test::write_clip(folder / "one.mp4", test::moving_frames(1, 32, 32));
  VideoReader reader(folder / "one.mp4");
  EXPECT_EQ(reader.frame_count(), 1);
  ImageU8 frame;
  reader.read(0, frame);
  EXPECT_THROW(reader.read(1, frame), ArgumentError);
  EXPECT_THROW(reader.read(-1, frame), ArgumentError);
}

// Below 720 lines BT.601, from there on BT.709: a wrong matrix moves saturated colours by 20 or
// more, swapped channels by 200.
TEST(Reader, ColourBarsComeBackWithBothMatrices) {
  const std::array<std::array<std::uint8_t, 3>, 8> bars = {{{235, 235, 235},
                                                            {220, 220, 20},
                                                            {20, 220, 220},
                                                            {20, 200, 20},
                                                            {220, 20, 220},
                                                            {200, 20, 20},
                                                            {20, 20, 200},
                                                            {16, 16, 16}}};
  const TemporaryFolder folder;
  for (const std::int64_t height : {64, 720}) {
    ImageU8 source(height, 256);
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < 256; ++x) {
        std::copy_n(bars[static_cast<std::size_t>(x / 32)].begin(), 3,
                    source.row(y).begin() + x * 3);
      }
    }
    const auto path = folder / ("bars" + std::to_string(height) + ".mp4");
    test::write_clip(path, {source}, {.crf = 1});
    ImageU8 frame;
    VideoReader(path).read(0, frame);
    for (std::int64_t bar = 0; bar < 8; ++bar) {
      for (std::int64_t c = 0; c < 3; ++c) {
        const int got = frame.row(height / 2)[static_cast<std::size_t>((bar * 32 + 16) * 3 + c)];
        EXPECT_NEAR(got, bars[static_cast<std::size_t>(bar)][static_cast<std::size_t>(c)], 3)
            << height << " lines, bar " << bar << ", channel " << c;
      }
    }
  }
}

// Decoding goes by B-frames, but the file claims that each packet is shown as it comes.
TEST(Reader, WrongTimestampsFallBackToDecodingFromTheStart) {
  const TemporaryFolder folder;
  test::write_clip(folder / "good.mp4", test::moving_frames(30, 48, 64),
                   {.gop = 12, .b_frames = 3});
  VideoReader good(folder / "good.mp4");
  ASSERT_TRUE(good.is_seekable());
  const auto expected = read_all(good);
  const std::string bytes = test::read_bytes(folder / "good.mp4");

  test::write_bytes(folder / "order.mp4",
                    test::with_composition_offsets(bytes, [](std::uint32_t) { return 1024U; }));
  EXPECT_FALSE(VideoReader(folder / "order.mp4").is_seekable());
  expect_same_in_any_order(folder / "order.mp4", expected);

  // Repeated ones: two neighbours share a time.
  test::write_bytes(folder / "twice.mp4",
                    test::with_composition_offsets(
                        bytes, [](std::uint32_t i) { return i % 2 == 0 ? 1024U : 512U; }));
  EXPECT_FALSE(VideoReader(folder / "twice.mp4").is_seekable());
  expect_same_in_any_order(folder / "twice.mp4", expected);
}

// A bare stream has no times at all, AVI has none of presentation.
TEST(Reader, MissingTimestampsFallBackToDecodingFromTheStart) {
  const TemporaryFolder folder;
  const auto source = test::moving_frames(30, 48, 64);
  test::write_clip(folder / "good.mp4", source, {.gop = 12, .b_frames = 3});
  VideoReader good(folder / "good.mp4");
  const auto expected = read_all(good);
  for (const std::string name : {"bare.h264", "old.avi"}) {
    test::write_clip(folder / name, source, {.gop = 12, .b_frames = 3});
    EXPECT_FALSE(VideoReader(folder / name).is_seekable()) << name;
    expect_same_in_any_order(folder / name, expected);
  }
}

// What malloc() gives out is filled with another byte each time, so reading it unwritten shows.
TEST(Writer, SameFramesGiveTheSameBytesWhateverIsInMemory) {
  const TemporaryFolder folder;
  const auto frames = test::moving_frames(30, 48, 64);
  std::string first;
  for (int fill = 0; fill < 256; fill += 15) {
    ASSERT_EQ(mallopt(M_PERTURB, fill), 1);
    test::write_clip(folder / "clip.h264", frames, {.gop = 12, .b_frames = 3});
    const std::string bytes = test::read_bytes(folder / "clip.h264");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << "memory filled with " << fill;
  }
  mallopt(M_PERTURB, 0);
}

TEST(Reader, IndexInFrontReadsTheSame) {
  const TemporaryFolder folder;
  test::write_clip(folder / "back.mp4", test::moving_frames(20, 48, 64), {.gop = 6});
  test::write_bytes(folder / "front.mp4",
                    test::with_index_in_front(test::read_bytes(folder / "back.mp4")));
  VideoReader reader(folder / "back.mp4");
  expect_same_in_any_order(folder / "front.mp4", read_all(reader));
}

TEST(FrameFolder, ReadsSortedPicturesAndIgnoresTheRest) {
  const TemporaryFolder folder;
  const auto frames = test::moving_frames(12, 24, 32);
  test::write_clip(folder / "city", frames);
  test::write_bytes(folder / "city/notes.txt", "hello");
  const auto clip = open_clip(folder / "city");
  EXPECT_EQ(clip->name(), "city");
  EXPECT_EQ(open_clip(folder / "city/")->name(), "city");
  EXPECT_EQ(clip->height(), 24);
  EXPECT_EQ(clip->width(), 32);
  EXPECT_EQ(read_all(*clip), frames);
  expect_same_in_any_order(folder / "city", frames);
}

TEST(FrameFolder, NamesTheBadPicture) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "none");
  std::string message = message_of<DataError>([&] { open_clip(folder / "none"); });
  EXPECT_TRUE(contains(message, "none") && contains(message, "no PNG")) << message;

  test::write_clip(folder / "mixed", test::moving_frames(2, 24, 32));
  write_png(folder / "mixed/00000002.png", ImageU8(20, 32));
  test::write_bytes(folder / "mixed/00000003.png", "not a picture");
  const std::string bytes = test::read_bytes(folder / "mixed/00000000.png");
  test::write_bytes(folder / "mixed/00000004.png", bytes.substr(0, bytes.size() / 2));
  const auto clip = open_clip(folder / "mixed");
  ImageU8 frame;
  message = message_of<DataError>([&] { clip->read(2, frame); });
  EXPECT_TRUE(contains(message, "00000002.png") && contains(message, "20x32")) << message;
  message = message_of<DataError>([&] { clip->read(3, frame); });
  EXPECT_TRUE(contains(message, "00000003.png") && contains(message, "not a PNG")) << message;
  message = message_of<DataError>([&] { clip->read(4, frame); });
  EXPECT_TRUE(contains(message, "00000004.png") && contains(message, "damaged")) << message;
}

TEST(Picture, PngIsLosslessAndSurvivesOddSizes) {
  const TemporaryFolder folder;
  for (const auto& [height, width] : {std::pair{1, 1}, std::pair{7, 13}, std::pair{33, 65}}) {
    const auto image = test::lcg_image(height, width, 8);
    write_png(folder / "deep/er/a.png", image);
    EXPECT_EQ(read_picture(folder / "deep/er/a.png"), image);
  }
  EXPECT_THROW(write_png(folder / "b.png", ImageU8()), ArgumentError);
  EXPECT_THROW(read_picture(folder / "b.png"), DataError);
  test::write_bytes(folder / "file", "x");
  EXPECT_TRUE(contains(
      message_of<IoError>([&] { write_png(folder / "file/a.png", ImageU8(2, 2)); }), "file"));
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// 16 x 16 pixels of red (200, 30, 30), full-range BT.601 as every JPEG.
constexpr const char* kRedJpeg =
    "ffd8ffdb004300080404040404050505050505060606060606060606060606060707070808080707"
    "0706060707080808080909090808080809090a0a0a0c0c0b0b0e0e0e111114ffc4004d0001010000"
    "00000000000000000000000000060101010100000000000000000000000000000507100100000000"
    "000000000000000000000000110100000000000000000000000000000000ffc00011080010001003"
    "011200021200031200ffda000c03010002110311003f00901086aa0003ffd9";
// 2 x 2 grey (10, 200 / 255, 0); 2 x 1 with alpha and 2 x 1 of 16 bits, both (10, 20, 30), (200,
// 150, 100).
constexpr const char* kGreyPng =
    "89504e470d0a1a0a0000000d494844520000000200000002080000000057dd52f80000000e494441"
    "54789c63e03ac1f09f0100055601d273c36d920000000049454e44ae426082";
constexpr const char* kAlphaPng =
    "89504e470d0a1a0a0000000d4948445200000002000000010806000000f4227f8a00000011494441"
    "54789c63e012916338312de53f00084202fe0222acdc0000000049454e44ae426082";
constexpr const char* kDeepPng =
    "89504e470d0a1a0a0000000d49484452000000020000000110020000002bd0349e00000015494441"
    "54789c63e0e2121191933b7162dab4941400120f03fd77422db50000000049454e44ae426082";

TEST(Picture, GreyAlphaDeepAndJpegBecomeRgb) {
  const TemporaryFolder folder;
  const auto decode = [&](const char* digits) {
    test::write_bytes(folder / "picture", from_hex(digits));
    return read_picture(folder / "picture").values;
  };
  EXPECT_EQ(decode(kGreyPng),
            (std::vector<std::uint8_t>{10, 10, 10, 200, 200, 200, 255, 255, 255, 0, 0, 0}));
  const std::vector<std::uint8_t> two = {10, 20, 30, 200, 150, 100};
  EXPECT_EQ(decode(kAlphaPng), two);
  const auto deep = decode(kDeepPng);
  ASSERT_EQ(deep.size(), two.size());
  for (std::size_t i = 0; i < two.size(); ++i) EXPECT_NEAR(deep[i], two[i], 1) << i;
  const auto red = decode(kRedJpeg);
  ASSERT_EQ(red.size(), 16U * 16U * 3U);
  for (std::size_t i = 0; i < red.size(); ++i) EXPECT_NEAR(red[i], i % 3 == 0 ? 200 : 30, 3) << i;
}

TEST(Writer, NothingAppearsWithoutFinish) {
  const TemporaryFolder folder;
  for (const std::string name : {"a.mp4", "frames"}) {
    {
      const auto writer = open_writer(folder / name, {25, 1});
      writer->write(ImageU8(16, 16));
      EXPECT_FALSE(std::filesystem::exists(folder / name));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << name;
  }
}

TEST(Writer, RefusesWhatItCannotWrite) {
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(message_of<UsageError>([&] {
                         open_writer(folder / "a.webm", {25, 1});
                       }),
                       ".webm"));
  EXPECT_THROW(open_writer(folder / "a.mp4", {0, 1}), ArgumentError);
  for (const std::string name : {"a.mp4", "frames"}) {
    const auto writer = open_writer(folder / name, {25, 1});
    EXPECT_THROW(writer->finish(), ArgumentError);
    writer->write(ImageU8(16, 16));
    EXPECT_THROW(writer->write(ImageU8(16, 18)), ArgumentError);
  }
  test::write_bytes(folder / "file", "x");
  EXPECT_THROW(open_writer(folder / "file/a.mp4", {25, 1}), IoError);
  EXPECT_THROW(open_writer(folder / "file/frames", {25, 1}), IoError);
  test::write_clip(folder / "taken", {ImageU8(16, 16)});
  EXPECT_TRUE(contains(message_of<IoError>([&] {
                         open_writer(folder / "taken", {25, 1});
                       }),
                       "taken"));
}

TEST(ListClips, ExpandsFoldersInSortedOrder) {
  const TemporaryFolder folder;
  const auto frames = test::moving_frames(2, 16, 16);
  for (const std::string name : {"set/b.mp4", "set/a.mkv", "set/c", "set/.hidden.mp4"}) {
    test::write_clip(folder / name, frames);
  }
  test::write_bytes(folder / "set/readme.txt", "text");
  std::filesystem::create_directory(folder / "set/nothing");
  const std::vector<std::filesystem::path> given = {folder / "set/b.mp4", folder / "set"};
  const std::vector<std::filesystem::path> expected = {folder / "set/b.mp4", folder / "set/a.mkv",
                                                       folder / "set/b.mp4", folder / "set/c"};
  EXPECT_EQ(list_clips(given), expected);
  const std::vector<std::filesystem::path> empty = {folder / "set/nothing"};
  EXPECT_TRUE(contains(message_of<DataError>([&] { list_clips(empty); }), "nothing"));
  const std::vector<std::filesystem::path> missing = {folder / "gone"};
  EXPECT_TRUE(contains(message_of<DataError>([&] { list_clips(missing); }), "gone"));
}

TEST(TestClip, MovesAndRepeats) {
  const TestClipOptions options{.seed = 1, .frames = 3, .height = 32, .width = 48};
  const auto clip = make_test_clip(options);
  EXPECT_EQ(clip[2], make_test_frame(options, 2));
  EXPECT_NE(clip[0], clip[1]);
  EXPECT_NE(clip[0], make_test_frame({.seed = 2, .frames = 3, .height = 32, .width = 48}, 0));
  EXPECT_THROW(make_test_frame(options, 3), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
