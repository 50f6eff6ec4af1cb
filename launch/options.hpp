// SPDX-License-Identifier: Apache-2.0
// The command line of vsr_dist_train as one plain struct. It is parsed, checked and written back
// here and nowhere else, and free of LibTorch, MPI and FFmpeg: a wrong option is told in
// milliseconds, and tests of it are cheap. The enums are local to this layer; the program converts
// them to those of the libraries.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vsr::launch {

enum class Precision { fp32, fp16, bf16, amp };
enum class Reduction { exact, allreduce, fast };
enum class Backend { automatic, mpi, nccl };
enum class Overlap { automatic, on, off };
enum class OptimizerKind { adam, adamw, sgd, lamb };
enum class Scheduler { constant, cosine, multistep, cosine_restart, triangular, one_cycle };
enum class AnnealStrategy { cos, linear };
enum class ResumeMode { never, automatic, must, path };

/// Clips that are scored together under one name (`--val NAME=PATH…`).
struct ValidationSet {
  std::string name;                ///< letters, digits, '_' and '-'
  std::vector<std::string> paths;  ///< at least one
  bool operator==(const ValidationSet&) const = default;
};

/// `--loss-scale dynamic|NUMBER`.
struct LossScale {
  bool dynamic = true;
  double value = 65536;  ///< the scale of all steps, unless dynamic
  bool operator==(const LossScale&) const = default;
};

/// `--resume never|auto|must|PATH`.
struct Resume {
  ResumeMode mode = ResumeMode::never;
  std::string path;  ///< only with ResumeMode::path
  bool operator==(const Resume&) const = default;
};

/// `--force-overflow-at ITER:LEAF`, for tests: an infinity goes into the gradient of that leaf.
struct ForcedOverflow {
  std::int64_t iter = 0;  ///< 1-based, as printed
  int leaf = 0;           ///< 0-based, over all ranks
  bool operator==(const ForcedOverflow&) const = default;
};

