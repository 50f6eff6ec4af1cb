// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/dataset.hpp"

#include <algorithm>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "runtime/video/crop_window.hpp"
#include "runtime/video/frame_cache.hpp"
#include "runtime/video/random.hpp"
#include "runtime/video/resample.hpp"

namespace vsr::runtime {
namespace {

std::string number(std::int64_t value) {
  return std::to_string(value);
}

void check(const DatasetOptions& options) {
  VSR_CHECK(options.num_frame >= 1 && options.num_frame % 2 == 1,
            "num_frame " + number(options.num_frame) + " must be odd");
  VSR_CHECK(options.scale >= 2 && options.scale <= 4,
            "scale " + number(options.scale) + "; 2, 3 and 4 work");
  VSR_CHECK(options.gt_size >= options.scale && options.gt_size % options.scale == 0,
            "gt_size " + number(options.gt_size) + " must be a multiple of the scale " +
                number(options.scale));
  VSR_CHECK(
      options.held_out_fraction >= 0.0 && options.held_out_fraction < 1.0,
      "held_out_fraction " + std::to_string(options.held_out_fraction) + " must lie in [0, 1)");
  VSR_CHECK(options.cache_bytes >= 0,
            "cache_bytes is " + number(options.cache_bytes) + ", expected at least 0");
}

struct ClipEntry {
  std::unique_ptr<Clip> clip;
  std::string name;
  FrameRange train;
  FrameRange held_out;
  std::int64_t first_window = 0;    // number of the first of its training windows
  std::int64_t first_held_out = 0;  // and of its held-out frames
  bool is_read_through = false;     // decoded once from start to end, or found too large for that
};

/// Of a file, or of all files in a folder of pictures.
std::int64_t bytes_on_disk(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored))
    return static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
  std::int64_t bytes = 0;
  for (const auto& item : std::filesystem::directory_iterator(path, ignored))
    if (item.is_regular_file(ignored)) bytes += static_cast<std::int64_t>(item.file_size(ignored));
  return bytes;
}

std::string describe_range(const FrameRange& range) {
  if (range.count == 0) return "none";
  return number(range.first) + ".." + number(range.first + range.count - 1);
}

}  // namespace

struct WindowDataset::State {
  explicit State(const DatasetOptions& given) : options(given), cache(given.cache_bytes) {}

  DatasetOptions options;
  std::vector<ClipEntry> clips;
  std::set<std::filesystem::path>
      train_paths;  // clips to train on, whatever name they were given by
  std::int64_t train_clips = 0;
  std::int64_t windows = 0;
  std::int64_t held_out = 0;
  mutable std::mutex mutex;  // guards the clips' decoders and the cache
  FrameCache cache;

  void add_train(const std::filesystem::path& path, double fraction);
  void add_validation(const ValidationClip& given);
  void add(ClipEntry entry);
  void check_size(const Clip& clip) const;
  void check_length(const Clip& clip, const ClipSplit& split, double fraction) const;
  std::pair<FramePointer, FramePointer> load(std::int64_t clip, std::int64_t frame);
  void read_through(std::int64_t clip);
  std::int64_t bytes_of_all_frames() const;
  FramePointer frame(std::int64_t clip, std::int64_t frame, FrameKind kind);
};

void WindowDataset::State::check_size(const Clip& clip) const {
  const std::int64_t side = std::min(clip.height(), clip.width());
  const std::int64_t largest = side - side % options.scale;
  if (largest >= options.gt_size) return;
  throw DataError("clip " + clip.path().string() + ": frames of " +
                  size_text(clip.height(), clip.width()) +
                  " pixels (height x width) are smaller than the crop of " +
                  size_text(options.gt_size, options.gt_size) +
                  "; the largest --gt-size for it is " + number(largest));
}

void WindowDataset::State::check_length(const Clip& clip, const ClipSplit& split,
                                        double fraction) const {
  const std::string what =
      "clip " + clip.path().string() + ": got " + counted(clip.frame_count(), "frame");
  if (clip.frame_count() < options.num_frame) {
    throw DataError(what + ", fewer than the window of " + number(options.num_frame) +
                    "; take a longer clip or a smaller --num-frame");
  }
  if (split.train.count < options.num_frame) {
    throw DataError(what + ", leaving " + number(split.train.count) + " to train on after " +
                    number(split.held_out.count) + " held out (fraction " +
                    std::to_string(fraction).substr(0, 4) + ") and a gap of " +
                    number(options.num_frame) + ", but a window needs " +
                    number(options.num_frame) +
                    "; take a longer clip, a smaller --num-frame, or give --val NAME=PATH");
  }
}

void WindowDataset::State::add(ClipEntry entry) {
  entry.first_window = windows;
  entry.first_held_out = held_out;
  windows += std::max<std::int64_t>(entry.train.count - options.num_frame + 1, 0);
  held_out += entry.held_out.count;
  clips.push_back(std::move(entry));
}

