// SPDX-License-Identifier: Apache-2.0
#include "launch/run_folder_setup.hpp"

#include <filesystem>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "fmt/format.h"
#include "launch/output_terminal.hpp"
#include "launch/version.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/match_parameters.hpp"
#include "runtime/checkpoint/run_folder.hpp"

namespace vsr::launch {
namespace {

namespace fs = std::filesystem;

runtime::ResumePolicy policy_of(const Resume& resume) {
  using Kind = runtime::ResumePolicy::Kind;
  switch (resume.mode) {
    case ResumeMode::automatic:
      return {Kind::automatic, {}};
    case ResumeMode::must:
      return {Kind::must, {}};
    case ResumeMode::path:
      return {Kind::path, resume.path};
    case ResumeMode::never:
      break;
  }
  throw ArgumentError("a run that resumes nothing has no policy");
}

/// The newest readable header of what --resume would load. Damage is left to the load itself to
/// report.
std::optional<runtime::CheckpointHeader> newest_header(const TrainOptions& options) {
  const std::vector<fs::path> folders = options.resume.mode == ResumeMode::path
                                            ? runtime::step_folders_of(options.resume.path)
                                            : runtime::list_checkpoints(options.out);
  for (const fs::path& folder : folders) {
    try {
      return runtime::read_header(folder);
    } catch (const Error&) {
      continue;
    }
  }
  return std::nullopt;
}

/// What a checkpoint was made with. Those from before there was a choice of optimizers have Adam,
/// and no averages.
nlohmann::json saved_configuration(const runtime::Snapshot& header) {
  nlohmann::json saved = header.state.value("configuration", nlohmann::json::object());
  if (!saved.contains("optimizer")) saved["optimizer"] = to_string(OptimizerKind::adam);
  if (!saved.contains("ema-decay")) saved["ema-decay"] = 0.0;
  return saved;
}

int saved_leaves(const TrainOptions& options) {
  const auto header = newest_header(options);
  if (!header) return options.leaves;
  return saved_configuration(header->snapshot).value("leaves", options.leaves);
}

}  // namespace

void check_resume_choice(const TrainOptions& options, comm::Communicator& world) {
  world.agree_all_ok("looking at the output folder", [&] {
    if (world.rank() != 0) return;
    const bool holds_run = runtime::holds_a_run(options.out);
    const ResumeMode mode = options.resume.mode;
    if (holds_run && (mode == ResumeMode::never || mode == ResumeMode::path))
      throw ConfigurationError(
          fmt::format("{} holds a run already: continue it with --resume auto, or choose another "
                      "folder with --out",
                      options.out));
    if (!holds_run && mode == ResumeMode::must)
      throw CheckpointError(fmt::format("no checkpoint in {}: there is no run", options.out));
    if (mode == ResumeMode::path && runtime::step_folders_of(options.resume.path).empty())
      throw CheckpointError(
          fmt::format("no checkpoint in {}: it is no folder of a checkpoint or a "
                      "run; give one to --resume",
                      options.resume.path));
  });
}

std::string adopt_saved_leaves(TrainOptions& options, comm::Communicator& world) {
  if (options.resume.mode == ResumeMode::never) return {};
  int leaves = options.leaves;
  world.agree_all_ok("reading the number of leaves", [&] {
    if (world.rank() == 0) leaves = saved_leaves(options);
  });
  world.broadcast(std::span<int>(&leaves, 1), 0);
  if (leaves == options.leaves) return {};
  const int asked = std::exchange(options.leaves, leaves);
  return fmt::format("this run has {} per step; --leaves {} is not used",
                     leaves == 1 ? "1 leaf" : fmt::format("{} leaves", leaves), asked);
}

OpenRunFolder open_run_folder(const TrainOptions& options, std::int64_t first_save_bytes,
                              comm::Communicator& world) {
  OpenRunFolder folder;
  world.agree_all_ok("preparing the output folder", [&] {
    if (world.rank() != 0) return;
    const fs::path out(options.out);
    runtime::probe_writable(out, first_save_bytes);
    folder.lock.emplace(out);
    if (!folder.lock->notice().empty()) folder.notices.push_back(folder.lock->notice());
    for (std::string& line : runtime::remove_leftovers(*folder.lock))
      folder.notices.push_back(std::move(line));
  });
  return folder;
}

Start resume(const TrainOptions& options, const nlohmann::json& configuration,
             runtime::CheckpointStore& store, optim::Fp16Optimizer& optimizer,
             const std::vector<optim::NamedBuffer>& buffers) {
  if (options.resume.mode == ResumeMode::never) return {};
  std::vector<std::string> drifted;
  const auto loaded = store.load(
      policy_of(options.resume),
      [&](const runtime::Snapshot& header) -> std::vector<comm::Interval> {
        runtime::match_parameters(runtime::parameter_records(optimizer), header.parameters);
        runtime::match_buffers(runtime::buffer_records(buffers), header.buffers);
        drifted = runtime::match_configuration(saved_configuration(header), configuration,
                                               options.allow_drift);
        const optim::ShardView shard = optimizer.shard();
        runtime::match_arrays(shard.arrays, header.shard);
        return shard.intervals();
      });
  Start start;
  if (!loaded) {
    start.messages = {fmt::format("no checkpoint yet in {}: starting at iteration 0", options.out)};
    return start;
  }
  start.progress = runtime::restore_snapshot(loaded->snapshot, optimizer, buffers);
  start.warnings = loaded->notices;
  for (const std::string& difference : drifted)
    start.warnings.push_back("this run goes on changed: " + difference);
  const optim::OptimizerState state = optimizer.state();
  start.messages = {fmt::format(
      "resumed {} (saved by {}): iteration {}, {} applied, {} skipped, loss scale {:g}",
      loaded->folder.string(), counted(loaded->saved_world, "rank"), start.progress.iteration,
      counted(state.applied_steps, "step"), state.skipped_steps, state.scaler.scale)};
  return start;
}

runtime::RunReport open_report(const TrainOptions& options, comm::Communicator& world) {
  runtime::RunReport report;
  world.agree_all_ok("opening the logs", [&] {
    if (world.rank() != 0) return;
    const fs::path out(options.out);
    runtime::write_file_atomically(out / "config.ini", write_config(options));
    runtime::write_file_atomically(
        out / "env.txt", fmt::format("{}ranks {}\nhost {}\nthreads per rank {}\n", version_text(),
                                     world.world(), world.host(), options.threads));
    report = runtime::RunReport(
        {options.out, options.total_iter, options.print_freq, output_is_terminal()});
  });
  return report;
}

}  // namespace vsr::launch