/// Every option with its default. What `parse_train_options` returns has passed all checks, and
/// `num_frame` and `out` hold their final values.
struct TrainOptions {
  // Data.
  std::vector<std::string> train;  ///< clips and folders of clips
  std::vector<ValidationSet> val;  ///< empty: the last 20 % of each training clip
  int scale = 4;                   ///< 2, 3 or 4
  int num_frame = 0;               ///< odd; 0 before parsing: 3, or 1 for espcn
  int gt_size = 128;               ///< pixels, high resolution, a multiple of scale
  bool augment = true;             ///< off with --no-augment
  std::int64_t cache_mib = 2048;   ///< MiB of decoded frames per rank
  // Network.
  std::string model = "vespcn";
  int channels = 0;  ///< 0: the network's default
  int blocks = 0;    ///< 0: the network's default
  // Training.
  int batch = 2;   ///< samples in a leaf
  int leaves = 8;  ///< per step, over all ranks
  std::int64_t total_iter = 1000;
  OptimizerKind optimizer = OptimizerKind::adam;
  double lr = 2e-4;
  double weight_decay = 0;
  // Of the optimizer; what is empty was not given. Defaults: launch/step_settings.hpp.
  std::optional<std::array<double, 2>> betas;  ///< adam, adamw, lamb
  std::optional<double> momentum;              ///< sgd
  bool nesterov = false;                       ///< sgd
  double ema_decay = 0;                        ///< of the average of the masters; 0: none is kept
  std::string loss = "charbonnier";
  double clip_grad = 0;  ///< largest 2-norm; 0: off
  Scheduler scheduler = Scheduler::cosine;
  // Of the curve; what is empty was not given. The program's defaults: launch/step_settings.hpp.
  std::optional<double> eta_min;         ///< lowest rate of cosine, cosine_restart, triangular
  std::vector<std::int64_t> milestones;  ///< multistep; applied steps, ascending
  std::optional<double> gamma;           ///< multistep
  std::vector<std::int64_t> periods;     ///< cosine_restart; applied steps
  std::vector<double> restart_weights;   ///< cosine_restart; as many as periods
  std::optional<std::int64_t> stepsize;  ///< triangular; applied steps up, and as many down
  std::optional<double> pct_start;       ///< one_cycle; in [0, 1]
  std::optional<AnnealStrategy> anneal_strategy;  ///< one_cycle
  std::optional<double> div_factor;               ///< one_cycle
  std::optional<double> final_div_factor;         ///< one_cycle
  std::int64_t warmup_iter = 0;
  std::uint64_t seed = 0;
  // Precision and communication.
  Precision precision = Precision::fp16;
  LossScale loss_scale;
  std::optional<std::string> loss_scaler;         ///< rules of dynamic scaling; empty: vsr
  std::optional<std::int64_t> loss_scale_window;  ///< clean steps; empty: that of the rules
  Reduction reduction = Reduction::exact;
  Backend backend = Backend::automatic;
  Overlap overlap = Overlap::automatic;
  std::int64_t bucket_mib = 0;        ///< of gradients that leave early; 0: by their size
  int threads = 1;                    ///< per rank, on CPUs
  int timeout_s = 300;                ///< seconds a rank is waited for; 0: for ever
  std::int64_t check_replicas = 100;  ///< iterations between comparisons of replicas; 0: none
  // Checkpoints and output.
  std::string out;               ///< empty before parsing: runs/MODEL
  std::int64_t save_freq = 500;  ///< iterations; 0: only at the end
  std::int64_t val_freq = 500;   ///< iterations; 0: only at the end
  std::int64_t print_freq = 10;  ///< iterations
  double save_minutes = 0;       ///< since the last checkpoint; 0: off
  bool sync_save = false;        ///< wait for the disk
  int keep = 3;                  ///< newest checkpoints kept
  std::int64_t keep_every = 0;   ///< and each multiple of this iteration; 0: none
  bool keep_best = false;        ///< and the best by PSNR-Y
  Resume resume;
  std::vector<std::string> allow_drift;  ///< options that may differ from those of the run
  // Other.
  std::string config;  ///< the file given by --config
  bool dry_run = false;
  bool version = false;
  bool help = false;
  std::optional<ForcedOverflow> force_overflow_at;

  bool operator==(const TrainOptions&) const = default;
};

/// Parse and check a command line; `arguments` without the program's name.
/// With `help` or `version` set in the result nothing else was checked.
/// @throws UsageError for unknown or repeated options (naming the nearest one), missing and
///   malformed values; ConfigurationError for options that contradict each other and for anything
///   wrong in the file of `--config`
TrainOptions parse_train_options(std::span<const std::string> arguments);

/// The same from `main`'s arguments; argv[0] is ignored.
TrainOptions parse_train_options(int argc, const char* const* argv);

/// The text of `--help`: groups, and for each option its value, default and unit.
/// @param width columns to wrap at; at least 60 are used
std::string train_help_text(int width);

/// The settings as an INI file that `--config` reads back to equal options (all but `config`,
/// `dry_run`, `help` and `version`, which are about one call only).
std::string write_config(const TrainOptions& options);

/// The candidate with the smallest edit distance to `name`, or one that `name` abbreviates; empty
/// when none is near enough to be a misspelling (more than a third of the letters differ).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// The spelling of an enum on the command line.
std::string_view to_string(Precision value);
std::string_view to_string(Reduction value);
std::string_view to_string(Backend value);
std::string_view to_string(Overlap value);
std::string_view to_string(OptimizerKind value);
std::string_view to_string(Scheduler value);
std::string_view to_string(AnnealStrategy value);
/// "never", "auto", "must", or the path.
std::string to_string(const Resume& value);
/// "dynamic", or the number.
std::string to_string(const LossScale& value);

}  // namespace vsr::launch
