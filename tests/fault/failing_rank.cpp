// SPDX-License-Identifier: Apache-2.0
// A program as ours are built, in which rank 1 fails in the middle while the others wait for it.
// Usage: failing_rank alone|agreed|foreign|none EXIT_CODE
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"

namespace {

using vsr::comm::MpiEnvironment;

void work(vsr::comm::Communicator& world, std::string_view mode, vsr::ExitCode code) {
  const auto fail = [&] {
    if (world.rank() != 1 || mode == "none") return;
    if (mode == "foreign") throw std::runtime_error("the reason");
    throw vsr::Error(code, "the reason");
  };
  for (int step = 0; step < 20; ++step) {
    world.barrier();
    if (step != 10) continue;
    if (mode == "agreed") {
      world.agree_all_ok("step 10", fail);
    } else {
      fail();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  try {
    MpiEnvironment mpi(argc, argv);
    try {
      const auto world = vsr::comm::make_communicator(vsr::comm::Backend::automatic);
      work(*world, argv[1], static_cast<vsr::ExitCode>(std::atoi(argv[2])));
      return 0;
    } catch (const vsr::AgreedError& error) {  // all ranks are here: leave in order
      const auto world = vsr::comm::make_communicator(vsr::comm::Backend::automatic);
      if (world->rank() == 0) std::fprintf(stderr, "error: %s\n", error.what());
      return static_cast<int>(error.exit_code());
    }
  } catch (const vsr::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    MpiEnvironment::abort(static_cast<int>(error.exit_code()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    MpiEnvironment::abort(static_cast<int>(vsr::ExitCode::internal));
  }
}
