// SPDX-License-Identifier: Apache-2.0
// Cases that fail on purpose, each chosen by mpi_main_test.sh with a filter: what main() of the
// mpirun tests makes of them is the test.
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/mpi_world.hpp"

namespace {

using vsr::test::world;

TEST(MpiMain, Passes) {
  world().barrier();
}

TEST(MpiMain, LastRankExpectsInVain) {
  world().barrier();
  EXPECT_NE(world().rank(), world().world() - 1) << "told by the last rank";
  world().barrier();
}

TEST(MpiMain, LastRankThrows) {
  if (world().rank() == world().world() - 1) throw std::runtime_error("thrown by the last rank");
  world().barrier();
}

TEST(MpiMain, LastRankHangs) {
  if (world().rank() == world().world() - 1) std::this_thread::sleep_for(std::chrono::minutes(5));
  world().barrier();
}

}  // namespace
