// SPDX-License-Identifier: Apache-2.0
// Lone ranks are refused, and nothing else is, in the environments that launchers leave.
#include "comm/launch_guard.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "comm/error.hpp"
#include "comm/memory_room.hpp"

namespace vsr::comm {
namespace {

using Variables = std::map<std::string, std::string>;

// Message of the refusal, or empty.
std::string refusal(int world, const Variables& variables) {
  try {
    refuse_lone_ranks(world, [&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    return {};
  } catch (const ConfigurationError& error) {
    return error.what();
  }
}

TEST(LaunchGuard, SrunThatMpiDoesNotRecognise) {
  const std::string text = refusal(1, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  EXPECT_NE(text.find("8 processes"), std::string::npos) << text;
  EXPECT_NE(text.find("SLURM_STEP_NUM_TASKS"), std::string::npos) << text;
  EXPECT_NE(text.find("srun --mpi=pmix"), std::string::npos) << text;
  EXPECT_NE(refusal(1, {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}), "");
}

TEST(LaunchGuard, OtherLaunchers) {
  EXPECT_NE(refusal(1, {{"PMI_SIZE", "4"}}).find("PMI_SIZE"), std::string::npos);
  EXPECT_NE(refusal(1, {{"OMPI_COMM_WORLD_SIZE", "4"}}).find("mpirun"), std::string::npos);
}

TEST(LaunchGuard, LetsRealWorldsPass) {
  EXPECT_EQ(refusal(8, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}}), "");
  EXPECT_EQ(refusal(4, {{"OMPI_COMM_WORLD_SIZE", "4"}}), "");
  EXPECT_EQ(refusal(1, {}), "");
}

TEST(LaunchGuard, LetsOneRankPassWhereOneWasStarted) {
  EXPECT_EQ(refusal(1, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), "");
  // A batch script of 8 tasks runs outside any step until it calls srun.
  EXPECT_EQ(refusal(1, {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}), "");
  // mpirun -np 1 within a step of several tasks: the nearest launcher counts.
  EXPECT_EQ(refusal(1, {{"OMPI_COMM_WORLD_SIZE", "1"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NUM_TASKS", "8"}}),
            "");
}

TEST(LaunchGuard, IgnoresWhatIsNoNumber) {
  EXPECT_EQ(refusal(1, {{"PMI_SIZE", "many"}, {"OMPI_COMM_WORLD_SIZE", ""}}), "");
}

class MemoryRoomTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / "vsr_memory_room";
    std::filesystem::create_directories(root_ / "proc");
    std::filesystem::create_directories(root_ / "sys/fs/cgroup");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(root_ / file) << text;
  }
  std::uint64_t room() const { return available_memory_bytes(root_.string() + "/"); }
  std::filesystem::path root_;
};

TEST_F(MemoryRoomTest, SmallerOfKernelAndContainer) {
  EXPECT_EQ(room(), std::numeric_limits<std::uint64_t>::max()) << "nothing known";
  write("proc/meminfo", "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\n");
  EXPECT_EQ(room(), 1000u * 1024);
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(room(), 1000u * 1024);
  write("sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(room(), 4096u);
}

}  // namespace
}  // namespace vsr::comm
