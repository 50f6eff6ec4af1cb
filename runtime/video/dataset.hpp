// SPDX-License-Identifier: Apache-2.0
// Windows of frames out of clips, split so that nothing of what is validated was ever trained on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/video/clip.hpp"
#include "runtime/video/image.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::runtime {

struct DatasetOptions {
  std::int64_t num_frame = 3;                ///< frames of a window, odd
  std::int64_t gt_size = 128;                ///< side of a high-resolution crop, pixels
  int scale = 4;                             ///< 2, 3 or 4
  double held_out_fraction = 0.2;            ///< of each training clip; 0: no validation frames
  std::int64_t cache_bytes = 1'000'000'000;  ///< most memory for decoded frames
};

/// A clip that is only validated on, under a name of the user's (--val NAME=PATH).
struct ValidationClip {
  std::string name;
  std::filesystem::path path;
};

/// One training sample, host memory, FP32 in [0, 1].
struct Sample {
  std::int64_t num_frame = 0;
  std::int64_t lr_size = 0;  ///< gt_size / scale
  std::int64_t gt_size = 0;
  std::vector<float> lr;  ///< num_frame x 3 x lr_size x lr_size, frames in order of time
  std::vector<float> gt;  ///< 3 x gt_size x gt_size, the middle frame
};

/// One whole frame to validate on.
struct HeldOutFrame {
  std::string clip;        ///< name of the validation set or of the training clip
  std::int64_t frame = 0;  ///< number in its clip
  std::int64_t num_frame = 0;
  std::int64_t lr_height = 0;
  std::int64_t lr_width = 0;
  std::vector<float> lr;  ///< num_frame x 3 x lr_height x lr_width, FP32 [0, 1]
  ImageU8 lr_frame;       ///< the middle one as bytes, for the bicubic baseline
  ImageU8 gt;             ///< lr_height * scale x lr_width * scale
};

/// The part of a clip's frames that windows are made of: [first, first + count).
struct FrameRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// How a training clip of `frames` frames is divided: the last round(frames * fraction), at least
/// one, are held out; `gap` frames before them are used by nobody.
struct ClipSplit {
  FrameRange train;
  FrameRange held_out;
};
ClipSplit split_clip(std::int64_t frames, double held_out_fraction, std::int64_t gap) noexcept;

/// Index of a neighbour outside [first, first + count) reflected into it without repeating the
/// edge, as often as it takes: any count >= 1 works.
std::int64_t reflect_into(FrameRange range, std::int64_t frame) noexcept;

/// Training windows and held-out frames of a list of clips.
/// Low-resolution frames are made from whole frames (modcrop, antialiased bicubic, rounded to
/// bytes) and cropped afterwards, so that training sees the borders that upscaling will see. Any
/// thread may call; decoding is serialised. Decoded frames stay in a cache, least recently used out
/// first.
class WindowDataset {
 public:
  /// Hold out the end of each training clip.
  /// @throws DataError naming the clip, its numbers and what to change: unreadable, shorter than
  /// the
  ///         window, smaller than the crop, nothing left to train or to validate on;
  ///         ArgumentError for options outside their range
  WindowDataset(std::span<const std::filesystem::path> train, const DatasetOptions& options);
  /// Train on all frames of `train`, validate on all frames of `validation`.
  /// @throws DataError as above; also when a clip stands in both lists
  WindowDataset(std::span<const std::filesystem::path> train,
                std::span<const ValidationClip> validation, const DatasetOptions& options);
  ~WindowDataset();
  WindowDataset(WindowDataset&&) noexcept;
  WindowDataset& operator=(WindowDataset&&) noexcept;

  /// Training windows, over all clips: N of the sampler.
  std::int64_t window_count() const noexcept;
  std::int64_t held_out_count() const noexcept;
  std::int64_t train_clip_count() const noexcept;
  const DatasetOptions& options() const noexcept;

  /// Cut the crop and apply the flips that `draw` names.
  /// @throws ArgumentError for a window outside [0, window_count()); DataError for a damaged frame
  Sample fetch(const SampleDraw& draw);
  /// @throws ArgumentError outside [0, held_out_count()); DataError for a damaged frame
  HeldOutFrame held_out(std::int64_t index);

  /// Frames that window `window` is made of, and its clip: what the proofs of separation enumerate.
  struct WindowPlace {
    std::int64_t clip = 0;  ///< training clips first, then validation clips
    std::vector<std::int64_t> frames;
  };
  WindowPlace train_place(std::int64_t window) const;
  WindowPlace held_out_place(std::int64_t index) const;
  /// Name of the validation set or training clip that a held-out frame belongs to; decodes nothing.
  /// @throws ArgumentError outside [0, held_out_count())
  std::string held_out_name(std::int64_t index) const;

  /// One line a clip: path, size, frames, what is trained on and held out. Equal on all ranks that
  /// see the same data; goes into plans and into the comparison at resume.
  std::string describe() const;
  /// Each clip without its folder: name, size, frames and bytes on the disk. Tells other data from
  /// the same data in another place.
  std::vector<std::string> clip_facts() const;
  /// Bytes of decoded frames in the cache now.
  std::int64_t cached_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vsr::runtime
