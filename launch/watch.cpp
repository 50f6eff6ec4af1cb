// SPDX-License-Identifier: Apache-2.0
#include "launch/watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <system_error>

#include "comm/error.hpp"
#include "comm/flight_recorder.hpp"
#include "launch/command_line.hpp"
#include "runtime/checkpoint/files.hpp"

namespace vsr::launch {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

std::string state_line(const comm::FlightState& state) {
  if (!state.is_readable) return fmt::format("rank {}: no record\n", state.rank);
  const comm::FlightRecord& newest = state.newest;
  const std::string place = newest.sequence == 0  ? "entered no call"
                            : newest.left_ns == 0 ? "is in " + operation_text(newest)
                                                  : "left " + operation_text(newest);
  return comm::rank_text(state) + " " + place + "\n";
}

std::string call_lines(const fs::path& folder, int rank, std::size_t most) {
  const std::vector<comm::FlightRecord> records = comm::flight_records(folder, rank);
  std::string lines;
  for (std::size_t i = records.size() - std::min(most, records.size()); i < records.size(); ++i) {
    const comm::FlightRecord& record = records[i];
    const std::string time =
        record.left_ns == 0
            ? "not left"
            : fmt::format("{:.3f} ms",
                          static_cast<double>(record.left_ns - record.entered_ns) / 1e6);
    lines += fmt::format("  {}, {}\n", operation_text(record), time);
  }
  return lines;
}

bool is_watched(const TrainOptions& options, const comm::Communicator& world) {
  return world.world() > 1 && options.timeout_s > 0;
}

std::unique_ptr<comm::Watchdog> watchdog_of(const comm::Communicator& world, const fs::path& folder,
                                            std::chrono::seconds deadline) {
  return std::make_unique<comm::Watchdog>(comm::Watchdog::Options{.folder = folder,
                                                                  .rank = world.rank(),
                                                                  .world = world.world(),
                                                                  .deadline = deadline,
                                                                  .program = "vsr_dist_train"});
}

/// The first of several reasons why a rank could not; empty where all could.
std::string first_trouble(comm::Communicator& world, const std::function<void()>& action) {
  std::string trouble;
  try {
    action();
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  for (const std::string& text : world.all_gather_strings(trouble))
    if (!text.empty()) return text;
  return "";
}

}  // namespace

StartWatch::StartWatch(const TrainOptions& options, comm::Communicator& world) : world_(world) {
  if (!is_watched(options, world)) return;
  const std::string name =
      fmt::format("vsr_dist-start-{}-{}", world.host(), static_cast<long>(::getpid()));
  folder_ = fs::temp_directory_path() / world.broadcast_string(name, 0);
  std::unique_ptr<comm::FlightRecorder> recorder;
  const std::string trouble = first_trouble(world, [&] {
    runtime::create_folders(folder_);
    recorder =
        std::make_unique<comm::FlightRecorder>(folder_, world.rank(), world.world(), world.host());
  });
  if (!trouble.empty()) {
    notice_ = "the start is not watched, a rank that hangs before the first step holds up all: " +
              trouble;
    return;
  }
  world.record_to(std::move(recorder));
  watchdog_ = watchdog_of(world, folder_, std::chrono::seconds(2 * options.timeout_s));
}

StartWatch::~StartWatch() {
  watchdog_.reset();
  world_.record_to(nullptr);
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::unique_ptr<comm::Watchdog> start_watching(const TrainOptions& options,
                                               comm::Communicator& world) {
  if (!is_watched(options, world)) return nullptr;
  const fs::path folder = fs::path(options.out) / "flight";
  world.agree_all_ok("making the folder of the flight records", [&] {
    if (world.rank() != 0) return;
    std::error_code ignored;
    fs::remove_all(folder, ignored);  // of the last start, maybe on more ranks
    runtime::create_folders(folder);
  });
  std::unique_ptr<comm::FlightRecorder> recorder;
  world.agree_all_ok("making a flight record", [&] {
    recorder =
        std::make_unique<comm::FlightRecorder>(folder, world.rank(), world.world(), world.host());
  });
  world.record_to(std::move(recorder));
  return watchdog_of(world, folder, std::chrono::seconds(options.timeout_s));
}

int run_flight_command(const std::vector<std::string>& arguments) {
  Command command{"vsr flight RUN", po::options_description("Options"), {"RUN"}};
  command.options.add_options()("help,h", "this text")(
      "calls", po::value<int>()->default_value(0), "list so many of the last calls of each rank");
  const po::variables_map values = parse(command, arguments);
  if (print_help(command, values)) return 0;
  const int calls = values["calls"].as<int>();
  if (calls < 0) throw UsageError(fmt::format("--calls {}: expected a number from 0 on", calls));
  const fs::path run = values["RUN"].as<std::string>();
  // Of a job that ended before it had a folder, the message names that of the records.
  const fs::path folder = comm::flight_world(run) > 0 ? run : run / "flight";
  const int world = comm::flight_world(folder);
  if (world == 0)
    throw DataError(fmt::format("'{}' holds no flight records; runs on several ranks make them",
                                folder.string()));
  const std::vector<comm::FlightState> states = comm::read_flight(folder, world);
  for (const comm::FlightState& state : states) {
    std::fputs(state_line(state).c_str(), stdout);
    if (state.is_readable && calls > 0)
      std::fputs(call_lines(folder, state.rank, static_cast<std::size_t>(calls)).c_str(), stdout);
  }
  fmt::print("{}\n", comm::who_is_missing(states, std::nullopt));
  return 0;
}

}  // namespace vsr::launch
