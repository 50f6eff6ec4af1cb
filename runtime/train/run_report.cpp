// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/run_report.hpp"

#include "comm/error.hpp"
#include "fmt/format.h"

namespace vsr::runtime {

RunReport::RunReport(const RunReportOptions& options)
    : log_(std::make_unique<TrainLog>(options.run_folder / "train.log",
                                      TrainLogOptions{.total_iter = options.total_iter,
                                                      .print_freq = options.print_freq,
                                                      .is_terminal = options.is_terminal})),
      metrics_(std::make_unique<MetricsJsonl>(options.run_folder / "metrics.jsonl")) {}

void RunReport::message(const std::string& text) {
  if (log_) log_->message(text);
}

void RunReport::warning(const std::string& text) {
  if (log_) log_->warning(text);
}

void RunReport::append(const MetricsRecord& record) {
  if (!metrics_) return;
  try {
    metrics_->append(record);
    metrics_failed_ = false;
  } catch (const IoError& error) {
    // A full disk must not end a run; it is said once until writing works again.
    if (!metrics_failed_) warning(error.what());
    metrics_failed_ = true;
  }
}

void RunReport::start(const Progress& progress, int world, const std::string& masters) {
  MetricsRecord record{.type = RecordType::start};
  record.iter = progress.iteration;
  record.masters = masters;
  record.extra = {{"world", static_cast<std::int64_t>(world)}};
  append(record);
  if (log_ && progress.is_validated)
    log_->set_last_score({progress.psnr_y, progress.bicubic_psnr_y});
}

void RunReport::iteration(const Progress& progress, const optim::StepReport& step, double lr,
                          const StepTimes& times, std::int64_t wire_bytes) {
  if (!log_) return;
  log_->iteration({.iter = progress.iteration,
                   .loss = step.loss,
                   .lr = lr,
                   .loss_scale = step.loss_scale,
                   .skipped = step.skipped_steps,
                   .times = times});
  MetricsRecord record{.type = RecordType::iter};
  record.iter = progress.iteration;
  record.applied = step.applied_steps;
  record.loss = step.loss;
  record.lr = lr;
  record.loss_scale = step.loss_scale;
  record.skipped = step.skipped_steps;
  record.grad_norm = step.grad_norm;
  record.data_ms = times.data_ms;
  record.compute_ms = times.compute_ms;
  record.comm_ms = times.comm_ms;
  record.exposed_ms = times.exposed_ms;
  record.wire_bytes = wire_bytes;
  append(record);
  if (!step.applied)
    log_->message(fmt::format(
        "iter {}: overflow in {} (leaf {}, rank {}: {} inf, {} nan); step "
        "skipped, loss scale {:g} -> {:g}",
        progress.iteration, step.first_bad_parameter, step.first_bad_leaf, step.first_bad_rank,
        step.inf_count, step.nan_count, step.loss_scale, step.next_loss_scale));
}

void RunReport::validation(const Progress& progress, const ValidationResult& result) {
  if (!log_) return;
  for (const ClipScores& clip : result.clips) {
    const std::string of = result.weights == Weights::ema ? " (averages)" : "";
    log_->validation(clip.name + of, {clip.mean.psnr_y, clip.mean.bicubic_psnr_y});
    MetricsRecord record{.type = RecordType::val};
    record.iter = progress.iteration;
    record.psnr_y = clip.mean.psnr_y;
    record.bicubic_psnr_y = clip.mean.bicubic_psnr_y;
    record.ssim_y = clip.mean.ssim_y;
    record.extra = {{"name", clip.name},
                    {"frames", clip.frames},
                    {"exact_frames", clip.exact_frames},
                    {"weights", std::string(to_string(result.weights))},
                    {"bicubic_ssim_y", clip.mean.bicubic_ssim_y}};
    append(record);
  }
  log_->set_last_score({result.mean.psnr_y, result.mean.bicubic_psnr_y});
}

void RunReport::checkpoint(const Progress& progress, const std::filesystem::path& folder,
                           double seconds, double stall_ms) {
  if (!log_) return;
  log_->message(fmt::format("checkpoint {} ({:.2f} s)", folder.string(), seconds));
  MetricsRecord record{.type = RecordType::ckpt};
  record.iter = progress.iteration;
  record.extra = {{"path", folder.string()}, {"seconds", seconds}, {"stall_ms", stall_ms}};
  append(record);
}

void RunReport::end(const Progress& progress, const optim::OptimizerState& state,
                    const std::string& masters) {
  if (!log_) return;
  MetricsRecord record{.type = RecordType::end};
  record.iter = progress.iteration;
  record.applied = state.applied_steps;
  record.skipped = state.skipped_steps;
  record.masters = masters;
  if (progress.is_validated) {
    record.psnr_y = progress.psnr_y;
    record.bicubic_psnr_y = progress.bicubic_psnr_y;
  }
  append(record);
  log_->finish_bar();
  if (state.skipped_steps > state.applied_steps)
    log_->warning(fmt::format(
        "{} of {} steps were skipped because gradients overflowed at loss scale {:g}; {}",
        state.skipped_steps, state.skipped_steps + state.applied_steps, state.scaler.scale,
        state.scaler.scale <= 1 ? "use a lower --lr, --clip-grad or --warmup-iter"
                                : "use --loss-scale dynamic, by rules that start low (vsr, torch), "
                                  "or a smaller number"));
  log_->message(fmt::format("masters {}", masters));
  if (progress.is_validated)
    log_->message(fmt::format("held-out PSNR-Y {:.2f} dB, bicubic {:.2f} dB, gain {:+.2f} dB",
                              progress.psnr_y, progress.bicubic_psnr_y,
                              progress.psnr_y - progress.bicubic_psnr_y));
}

}  // namespace vsr::runtime
