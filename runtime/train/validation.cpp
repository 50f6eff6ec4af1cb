// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/validation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "comm/error.hpp"
#include "fmt/format.h"
#include "runtime/checkpoint/files.hpp"
#include "runtime/metrics/psnr.hpp"
#include "runtime/metrics/ssim.hpp"
#include "runtime/train/tensors.hpp"
#include "runtime/video/image_file.hpp"
#include "runtime/video/resample.hpp"
#include "runtime/video/strip.hpp"

namespace vsr::runtime {
namespace {

constexpr std::int64_t kSmallestSsim = 11;

/// A frame's scores on their way between ranks.
struct FrameScores {
  std::int64_t index = 0;  // of the held-out frame
  std::int64_t frame = 0;  // number in its clip
  Scores scores;
};

Scores score(const ImageU8& picture, const ImageU8& bicubic, const ImageU8& gt) {
  const bool is_tiny = std::min(gt.height, gt.width) < kSmallestSsim;
  const double none = std::numeric_limits<double>::quiet_NaN();
  return {psnr_y(picture, gt), psnr_y(bicubic, gt), is_tiny ? none : ssim_y(picture, gt),
          is_tiny ? none : ssim_y(bicubic, gt)};
}

/// Mean of the finite values; infinity when there are values and all are infinite.
double mean_psnr(const std::vector<double>& values) {
  double sum = 0;
  int count = 0;
  for (const double value : values) {
    if (std::isinf(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::infinity();
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

template <typename Items, typename Get>
std::vector<double> column(const Items& items, Get get) {
  std::vector<double> values;
  for (const auto& item : items) values.push_back(get(item));
  return values;
}

ClipScores clip_scores(const std::string& name, const std::vector<FrameScores>& frames) {
  ClipScores clip{name, static_cast<std::int64_t>(frames.size()), 0, {}};
  for (const FrameScores& frame : frames)
    clip.exact_frames += std::isinf(frame.scores.psnr_y) ? 1 : 0;
  clip.mean.psnr_y = mean_psnr(column(frames, [](const auto& f) { return f.scores.psnr_y; }));
  clip.mean.bicubic_psnr_y =
      mean_psnr(column(frames, [](const auto& f) { return f.scores.bicubic_psnr_y; }));
  clip.mean.ssim_y = mean_of(column(frames, [](const auto& f) { return f.scores.ssim_y; }));
  clip.mean.bicubic_ssim_y =
      mean_of(column(frames, [](const auto& f) { return f.scores.bicubic_ssim_y; }));
  return clip;
}

Scores mean_of_clips(const std::vector<ClipScores>& clips) {
  return {mean_psnr(column(clips, [](const auto& c) { return c.mean.psnr_y; })),
          mean_psnr(column(clips, [](const auto& c) { return c.mean.bicubic_psnr_y; })),
          mean_of(column(clips, [](const auto& c) { return c.mean.ssim_y; })),
          mean_of(column(clips, [](const auto& c) { return c.mean.bicubic_ssim_y; }))};
}

/// A name as a file: clips of a validation set are called SET/CLIP.
std::string file_name(std::string name, std::string_view end) {
  std::replace(name.begin(), name.end(), '/', '_');
  return fmt::format("{}{}", name, end);
}

/// Held-out frames of one clip stand together; this is where each clip begins and what it is
/// called.
struct ClipRange {
  std::string name;
  std::int64_t first = 0;
  std::int64_t end = 0;
};

std::vector<ClipRange> clip_ranges(const WindowDataset& data) {
  std::vector<ClipRange> ranges;
  std::int64_t clip = -1;
  for (std::int64_t i = 0; i < data.held_out_count(); ++i) {
    const auto place = data.held_out_place(i);
    if (place.clip != clip) ranges.push_back({data.held_out_name(i), i, i});
    clip = place.clip;
    ranges.back().end = i + 1;
  }
  // Clips of the same name are clips of their own; a number keeps their files apart.
  std::set<std::string> taken;
  for (ClipRange& range : ranges) {
    const std::string name = range.name;
    for (int number = 2; !taken.insert(range.name).second; ++number)
      range.name = fmt::format("{}-{}", name, number);
  }
  return ranges;
}

void write_csv(const std::filesystem::path& file, const std::vector<FrameScores>& frames) {
  std::string text = "frame,psnr_y,bicubic_psnr_y,ssim_y,bicubic_ssim_y\n";
  for (const FrameScores& frame : frames)
    text +=
        fmt::format("{},{:.6f},{:.6f},{:.6f},{:.6f}\n", frame.frame, frame.scores.psnr_y,
                    frame.scores.bicubic_psnr_y, frame.scores.ssim_y, frame.scores.bicubic_ssim_y);
  write_file_atomically(file, text);
}

/// Scores of this rank's frames; pictures of those that begin a clip.
std::vector<FrameScores> score_my_frames(WindowDataset& data, const comm::Communicator& world,
                                         const Enlarge& enlarge,
                                         const std::vector<ClipRange>& clips,
                                         const std::optional<std::filesystem::path>& folder) {
  const torch::InferenceMode no_gradients;
  std::vector<FrameScores> mine;
  for (std::int64_t i = world.rank(); i < data.held_out_count(); i += world.world()) {
    const HeldOutFrame frame = data.held_out(i);
    const ImageU8 picture = picture_of(enlarge(window_tensor(frame)));
    const ImageU8 bicubic = upscale(frame.lr_frame, data.options().scale);
    mine.push_back({i, frame.frame, score(picture, bicubic, frame.gt)});
    world.alive();
    if (!folder) continue;
    const auto clip = std::find_if(clips.begin(), clips.end(),
                                   [&](const ClipRange& range) { return range.first == i; });
    if (clip == clips.end()) continue;
    const Scores& scores = mine.back().scores;
    write_png(*folder / file_name(clip->name, "_strip.png"),
              make_comparison_strip(frame.lr_frame, bicubic, picture, frame.gt,
                                    scores.bicubic_psnr_y, scores.psnr_y));
  }
  return mine;
}

/// Every rank's frames in the order of the data set.
std::vector<FrameScores> gather(comm::Communicator& world, const std::vector<FrameScores>& mine) {
  const std::vector<std::size_t> counts = world.all_gather(mine.size());
  std::vector<FrameScores> all = world.all_gather(std::span<const FrameScores>(mine), counts);
  std::sort(all.begin(), all.end(),
            [](const FrameScores& a, const FrameScores& b) { return a.index < b.index; });
  return all;
}

}  // namespace

ValidationResult validate(WindowDataset& data, comm::Communicator& world, const Enlarge& enlarge,
                          const std::optional<std::filesystem::path>& folder) {
  const comm::Communicator::Purpose purpose(world, "validation");
  const std::vector<ClipRange> clips = clip_ranges(data);
  world.agree_all_ok("making the folder of a validation", [&] {
    if (folder && world.rank() == 0) create_folders(*folder);
  });
  std::vector<FrameScores> mine;
  world.agree_all_ok("validation",
                     [&] { mine = score_my_frames(data, world, enlarge, clips, folder); });
  const std::vector<FrameScores> all = gather(world, mine);

  ValidationResult result;
  world.agree_all_ok("writing the scores of a validation", [&] {
    for (const ClipRange& clip : clips) {
      const std::vector<FrameScores> frames(all.begin() + clip.first, all.begin() + clip.end);
      result.clips.push_back(clip_scores(clip.name, frames));
      if (folder && world.rank() == 0) write_csv(*folder / file_name(clip.name, ".csv"), frames);
    }
  });
  result.mean = mean_of_clips(result.clips);
  return result;
}

}  // namespace vsr::runtime
