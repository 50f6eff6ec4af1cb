// SPDX-License-Identifier: Apache-2.0
#include "launch/checkpoint_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "launch/command_line.hpp"
#include "launch/option_values.hpp"
#include "launch/options.hpp"
#include "launch/show_checkpoint.hpp"
#include "runtime/checkpoint/export_weights.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/inspect.hpp"
#include "runtime/checkpoint/keeping.hpp"
#include "runtime/checkpoint/new_checkpoint.hpp"
#include "runtime/checkpoint/run_lock.hpp"

namespace vsr::launch {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using Arguments = std::vector<std::string>;
using runtime::CheckpointHeader;

constexpr const char* kUsage =
    "vsr checkpoint show PATH                  what is in a checkpoint\n"
    "vsr checkpoint verify PATH                compare every byte with its checksum\n"
    "vsr checkpoint diff A B                   how two checkpoints differ\n"
    "vsr checkpoint export PATH OUT            weights to a .safetensors or .h5 file\n"
    "vsr checkpoint import WEIGHTS RUN         start of a run from a .safetensors or .pth file\n"
    "vsr checkpoint reshard PATH OUT           cut one for another number of ranks\n"
    "vsr checkpoint prune RUN                  delete old ones\n\n"
    "PATH is a step folder, or a run folder, which stands for its newest usable checkpoint.\n"
    "vsr checkpoint COMMAND --help tells the options of a command.\n";

constexpr int kDifferent = 1;

/// A command line of `vsr checkpoint`; nothing when it asked for help and got it.
std::optional<po::variables_map> values_of(Command& command, const Arguments& arguments) {
  command.options.add_options()("help,h", "this text");
  po::variables_map values = parse(command, arguments);
  if (print_help(command, values)) return std::nullopt;
  return values;
}

std::string text_of(const po::variables_map& values, const std::string& name) {
  return values[name].as<std::string>();
}

/// The value of an option that is a whole number from `low` to `high`.
template <typename T>
T number_of(const po::variables_map& values, const std::string& name, T low, T high) {
  try {
    return whole_number<T>(text_of(values, name), low, high);
  } catch (const BadValue& bad) {
    throw UsageError(fmt::format("--{}: got \"{}\", expected {}", name, bad.got, bad.expected));
  }
}

/// The checkpoint that a path stands for; of newer ones that were passed over the user is told.
CheckpointHeader chosen(const std::string& path) {
  runtime::ChosenCheckpoint checkpoint = runtime::choose_checkpoint(path);
  for (const std::string& reason : checkpoint.passed_over)
    fmt::print(stderr, "passed over {}\n", reason);
  return std::move(checkpoint.header);
}

int show(const Arguments& arguments) {
  Command command{"vsr checkpoint show PATH", po::options_description("Options"), {"PATH"}};
  command.options.add_options()("json", "for machines");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  const nlohmann::json facts = runtime::describe(chosen(text_of(*values, "PATH")));
  if (values->count("json") > 0)
    fmt::print("{}\n", facts.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}", show_text(facts));
  return 0;
}

int verify(const Arguments& arguments) {
  Command command{"vsr checkpoint verify PATH", po::options_description("Options"), {"PATH"}};
  command.options.add_options()("all", "all checkpoints of the run, not only the newest");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  const std::string path = text_of(*values, "PATH");
  std::vector<fs::path> folders = runtime::step_folders_of(path);
  if (folders.empty()) throw CheckpointError("'" + path + "' holds no checkpoint");
  if (values->count("all") == 0) folders.resize(1);
  std::string faults;
  for (const fs::path& folder : folders) {
    try {
      runtime::verify_checkpoint(folder);
      fmt::print("{}: every byte is as it was written\n", folder.string());
    } catch (const CheckpointError& error) {
      if (folders.size() == 1) throw;
      fmt::print("{}: DAMAGED: {}\n", folder.string(), error.what());
      faults += (faults.empty() ? "" : ", ") + folder.filename().string();
    }
  }
  if (!faults.empty()) throw CheckpointError("damaged: " + faults);
  return 0;
}

int diff(const Arguments& arguments) {
  Command command{"vsr checkpoint diff A B", po::options_description("Options"), {"A", "B"}};
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  const CheckpointHeader a = chosen(text_of(*values, "A"));
  const CheckpointHeader b = chosen(text_of(*values, "B"));
  fmt::print("{}, compared with the other, {}:\n", a.folder.string(), b.folder.string());
  const runtime::Comparison comparison = runtime::compare_checkpoints(a, b);
  for (const std::string& line : comparison.differences) fmt::print("  {}\n", line);
  for (const std::string& line : comparison.equal) fmt::print("  {}\n", line);
  fmt::print("{}\n", comparison.is_equal() ? "equal" : "different");
  return comparison.is_equal() ? 0 : kDifferent;
}

int reshard(const Arguments& arguments) {
  Command command{
      "vsr checkpoint reshard PATH OUT", po::options_description("Options"), {"PATH", "OUT"}};
  command.options.add_options()("ranks", po::value<std::string>(),
                                "ranks to cut for; needed, though a run of any number of ranks "
                                "reads any checkpoint");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  if (values->count("ranks") == 0) throw UsageError("--ranks is missing: " + command.usage);
  const int ranks = number_of<int>(*values, "ranks", 1, runtime::kMostRanks);
  const CheckpointHeader header = chosen(text_of(*values, "PATH"));
  runtime::reshard(header, text_of(*values, "OUT"), ranks);
  fmt::print("iteration {}, cut for {}: {}\n", header.snapshot.iteration, counted(ranks, "rank"),
             text_of(*values, "OUT"));
  return 0;
}

int prune(const Arguments& arguments) {
  Command command{"vsr checkpoint prune RUN", po::options_description("Options"), {"RUN"}};
  command.options.add_options()("keep", po::value<std::string>(),
                                "newest valid ones to keep; needed")(
      "every", po::value<std::string>()->default_value("0"),
      "keep those whose iteration is a multiple of this too; 0: no such rule")(
      "best", "keep the one with the best validation too")("dry-run",
                                                           "only say what would be done");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  if (values->count("keep") == 0) throw UsageError("--keep is missing: " + command.usage);
  const runtime::KeepingRules rules{
      number_of<int>(*values, "keep", 1, 1000000),
      number_of<std::int64_t>(*values, "every", 0, std::numeric_limits<std::int64_t>::max()),
      values->count("best") > 0};
  const fs::path run = text_of(*values, "RUN");
  if (runtime::list_checkpoints(run).empty())
    throw CheckpointError("'" + run.string() + "' is no run folder with checkpoints in ckpt/");
  const bool is_dry = values->count("dry-run") > 0;
  std::optional<runtime::RunLock> lock;
  if (!is_dry) lock.emplace(run);
  const std::vector<runtime::KeptOrNot> entries = runtime::decide_keeping(run, rules);
  if (!is_dry) runtime::delete_unkept(run, entries);
  for (const runtime::KeptOrNot& entry : entries) {
    fmt::print("{} {} ({})\n",
               entry.is_kept ? "kept"
               : is_dry      ? "would delete"
                             : "deleted",
               entry.folder.string(), entry.reason);
  }
  return 0;
}

int export_file(const Arguments& arguments) {
  Command command{
      "vsr checkpoint export PATH OUT", po::options_description("Options"), {"PATH", "OUT"}};
  command.options.add_options()("weights", po::value<std::string>()->default_value("masters"),
                                "masters, or ema: their moving average")(
      "dtype", po::value<std::string>()->default_value("fp32"), "fp32 or fp16");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  const std::string weights = text_of(*values, "weights");
  if (weights != "masters" && weights != "ema")
    throw UsageError(fmt::format("--weights: got \"{}\", expected masters or ema", weights));
  const CheckpointHeader header = chosen(text_of(*values, "PATH"));
  const std::string target = text_of(*values, "OUT");
  const runtime::ExportResult result = runtime::export_weights(
      header, target, {weights == "ema" ? "ema" : "master", text_of(*values, "dtype")});
  if (result.overflows > 0)
    fmt::print(stderr, "warning: {} too large for FP16, now infinite\n",
               counted(result.overflows, "value"));
  fmt::print("{} of iteration {} (weights: {}), {}: {}\n", counted(result.tensors, "tensor"),
             header.snapshot.iteration, weights, runtime::readable_size(result.size_bytes), target);
  return 0;
}

int import_file(const Arguments& arguments) {
  Command command{
      "vsr checkpoint import WEIGHTS RUN", po::options_description("Options"), {"WEIGHTS", "RUN"}};
  command.options.add_options()("like", po::value<std::string>(),
                                "checkpoint of the same network, made by a run with the options "
                                "that are wanted; needed")(
      "key", po::value<std::string>()->default_value(""),
      "entry of a .pth that holds the weights (default: params_ema, else params, else all)");
  const auto values = values_of(command, arguments);
  if (!values) return 0;
  if (values->count("like") == 0) throw UsageError("--like is missing: " + command.usage);
  const CheckpointHeader like = chosen(text_of(*values, "like"));
  const fs::path folder = runtime::import_weights(
      text_of(*values, "WEIGHTS"), text_of(*values, "RUN"), like, text_of(*values, "key"));
  fmt::print("{} of {} written to {}\n",
             counted(static_cast<std::int64_t>(like.snapshot.parameters.size()), "parameter"),
             text_of(*values, "WEIGHTS"), folder.string());
  return 0;
}

constexpr std::array<std::pair<const char*, int (*)(const Arguments&)>, 7> kCommands = {
    {{"show", &show},
     {"verify", &verify},
     {"diff", &diff},
     {"export", &export_file},
     {"import", &import_file},
     {"reshard", &reshard},
     {"prune", &prune}}};

}  // namespace

int run_checkpoint_command(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "--help" : arguments.front();
  if (command == "--help" || command == "-h") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Arguments names;
  for (const auto& [name, run] : kCommands) {
    if (command == name) return run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(name);
  }
  const std::string near = nearest_name(command, names);
  throw UsageError(fmt::format("unknown command checkpoint {}{}; vsr checkpoint --help lists them",
                               command, near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace vsr::launch
