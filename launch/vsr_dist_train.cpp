// SPDX-License-Identifier: Apache-2.0
// vsr_dist_train: train a video super-resolution network on the ranks of an MPI job.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"
#include "fmt/format.h"
#include "launch/plan.hpp"
#include "launch/program.hpp"
#include "launch/run_folder_setup.hpp"
#include "launch/train_setup.hpp"
#include "launch/version.hpp"
#include "launch/watch.hpp"
#include "optim/kernels.hpp"
#include "runtime/log/format.hpp"

namespace vsr::launch {
namespace {

constexpr std::string_view kProgram = "vsr_dist_train";

void print_on_rank_0(const comm::Communicator& world, const std::string& text) {
  if (world.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// All ranks have to hold `text`, or none starts: what differs would only show as a hang or as
/// wrong numbers.
void require_same(comm::Communicator& world, std::string_view what, const std::string& text) {
  const std::string first = world.broadcast_string(text, 0);
  world.agree_all_ok("comparing ranks", [&] {
    if (text == first) return;
    throw ConfigurationError(
        fmt::format("rank {} on {} has other {} than rank 0:\n{}\nrank 0 has:\n{}", world.rank(),
                    world.host(), what, text, first));
  });
}

TrainOptions agree_options(const std::vector<std::string>& arguments, comm::Communicator& world) {
  TrainOptions options;
  world.agree_all_ok("reading the options", [&] { options = parse_train_options(arguments); });
  require_same(world, "options", write_config(options));
  std::string machine;
  world.agree_all_ok("looking at the processor", [&] {
    machine = fmt::format("{}kernels {}, LibTorch {}", version_text(),
                          optim::isa_name(optim::active_isa()), at::get_cpu_capability());
  });
  require_same(world, "programs or processors", machine);
  return options;
}

comm::Backend backend_of(Backend backend) {
  switch (backend) {
    case Backend::mpi:
      return comm::Backend::mpi;
    case Backend::nccl:
      return comm::Backend::nccl;
    case Backend::automatic:
      break;
  }
  return comm::Backend::automatic;
}

// "4 ranks on 2 nodes"; of one node it says nothing. Collective.
std::string ranks_text(comm::Communicator& world) {
  std::vector<int> first_ranks = world.all_gather(world.node_ranks().front());
  std::ranges::sort(first_ranks);
  const auto nodes = std::unique(first_ranks.begin(), first_ranks.end()) - first_ranks.begin();
  const std::string ranks = counted(world.world(), "rank");
  return nodes == 1 ? ranks : fmt::format("{} on {} nodes", ranks, nodes);
}

void report_start(runtime::RunReport& report, const TrainOptions& options,
                  comm::Communicator& world, const std::string& plan,
                  const std::vector<std::string>& warnings) {
  report.message(fmt::format("vsr_dist {}: {}, backend {}, {} precision, {} reduction, {}",
                             source_commit(), ranks_text(world), world.backend(),
                             to_string(options.precision), to_string(options.reduction),
                             options.out));
  for (const std::string& warning : warnings) report.warning(warning);
  std::string_view rest = plan;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size() - 1);
    report.message(std::string(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
}

int train_program(const std::vector<std::string>& arguments, comm::MpiEnvironment& mpi,
                  comm::Communicator& first_world) {
  TrainOptions options = agree_options(arguments, first_world);
  mpi.limit_end(std::chrono::seconds(options.timeout_s));
  std::unique_ptr<comm::Communicator> chosen;
  first_world.agree_all_ok("choosing a backend",
                           [&] { chosen = comm::make_communicator(backend_of(options.backend)); });
  comm::Communicator& world = *chosen;
  auto start_watch = std::make_unique<StartWatch>(options, world);
  runtime::SignalRequests signals;  // from here on a request waits for the first step
  set_up_process(options.threads);
  if (!options.dry_run) check_resume_choice(options, world);
  const std::string leaves_notice = adopt_saved_leaves(options, world);

  runtime::WindowDataset data = open_data(options, world);
  require_same(world, "clips", data.describe());
  const runtime::Sampler sampler = make_sampler(options, data.window_count());
  runtime::Fp16Module<runtime::VsrNet> net(runtime::make_network(model_options(options)),
                                           precision_of(options.precision));
  const std::int64_t parameters = runtime::parameter_count(net.net());
  const std::string plan = describe_plan(options, data, parameters, world.world());
  if (options.dry_run) {
    print_on_rank_0(world, plan);
    return static_cast<int>(ExitCode::ok);
  }

  // Before the folder is written: a start that fails leaves nothing that looks like a run.
  const auto optimizer = make_optimizer(options, net, world);
  const auto arrays = static_cast<std::int64_t>(optimizer->shard().arrays.size());
  const OpenRunFolder folder = open_run_folder(
      options, parameters * arrays * static_cast<std::int64_t>(sizeof(float)), world);
  runtime::CheckpointStore store(options.out, world);
  const nlohmann::json configuration = configuration_of(options, data);
  Start start = resume(options, configuration, store, *optimizer, net.named_buffers());
  start.warnings.insert(start.warnings.begin(), folder.notices.begin(), folder.notices.end());
  if (!start_watch->notice().empty()) start.warnings.push_back(start_watch->notice());
  if (!leaves_notice.empty()) start.warnings.push_back(leaves_notice);
  for (const std::string& notice : world.all_gather_strings(optimizer->shared_memory_notice()))
    if (std::find(start.warnings.begin(), start.warnings.end(), notice) == start.warnings.end() &&
        !notice.empty())
      start.warnings.push_back(notice);

  runtime::RunReport report = open_report(options, world);
  report_start(report, options, world, plan, start.warnings);
  for (const std::string& message : start.messages) report.message(message);
  report.start(start.progress, world.world(), optimizer->masters_hash());

  start_watch.reset();
  const auto watchdog = start_watching(options, world);
  return static_cast<int>(runtime::train({.world = world,
                                          .data = data,
                                          .sampler = sampler,
                                          .net = net,
                                          .loss = runtime::make_loss(options.loss),
                                          .optimizer = *optimizer,
                                          .store = store,
                                          .report = report,
                                          .signals = signals,
                                          .run_folder = options.out,
                                          .configuration = configuration},
                                         loop_options(options), start.progress));
}

/// Whether a launcher made this process rank 0, known before MPI starts; true without a launcher.
bool is_first_of_job() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

/// --help and --version need no MPI; true when one of them was asked for and answered.
bool answer_without_mpi(const std::vector<std::string>& arguments) {
  const auto asks_for = [&](std::string_view name) {
    return std::find(arguments.begin(), arguments.end(), name) != arguments.end();
  };
  const bool asks_for_help = asks_for("--help") || asks_for("-h");
  if (!asks_for_help && !asks_for("--version")) return false;
  const std::string text =
      asks_for_help ? train_help_text(runtime::terminal_width(STDOUT_FILENO)) : version_text();
  if (is_first_of_job()) std::fputs(text.c_str(), stdout);
  return true;
}

int program(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (answer_without_mpi(arguments)) return 0;
  comm::MpiEnvironment mpi(argc, argv);
  const auto world = comm::make_communicator(comm::Backend::mpi);
  return run_rank(kProgram, world->rank(), [&] { return train_program(arguments, mpi, *world); });
}

}  // namespace
}  // namespace vsr::launch

int main(int argc, char** argv) {
  return vsr::launch::run_program(vsr::launch::kProgram,
                                  [&] { return vsr::launch::program(argc, argv); });
}
