// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/train_loop.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "comm/error.hpp"
#include "fmt/format.h"
#include "runtime/checkpoint/files.hpp"
#include "runtime/train/divergence.hpp"
#include "runtime/train/tensors.hpp"
#include "runtime/train/validation.hpp"

namespace vsr::runtime {
namespace {

using Clock = std::chrono::steady_clock;

/// Beside the bits of signals: the rank still writes for the save in flight.
constexpr std::uint64_t kSaveBusy = std::uint64_t{1} << 32;
/// Rank 0's clock says that a save is due.
constexpr std::uint64_t kSaveDue = std::uint64_t{1} << 33;
/// A save that takes longer is heard of as often.
constexpr auto kSaveNews = std::chrono::seconds(10);
/// How often a rank that only waits for the disk looks.
constexpr auto kDiskPoll = std::chrono::milliseconds(1);
/// A signal to mpirun reaches the ranks within so many steps of each other.
constexpr std::int64_t kRequestSpread = 2;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class Loop {
 public:
  Loop(TrainParts parts, const LoopOptions& options, Progress progress)
      : p_(std::move(parts)), options_(options), progress_(progress) {}

  ExitCode run();

 private:
  optim::StepReport step();
  optim::StepReport step_or_finish_save();
  void compute_leaf(int leaf, StepTimes& times);
  void validate_now();
  ValidationResult score(const std::filesystem::path& folder);
  bool save_now();
  void begin_save();
  void advance_save();
  void tell_of_save();
  bool finish_save();
  void warn_of_save(std::int64_t iteration, const AgreedError& error);
  void prune();
  bool is_due(std::int64_t frequency) const {
    return frequency > 0 && progress_.iteration % frequency == 0;
  }
  bool is_new_request(std::uint64_t requests);
  std::uint64_t requests_of_saving() const;
  void note_best();
  bool is_finished() const { return progress_.iteration >= options_.total_iter; }
  void require_trained();
  ExitCode finish(bool is_stopped);

  TrainParts p_;
  LoopOptions options_;
  Progress progress_;
  /// The save in flight.
  struct Saving {
    Progress progress;
    Clock::time_point start;
    double stall_ms;  // training waited so long
    Clock::time_point last_news;
  };
  std::optional<Saving> saving_;
  Clock::time_point last_save_ = Clock::now();
  std::int64_t saved_iteration_ = -1;
  std::int64_t validated_iteration_ = -1;
  std::int64_t requested_iteration_ = -kRequestSpread - 1;
  std::int64_t skipped_in_row_ = 0;
  std::optional<optim::StepReport> last_step_;
  std::string save_failure_;
};

ExitCode Loop::run() {
  if (options_.save_at_start)
    save_now();
  else if (progress_.iteration > 0)
    saved_iteration_ = progress_.iteration;  // it was read from here
  if (is_finished())
    p_.report.message(fmt::format("nothing left to train: {} of {} iterations are done",
                                  progress_.iteration, options_.total_iter));
  while (!is_finished()) {
    const optim::StepReport report = step_or_finish_save();
    if (saving_ && (report.requests & kSaveBusy) == 0) advance_save();
    tell_of_save();
    // Saved first: what follows may take long, or fail.
    if (is_due(options_.save_freq) || is_new_request(report.requests) ||
        (report.requests & kSaveDue) != 0)
      begin_save();
    if ((report.requests & kRequestStop) != 0 && !is_finished()) return finish(true);
    if (is_due(options_.val_freq)) validate_now();
  }
  return finish(false);
}

/// micro-batch → FP16 forward → scaled backward → flat gradients → (reduce to owners → agree →
/// unscale + clip → FP32 shard step → publish → replicas): the optimizer does what stands in
/// brackets.
optim::StepReport Loop::step() {
  const Clock::time_point start = Clock::now();
  const std::int64_t sent_before = p_.world.sent_bytes();
  const double lr = options_.schedule(p_.optimizer.applied_steps());
  StepTimes times;

  p_.optimizer.set_lr(lr);
  p_.optimizer.zero_grad();
  for (const int leaf : p_.optimizer.my_leaves()) compute_leaf(leaf, times);
  if (options_.clip_grad > 0) p_.optimizer.clip_fp32_grads(options_.clip_grad);
  p_.optimizer.request(p_.signals.take() | requests_of_saving());
  optim::StepReport report = p_.optimizer.step();

  ++progress_.iteration;
  skipped_in_row_ = report.applied ? 0 : skipped_in_row_ + 1;
  last_step_ = report;
  times.comm_ms = report.reduce_ms + report.agree_ms + report.publish_ms;
  times.exposed_ms = report.exposed_ms;
  times.compute_ms = ms_since(start) - times.data_ms - times.comm_ms;
  p_.report.iteration(progress_, report, lr, times, p_.world.sent_bytes() - sent_before);
  return report;
}

/// A run that diverges has its last checkpoint.
optim::StepReport Loop::step_or_finish_save() {
  try {
    return step();
  } catch (const DivergedError&) {
    finish_save();
    throw;
  }
}

void Loop::compute_leaf(int leaf, StepTimes& times) {
  const Clock::time_point start = Clock::now();
  const LeafBatch batch = fetch_leaf(p_.data, p_.sampler, progress_.iteration, leaf);
  times.data_ms += ms_since(start);

  torch::Tensor loss = p_.loss(p_.net.forward(batch.lr), batch.gt);
  if (options_.force_overflow == std::pair(progress_.iteration + 1, leaf))
    loss = loss * std::numeric_limits<float>::infinity();
  p_.optimizer.backward(loss);
  p_.world.alive();
}

/// Where averages are kept, they are what the network is made of meanwhile.
ValidationResult Loop::score(const std::filesystem::path& folder) {
  const Enlarge enlarge = [&](const torch::Tensor& x) { return p_.net.forward(x); };
  const std::vector<std::string> arrays = p_.optimizer.shard().arrays;
  if (std::find(arrays.begin(), arrays.end(), "ema") == arrays.end())
    return validate(p_.data, p_.world, enlarge, folder);
  p_.optimizer.publish_ema();
  ValidationResult result;
  try {
    result = validate(p_.data, p_.world, enlarge, folder);
  } catch (const AgreedError&) {
    p_.optimizer.publish_masters();  // every rank is here
    throw;
  }
  p_.optimizer.publish_masters();
  result.weights = Weights::ema;
  return result;
}

/// A validation that fails (a damaged frame, a full disk) costs a warning, not the run.
void Loop::validate_now() {
  if (p_.data.held_out_count() == 0 || validated_iteration_ == progress_.iteration) return;
  const std::filesystem::path folder =
      p_.run_folder / "val" / fmt::format("{:08d}", progress_.iteration);
  p_.net.eval();
  try {
    const ValidationResult result = score(folder);
    progress_.psnr_y = result.mean.psnr_y;
    progress_.bicubic_psnr_y = result.mean.bicubic_psnr_y;
    progress_.is_validated = true;
    validated_iteration_ = progress_.iteration;
    p_.report.validation(progress_, result);
    note_best();
  } catch (const AgreedError& error) {
    if (error.exit_code() != ExitCode::io && error.exit_code() != ExitCode::data) throw;
    progress_.is_validated = false;
    p_.report.warning(
        fmt::format("validation of iteration {} failed: {}", progress_.iteration, error.what()));
  }
  p_.net.train();
}

std::uint64_t Loop::requests_of_saving() const {
  const bool is_late = options_.save_minutes > 0 && p_.world.rank() == 0 &&
                       ms_since(last_save_) >= 60e3 * options_.save_minutes;
  return (p_.store.is_busy() ? kSaveBusy : 0) | (is_late ? kSaveDue : 0);
}

/// The best state there is a checkpoint of, or will be.
void Loop::note_best() {
  if (!options_.keep_best || !std::isfinite(progress_.psnr_y)) return;
  if (progress_.best_iteration >= 0 && progress_.psnr_y <= progress_.best_psnr_y) return;
  progress_.best_iteration = progress_.iteration;
  progress_.best_psnr_y = progress_.psnr_y;
  if (!saving_ || saving_->progress.iteration != progress_.iteration) begin_save();
}

/// One request for a checkpoint that ranks saw in different steps is one request.
bool Loop::is_new_request(std::uint64_t requests) {
  if ((requests & kRequestCheckpoint) == 0) return false;
  const std::int64_t before = std::exchange(requested_iteration_, progress_.iteration);
  return progress_.iteration - before > kRequestSpread;
}

/// Only the copy of the state is waited for, and an earlier save that is still in flight.
void Loop::begin_save() {
  const Clock::time_point start = Clock::now();
  finish_save();
  last_save_ = Clock::now();
  if (saved_iteration_ == progress_.iteration) return;
  try {
    p_.store.begin_save(
        take_snapshot(p_.optimizer, p_.net.named_buffers(), progress_, p_.configuration));
    saving_ = {progress_, start, ms_since(start), Clock::now()};
  } catch (const AgreedError& error) {
    warn_of_save(progress_.iteration, error);
  }
  if (options_.sync_saves) finish_save();
}

void Loop::advance_save() {
  const Clock::time_point start = Clock::now();
  try {
    const auto folder = p_.store.advance();
    saving_->stall_ms += ms_since(start);
    if (!folder) return;
    saved_iteration_ = saving_->progress.iteration;
    p_.report.checkpoint(saving_->progress, *folder, ms_since(saving_->start) / 1000,
                         saving_->stall_ms);
    saving_.reset();
    prune();
  } catch (const AgreedError& error) {
    const std::int64_t iteration = saving_->progress.iteration;
    saving_.reset();
    warn_of_save(iteration, error);
  }
}

void Loop::tell_of_save() {
  if (!saving_ || Clock::now() - saving_->last_news < kSaveNews) return;
  saving_->last_news = Clock::now();
  const CheckpointStore::Written written = p_.store.written();
  p_.report.message(
      fmt::format("checkpoint of iteration {}: {} of {} written on rank 0 after {:.0f} s",
                  saving_->progress.iteration, readable_size(written.done_bytes),
                  readable_size(written.all_bytes), ms_since(saving_->start) / 1000));
}

/// @returns whether what was reached is on the disk
bool Loop::finish_save() {
  while (saving_) {
    while (p_.store.is_busy()) {
      std::this_thread::sleep_for(kDiskPoll);
      p_.world.alive();
      tell_of_save();
    }
    advance_save();
  }
  return saved_iteration_ == progress_.iteration;
}

bool Loop::save_now() {
  begin_save();
  return finish_save();
}

/// A checkpoint that fails costs a warning, not the run: the next one tries again.
void Loop::warn_of_save(std::int64_t iteration, const AgreedError& error) {
  if (error.exit_code() != ExitCode::io) throw AgreedError(error);
  save_failure_ = error.what();
  p_.report.warning(fmt::format("checkpoint of iteration {} failed{}: {}", iteration,
                                is_finished() ? "" : ", training goes on", save_failure_));
}

/// Older checkpoints go only after a step that applied: a run that overflows for ever keeps what it
/// had before.
void Loop::prune() {
  if (skipped_in_row_ > 0) return;
  try {
    p_.store.prune({.last = options_.keep,
                    .every = options_.keep_every,
                    .best = options_.keep_best ? progress_.best_iteration : -1});
  } catch (const AgreedError& error) {
    p_.report.warning(fmt::format("an older checkpoint could not be removed: {}", error.what()));
  }
}

/// A run that diverges has its last checkpoint.
void Loop::require_trained() {
  if (!last_step_) return;
  try {
    require_not_diverged({.iteration = progress_.iteration,
                          .skipped_in_row = skipped_in_row_,
                          .last_step = *last_step_},
                         p_.optimizer, p_.world);
  } catch (const Error&) {
    finish_save();
    throw;
  }
}

ExitCode Loop::finish(bool is_stopped) {
  if (!is_stopped) require_trained();
  if (!save_now()) {
    const std::filesystem::path newest = p_.store.newest_valid();
    throw AgreedError(
        ExitCode::io,
        fmt::format("the final state could not be saved: {}; newest valid checkpoint: {}",
                    save_failure_, newest.empty() ? "none" : newest.string()),
        0);
  }
  if (!is_stopped) validate_now();
  if (options_.keep_best) prune();
  const std::string masters = p_.optimizer.masters_hash();
  if (is_stopped)
    p_.report.message(fmt::format(
        "stopped on request after iteration {}; continue with --resume auto", progress_.iteration));
  p_.report.end(progress_, p_.optimizer.state(), masters);
  return is_stopped ? ExitCode::stopped : ExitCode::ok;
}

}  // namespace

ExitCode train(TrainParts parts, const LoopOptions& options, Progress progress) {
  return Loop(std::move(parts), options, progress).run();
}

}  // namespace vsr::runtime