void WindowDataset::State::add_train(const std::filesystem::path& path, double fraction) {
  std::error_code ignored;
  if (!train_paths.insert(std::filesystem::weakly_canonical(path, ignored)).second)
    throw DataError("clip " + path.string() + ": given twice to train on; give it once");
  auto clip = open_clip(path);
  const ClipSplit split = split_clip(clip->frame_count(), fraction, options.num_frame);
  check_size(*clip);
  check_length(*clip, split, fraction);
  std::string name = clip->name();
  add({std::move(clip), std::move(name), split.train, split.held_out});
  train_clips = static_cast<std::int64_t>(clips.size());
}

void WindowDataset::State::add_validation(const ValidationClip& given) {
  for (std::int64_t i = 0; i < train_clips; ++i) {
    std::error_code ignored;
    const auto& trained = clips[static_cast<std::size_t>(i)].clip->path();
    if (std::filesystem::equivalent(trained, given.path, ignored)) {
      throw DataError("clip " + given.path.string() +
                      ": is trained on as well as validated on (--val " + given.name +
                      "); take it out of one of the two");
    }
  }
  auto clip = open_clip(given.path);
  if (std::min(clip->height(), clip->width()) < options.scale) {
    throw DataError("clip " + given.path.string() + ": frames of " +
                    size_text(clip->height(), clip->width()) +
                    " pixels are smaller than the scale " + number(options.scale));
  }
  const FrameRange all{0, clip->frame_count()};
  add({std::move(clip), given.name, {0, 0}, all});
}

// Decodes under the lock: a clip has one decoder, and two threads would undo each other's seeks.
std::pair<FramePointer, FramePointer> WindowDataset::State::load(std::int64_t clip,
                                                                 std::int64_t frame) {
  ImageU8 decoded;
  clips[static_cast<std::size_t>(clip)].clip->read(frame, decoded);
  auto high = std::make_shared<const ImageU8>(modcrop(decoded, options.scale));
  auto low = std::make_shared<const ImageU8>(downscale(*high, options.scale));
  cache.insert(clip, frame, FrameKind::high, high);
  cache.insert(clip, frame, FrameKind::low, low);
  return {low, high};
}

std::int64_t WindowDataset::State::bytes_of_all_frames() const {
  std::int64_t bytes = 0;
  for (const ClipEntry& entry : clips) {
    const std::int64_t high = entry.clip->height() * entry.clip->width() * kChannels;
    bytes += entry.clip->frame_count() * (high + high / (options.scale * options.scale));
  }
  return bytes;
}

// Frames in order cost a tenth of frames at random, which are decoded from the keyframe before. So
// where the cache holds everything, a clip is decoded once, whole, when it is first asked for.
void WindowDataset::State::read_through(std::int64_t clip) {
  ClipEntry& entry = clips[static_cast<std::size_t>(clip)];
  if (std::exchange(entry.is_read_through, true)) return;
  if (bytes_of_all_frames() > options.cache_bytes) return;
  try {
    for (std::int64_t frame = 0; frame < entry.clip->frame_count(); ++frame) load(clip, frame);
  } catch (const DataError&) {
    return;  // a damaged frame is an error for who asks for it, and only then
  }
}

FramePointer WindowDataset::State::frame(std::int64_t clip, std::int64_t frame, FrameKind kind) {
  const std::lock_guard lock(mutex);
  if (auto found = cache.find(clip, frame, kind)) return found;
  read_through(clip);
  if (auto found = cache.find(clip, frame, kind)) return found;
  const auto [low, high] = load(clip, frame);
  return kind == FrameKind::low ? low : high;
}

WindowDataset::WindowDataset(std::span<const std::filesystem::path> train,
                             const DatasetOptions& options)
    : state_(std::make_unique<State>(options)) {
  check(options);
  for (const auto& path : list_clips(train)) state_->add_train(path, options.held_out_fraction);
  if (state_->windows == 0) throw DataError("no clip to train on; give --train PATH");
}

WindowDataset::WindowDataset(std::span<const std::filesystem::path> train,
                             std::span<const ValidationClip> validation,
                             const DatasetOptions& options)
    : state_(std::make_unique<State>(options)) {
  check(options);
  for (const auto& path : list_clips(train)) state_->add_train(path, 0.0);
  if (state_->windows == 0) throw DataError("no clip to train on; give --train PATH");
  for (const ValidationClip& given : validation) {
    const auto paths = list_clips(std::span(&given.path, 1));
    for (const auto& path : paths) {
      const std::string name =
          paths.size() == 1 ? given.name : given.name + "/" + path.stem().string();
      state_->add_validation({name, path});
    }
  }
  if (state_->held_out == 0) throw DataError("no clip to validate on; give --val NAME=PATH");
}

WindowDataset::~WindowDataset() = default;
WindowDataset::WindowDataset(WindowDataset&&) noexcept = default;
WindowDataset& WindowDataset::operator=(WindowDataset&&) noexcept = default;

std::int64_t WindowDataset::window_count() const noexcept {
  return state_->windows;
}
std::int64_t WindowDataset::held_out_count() const noexcept {
  return state_->held_out;
}
std::int64_t WindowDataset::train_clip_count() const noexcept {
  return state_->train_clips;
}
const DatasetOptions& WindowDataset::options() const noexcept {
  return state_->options;
}

