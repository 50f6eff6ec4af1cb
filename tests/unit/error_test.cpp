// SPDX-License-Identifier: Apache-2.0
#include "comm/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "comm/counted.hpp"

namespace vsr {
namespace {

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(12000, "step"), "12000 steps");
}

TEST(Error, EachTypeHasItsExitCode) {
  EXPECT_EQ(ArgumentError("").exit_code(), ExitCode::internal);
  EXPECT_EQ(UsageError("").exit_code(), ExitCode::usage);
  EXPECT_EQ(DataError("").exit_code(), ExitCode::data);
  EXPECT_EQ(CheckpointError("").exit_code(), ExitCode::data);
  EXPECT_EQ(IoError("").exit_code(), ExitCode::io);
  EXPECT_EQ(Hdf5Error("").exit_code(), ExitCode::io);
  EXPECT_EQ(CommError("").exit_code(), ExitCode::communication);
  EXPECT_EQ(ConfigurationError("").exit_code(), ExitCode::configuration);
  EXPECT_EQ(DivergedError("").exit_code(), ExitCode::diverged);
  EXPECT_EQ(NotCompiled("x", "y").exit_code(), ExitCode::configuration);
  EXPECT_EQ(AgreedError(ExitCode::io, "", 3).exit_code(), ExitCode::io);
}

TEST(Error, NumbersThatScriptsActOn) {
  EXPECT_EQ(static_cast<int>(ExitCode::ok), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::usage), 64);
  EXPECT_EQ(static_cast<int>(ExitCode::data), 65);
  EXPECT_EQ(static_cast<int>(ExitCode::internal), 70);
  EXPECT_EQ(static_cast<int>(ExitCode::io), 74);
  EXPECT_EQ(static_cast<int>(ExitCode::communication), 75);
  EXPECT_EQ(static_cast<int>(ExitCode::configuration), 78);
  EXPECT_EQ(static_cast<int>(ExitCode::stopped), 85);
  EXPECT_EQ(static_cast<int>(ExitCode::diverged), 86);
}

TEST(Error, KeepsMessageAndPlace) {
  const DataError error("clip.mp4: no video stream");
  EXPECT_STREQ(error.what(), "clip.mp4: no video stream");
  EXPECT_EQ(error.where().rfind("error_test.cpp:", 0), 0u) << error.where();
  EXPECT_EQ(AgreedError(ExitCode::io, "disk full", 3).rank(), 3);
}

TEST(Error, NotCompiledNamesFunctionAndModule) {
  EXPECT_STREQ(NotCompiled("backend nccl", "NCCL").what(),
               "backend nccl needs NCCL, which this build lacks");
}

TEST(Check, ThrowsTheMessageAndTheLineWhenTheConditionFails) {
  const int got = 3;
  EXPECT_NO_THROW(VSR_CHECK(got == 3, "never seen"));
  try {
    VSR_CHECK(got == 4, "got " + std::to_string(got));
    FAIL() << "nothing thrown";
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "got 3");
    EXPECT_EQ(error.where().rfind("error_test.cpp:", 0), 0u) << error.where();
  }
}

}  // namespace
}  // namespace vsr
