// SPDX-License-Identifier: Apache-2.0
// vsr: what one does with clips and checkpoints outside training. Needs no MPI.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "comm/counted.hpp"
#include "comm/error.hpp"
#include "fmt/format.h"
#include "launch/checkpoint_command.hpp"
#include "launch/command_line.hpp"
#include "launch/options.hpp"
#include "launch/program.hpp"
#include "launch/train_setup.hpp"
#include "launch/upscale.hpp"
#include "launch/version.hpp"
#include "launch/watch.hpp"
#include "runtime/video/test_clip.hpp"
#include "runtime/video/video_writer.hpp"

namespace vsr::launch {
namespace {

namespace po = boost::program_options;

constexpr const char* kUsage =
    "vsr upscale CHECKPOINT IN OUT    enlarge a clip with a trained network\n"
    "vsr testclip OUT                 make a moving test clip from a seed\n"
    "vsr checkpoint COMMAND           look at checkpoints, check, convert and delete them\n"
    "vsr flight RUN                   tell where the ranks of a run stood when it hung or died\n"
    "vsr --version\n\n"
    "vsr COMMAND --help tells the options of a command.\n";

std::optional<runtime::Weights> weights_asked_for(const po::variables_map& values) {
  if (values.count("weights") == 0) return std::nullopt;
  const std::string name = values["weights"].as<std::string>();
  for (const auto weights : {runtime::Weights::masters, runtime::Weights::ema})
    if (name == to_string(weights)) return weights;
  throw UsageError(fmt::format("--weights: got \"{}\", expected masters or ema", name));
}

int run_upscale(const std::vector<std::string>& arguments) {
  Command command{"vsr upscale CHECKPOINT IN OUT",
                  po::options_description("Options"),
                  {"CHECKPOINT", "IN", "OUT"}};
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command.options.add_options()("help,h", "this text")(
      "precision", po::value<std::string>(), "fp32, fp16, bf16 or amp (default: as trained)")(
      "weights", po::value<std::string>(),
      "masters, or ema: their moving average (default: ema where it was kept)")(
      "threads", po::value<int>()->default_value(cores), "threads to compute with");
  const po::variables_map values = parse(command, arguments);
  if (print_help(command, values)) return 0;
  const int threads = values["threads"].as<int>();
  if (threads < 1)
    throw UsageError(fmt::format("--threads {}: expected a number from 1 on", threads));

  UpscaleOptions options{values["CHECKPOINT"].as<std::string>(), values["IN"].as<std::string>(),
                         values["OUT"].as<std::string>(), std::nullopt, weights_asked_for(values)};
  if (values.count("precision") > 0)
    options.precision = runtime::precision_from_name(values["precision"].as<std::string>());
  set_up_process(threads);
  const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  const UpscaleResult result = upscale(options, [&](std::int64_t done, std::int64_t total) {
    if (is_terminal) fmt::print(stderr, "\r{}/{} frames{}", done, total, done == total ? "\n" : "");
  });
  fmt::print("{} written to {} with the network of iteration {} (weights: {})\n",
             counted(result.frames, "frame"), options.output.string(), result.iteration,
             to_string(result.weights));
  return 0;
}

int run_testclip(const std::vector<std::string>& arguments) {
  Command command{"vsr testclip OUT", po::options_description("Options"), {"OUT"}};
  command.options.add_options()("help,h", "this text")(
      "seed", po::value<std::uint64_t>()->default_value(0), "what the clip is made from")(
      "frames", po::value<std::int64_t>()->default_value(96), "frames, at 25 a second")(
      "height", po::value<std::int64_t>()->default_value(360), "pixels")(
      "width", po::value<std::int64_t>()->default_value(640), "pixels");
  const po::variables_map values = parse(command, arguments);
  if (print_help(command, values)) return 0;
  const runtime::TestClipOptions options{
      values["seed"].as<std::uint64_t>(), values["frames"].as<std::int64_t>(),
      values["height"].as<std::int64_t>(), values["width"].as<std::int64_t>()};
  for (const char* name : {"frames", "height", "width"})
    if (values[name].as<std::int64_t>() < 1)
      throw UsageError(fmt::format("--{} {}: expected a number from 1 on", name,
                                   values[name].as<std::int64_t>()));
  const std::string out = values["OUT"].as<std::string>();
  const auto writer = runtime::open_writer(out, {25, 1});
  for (std::int64_t frame = 0; frame < options.frames; ++frame)
    writer->write(runtime::make_test_frame(options, frame));
  writer->finish();
  fmt::print("{} of {}x{} written to {}\n", counted(options.frames, "frame"), options.width,
             options.height, out);
  return 0;
}

int program(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "--help" : arguments.front();
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (command == "upscale") return run_upscale(rest);
  if (command == "testclip") return run_testclip(rest);
  if (command == "checkpoint") return run_checkpoint_command(rest);
  if (command == "flight") return run_flight_command(rest);
  if (command == "--version") {
    std::fputs(version_text().c_str(), stdout);
    return 0;
  }
  if (command == "--help" || command == "-h") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const std::vector<std::string> commands = {"upscale", "testclip", "checkpoint", "flight"};
  const std::string near = nearest_name(command, commands);
  throw UsageError(fmt::format("unknown command {}{}; vsr --help lists the commands", command,
                               near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace
}  // namespace vsr::launch

int main(int argc, char** argv) {
  return vsr::launch::run_program("vsr", [&] { return vsr::launch::program(argc, argv); });
}