std::int64_t WindowDataset::cached_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->cache.bytes();
}

WindowDataset::WindowPlace WindowDataset::train_place(std::int64_t window) const {
  VSR_CHECK(window >= 0 && window < window_count(),
            "window " + number(window) + " of " + number(window_count()));
  const auto& clips = state_->clips;
  const auto after = std::upper_bound(
      clips.begin(), clips.begin() + state_->train_clips, window,
      [](std::int64_t value, const ClipEntry& entry) { return value < entry.first_window; });
  const auto entry = after - 1;
  WindowPlace place{entry - clips.begin(), {}};
  for (std::int64_t i = 0; i < state_->options.num_frame; ++i) {
    place.frames.push_back(entry->train.first + window - entry->first_window + i);
  }
  return place;
}

WindowDataset::WindowPlace WindowDataset::held_out_place(std::int64_t index) const {
  VSR_CHECK(index >= 0 && index < held_out_count(),
            "held-out frame " + number(index) + " of " + number(held_out_count()));
  const auto& clips = state_->clips;
  const auto after = std::upper_bound(
      clips.begin(), clips.end(), index,
      [](std::int64_t value, const ClipEntry& entry) { return value < entry.first_held_out; });
  const auto entry = after - 1;
  const std::int64_t centre = entry->held_out.first + index - entry->first_held_out;
  const std::int64_t half = state_->options.num_frame / 2;
  WindowPlace place{entry - clips.begin(), {}};
  for (std::int64_t i = centre - half; i <= centre + half; ++i) {
    place.frames.push_back(reflect_into(entry->held_out, i));
  }
  return place;
}

Sample WindowDataset::fetch(const SampleDraw& draw) {
  const WindowPlace place = train_place(draw.window);
  const DatasetOptions& options = state_->options;
  const std::int64_t middle = place.frames[static_cast<std::size_t>(options.num_frame / 2)];
  const FramePointer gt = state_->frame(place.clip, middle, FrameKind::high);
  const CropWindow window = place_crop(draw, options, gt->height, gt->width);
  Sample sample;
  sample.num_frame = options.num_frame;
  sample.gt_size = options.gt_size;
  sample.lr_size = options.gt_size / options.scale;
  sample.gt.resize(static_cast<std::size_t>(kChannels * sample.gt_size * sample.gt_size));
  cut_planes(*gt, window.scaled(options.scale), sample.gt);
  const std::int64_t frame_values = kChannels * sample.lr_size * sample.lr_size;
  sample.lr.resize(static_cast<std::size_t>(options.num_frame * frame_values));
  for (std::size_t i = 0; i < place.frames.size(); ++i) {
    const FramePointer low = state_->frame(place.clip, place.frames[i], FrameKind::low);
    cut_planes(*low, window,
               std::span(sample.lr).subspan(i * static_cast<std::size_t>(frame_values),
                                            static_cast<std::size_t>(frame_values)));
  }
  return sample;
}

std::string WindowDataset::held_out_name(std::int64_t index) const {
  return state_->clips[static_cast<std::size_t>(held_out_place(index).clip)].name;
}

HeldOutFrame WindowDataset::held_out(std::int64_t index) {
  const WindowPlace place = held_out_place(index);
  const auto middle = static_cast<std::size_t>(state_->options.num_frame / 2);
  HeldOutFrame out;
  out.clip = held_out_name(index);
  out.frame = place.frames[middle];
  out.num_frame = state_->options.num_frame;
  out.gt = *state_->frame(place.clip, out.frame, FrameKind::high);
  out.lr_frame = *state_->frame(place.clip, out.frame, FrameKind::low);
  out.lr_height = out.lr_frame.height;
  out.lr_width = out.lr_frame.width;
  const std::size_t frame_values = out.lr_frame.values.size();
  out.lr.resize(place.frames.size() * frame_values);
  for (std::size_t i = 0; i < place.frames.size(); ++i) {
    to_planes(*state_->frame(place.clip, place.frames[i], FrameKind::low),
              std::span(out.lr).subspan(i * frame_values, frame_values));
  }
  return out;
}

std::vector<std::string> WindowDataset::clip_facts() const {
  std::vector<std::string> facts;
  for (const ClipEntry& entry : state_->clips) {
    const Clip& clip = *entry.clip;
    facts.push_back(entry.name + " " + size_text(clip.height(), clip.width()) + ", " +
                    number(clip.frame_count()) + " frames, " + number(bytes_on_disk(clip.path())) +
                    " bytes");
  }
  return facts;
}

std::string WindowDataset::describe() const {
  std::string text;
  for (const ClipEntry& entry : state_->clips) {
    const Clip& clip = *entry.clip;
    text += entry.name + ": " + clip.path().string() + ", " +
            size_text(clip.height(), clip.width()) + ", " + number(clip.frame_count()) +
            " frames; train " + describe_range(entry.train) + ", held out " +
            describe_range(entry.held_out) + "\n";
  }
  return text;
}

}  // namespace vsr::runtime
