// SPDX-License-Identifier: Apache-2.0
// A program as ours are built, in which rank 1 holds up the others at its tenth step.
// Usage: hanging_rank none|sleep|stop|other|busy FOLDER DEADLINE_MS
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/watchdog.hpp"

namespace {

using vsr::comm::MpiEnvironment;

// What rank 1 does instead of the next call.
void hold_up(vsr::comm::Communicator& world, std::string_view mode,
             std::chrono::milliseconds deadline) {
  if (mode == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
  if (mode == "stop") std::raise(SIGSTOP);
  if (mode == "other") world.all_gather(world.rank());
  for (int i = 0; mode == "busy" && i < 30; ++i) {  // three deadlines of work that can be seen
    world.alive();
    std::this_thread::sleep_for(deadline / 10);
  }
}

void work(vsr::comm::Communicator& world, std::string_view mode,
          std::chrono::milliseconds deadline) {
  const vsr::comm::Communicator::Purpose purpose(world, "step");
  for (int step = 1; step <= 20; ++step) {
    if (step == 10 && world.rank() == 1) hold_up(world, mode, deadline);
    world.barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    MpiEnvironment mpi(argc, argv);
    const auto world = vsr::comm::make_communicator(vsr::comm::Backend::automatic);
    const std::filesystem::path folder = argv[2];
    const std::chrono::milliseconds deadline(std::atoi(argv[3]));
    world->agree_all_ok("making the folder", [&] {
      if (world->rank() == 0) std::filesystem::create_directories(folder);
    });
    world->record_to(std::make_unique<vsr::comm::FlightRecorder>(folder, world->rank(),
                                                                 world->world(), world->host()));
    const vsr::comm::Watchdog watchdog(
        {.folder = folder, .rank = world->rank(), .world = world->world(), .deadline = deadline});
    work(*world, argv[1], deadline);
    return 0;
  } catch (const vsr::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    MpiEnvironment::abort(static_cast<int>(error.exit_code()));
  }
}
