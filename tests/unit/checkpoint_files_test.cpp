// SPDX-License-Identifier: Apache-2.0
// File calls, their injected failures, the lock of a run and the look at its folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "comm/error.hpp"
#include "runtime/checkpoint/file_faults.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/run_folder.hpp"
#include "runtime/checkpoint/run_lock.hpp"
#include "tests/support/checkpoint_samples.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using test::expect_in;
using test::hidden_names;
using test::message_of;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

class HookGuard {
 public:
  explicit HookGuard(FaultHook hook) { set_fault_hook(std::move(hook)); }
  ~HookGuard() { set_fault_hook({}); }
};

TEST(Files, WritesAndReplacesAtomically) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "LATEST";
  write_file_atomically(path, "first\n");
  EXPECT_EQ(read_bytes(path), "first\n");
  write_file_atomically(path, "second\n");
  EXPECT_EQ(read_bytes(path), "second\n");
  EXPECT_TRUE(hidden_names(folder.path()).empty());
}

// Long enough that the disk begins before the end, in order and not.
TEST(Files, WritesLongFilesInAnyOrder) {
  constexpr std::int64_t kPart = std::int64_t{3} << 20;
  constexpr std::int64_t kParts = 16;
  const TemporaryFolder folder;
  OutputFile file(folder.path() / "long");
  file.allocate(kPart * kParts);
  const auto write = [&](std::int64_t part) {
    const std::vector<std::byte> bytes(kPart, static_cast<std::byte>(part + 1));
    file.write_at(bytes, part * kPart);
  };
  for (std::int64_t part = 0; part < kParts / 2; ++part) write(part);
  for (std::int64_t part = kParts - 1; part >= kParts / 2; --part) write(part);
  file.sync_and_close();

  const std::string bytes = read_bytes(folder.path() / "long");
  ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), kPart * kParts);
  for (std::int64_t part = 0; part < kParts; ++part) {
    const std::string_view piece =
        std::string_view(bytes).substr(static_cast<std::size_t>(part * kPart), kPart);
    EXPECT_EQ(piece.find_first_not_of(static_cast<char>(part + 1)), std::string_view::npos) << part;
  }
}

TEST(Files, EachFailureOfAnAtomicWriteLeavesOldOrNew) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "LATEST";
  write_file_atomically(path, "old");
  int failures = 0;
  for (int fail_at = 1;; ++fail_at) {
    int seen = 0;
    bool has_thrown = false;
    {
      const HookGuard guard(
          [&](FileOperation, const fs::path&) { return ++seen == fail_at ? ENOSPC : 0; });
      try {
        write_file_atomically(path, "new");
      } catch (const IoError& error) {
        has_thrown = true;
        expect_in("No space left on device", error.what());
      }
    }
    EXPECT_TRUE(hidden_names(folder.path()).empty()) << fail_at;
    if (!has_thrown) break;
    ++failures;
    // Only the sync of the folder comes after the rename.
    EXPECT_EQ(read_bytes(path), fail_at == 5 ? "new" : "old") << fail_at;
  }
  EXPECT_EQ(failures, 5);  // open, write, fsync, rename, fsync of the folder
}

TEST(Files, NamesFileAndReason) {
  const TemporaryFolder folder;
  const fs::path missing = folder.path() / "no" / "file";
  expect_in("No such file or directory", message_of<IoError>([&] { write_new_file(missing, ""); }));
  expect_in(missing.string(), message_of<IoError>([&] { fsync_folder(missing); }));
  expect_in("is missing", message_of<CheckpointError>([&] { InputFile file(missing); }));
  write_new_file(folder.path() / "short", "abc");
  expect_in("File exists",
            message_of<IoError>([&] { write_new_file(folder.path() / "short", "abc"); }));
  std::vector<std::byte> bytes(4);
  expect_in("ends at byte 3", message_of<CheckpointError>(
                                  [&] { InputFile(folder.path() / "short").read_at(bytes, 0); }));
  expect_in("expected at most 2 bytes",
            message_of<CheckpointError>([&] { read_file(folder.path() / "short", 2); }));
  EXPECT_EQ(read_file(folder.path() / "short", 3), "abc");
  expect_in("File exists", message_of<IoError>([&] { create_folder(folder.path() / "short"); }));
}

TEST(Files, FileSizeLimitIsAnError) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_new_file(folder.path() / "large", std::string(5000, 'x'));
      ::_exit(1);
    } catch (const IoError& error) {
      ::_exit(std::string(error.what()).find("File too large") == std::string::npos ? 2 : 0);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Files, SaysSizesInWords) {
  EXPECT_EQ(readable_size(999), "999 bytes");
  EXPECT_EQ(readable_size(12'300'000), "12.3 MB");
  EXPECT_EQ(readable_size(4'000'000'000), "4.0 GB");
}

TEST(RunLock, RefusesASecondRunAndGoesAway) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "a" / "run";
  {
    const RunLock lock(run);
    EXPECT_TRUE(lock.notice().empty());
    const auto entry = nlohmann::json::parse(read_bytes(run / "LOCK"));
    EXPECT_EQ(entry.at("pid"), static_cast<long>(::getpid()));
    const std::string message = message_of<ConfigurationError>([&] { RunLock second(run); });
    expect_in("is in use", message);
    expect_in("process " + std::to_string(::getpid()), message);
    expect_in((run / "LOCK").string(), message);
  }
  EXPECT_FALSE(fs::exists(run / "LOCK"));
  EXPECT_TRUE(RunLock(run).notice().empty());
}

TEST(RunLock, MovesWithoutReleasing) {
  const TemporaryFolder folder;
  RunLock first(folder.path());
  {
    const RunLock second = std::move(first);
    EXPECT_TRUE(fs::exists(folder.path() / "LOCK"));
    EXPECT_EQ(second.run_folder(), folder.path());
  }
  EXPECT_FALSE(fs::exists(folder.path() / "LOCK"));
}

TEST(RunLock, TakesOverFromADeadProcess) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    new RunLock(folder.path());  // never destroyed: it dies like after SIGKILL
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(fs::exists(folder.path() / "LOCK"));
  const RunLock lock(folder.path());
  expect_in("process " + std::to_string(child) + " is dead", lock.notice());
}

TEST(RunLock, TakesOverFromAProcessThatNobodyWaitedFor) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    new RunLock(folder.path());
    ::_exit(0);
  }
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // dead, still a zombie
  expect_in("is dead", RunLock(folder.path()).notice());
  ::waitpid(child, nullptr, 0);
}

TEST(RunLock, KnowsAReusedProcessNumber) {
  const TemporaryFolder folder;
  nlohmann::json entry;
  {
    const RunLock lock(folder.path());
    entry = nlohmann::json::parse(read_bytes(folder.path() / "LOCK"));
  }
  entry["start_ticks"] = "1";
  write_bytes(folder.path() / "LOCK", entry.dump());
  EXPECT_FALSE(RunLock(folder.path()).notice().empty());
}

TEST(RunLock, RefusesAnotherHostButNotTheSameJobStartedAnew) {
  const TemporaryFolder folder;
  nlohmann::json entry;
  {
    const RunLock lock(folder.path());
    entry = nlohmann::json::parse(read_bytes(folder.path() / "LOCK"));
  }
  entry["host"] = "elsewhere";
  entry["job"] = "4711";
  write_bytes(folder.path() / "LOCK", entry.dump());
  expect_in("host elsewhere", message_of<ConfigurationError>([&] { RunLock lock(folder.path()); }));
  ::setenv("SLURM_JOB_ID", "4711", 1);
  EXPECT_THROW(RunLock lock(folder.path()), ConfigurationError);
  ::setenv("SLURM_RESTART_COUNT", "1", 1);
  expect_in("job 4711", RunLock(folder.path()).notice());
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
}

TEST(RunLock, RefusesALockItCannotRead) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "LOCK", "{broken");
  expect_in("cannot be read", message_of<ConfigurationError>([&] { RunLock lock(folder.path()); }));
}

TEST(RunLock, FullDiskIsAnIoErrorAndLeavesNoLock) {
  const TemporaryFolder folder;
  const HookGuard guard([](FileOperation operation, const fs::path&) {
    return operation == FileOperation::write ? ENOSPC : 0;
  });
  EXPECT_THROW(RunLock lock(folder.path()), IoError);
  EXPECT_FALSE(fs::exists(folder.path() / "LOCK"));
}

TEST(RunFolder, ProbesForWritingAndRoom) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "new" / "run";
  probe_writable(run, 1000);
  EXPECT_TRUE(fs::is_directory(run));
  EXPECT_TRUE(hidden_names(run).empty());
  const std::string message =
      message_of<IoError>([&] { probe_writable(run, std::int64_t{1} << 60); });
  expect_in(run.string(), message);
  expect_in("no space left: needs 1152921.5 TB, ", message);
  expect_in(" free", message);
  write_bytes(folder.path() / "file", "");
  expect_in("cannot be written",
            message_of<IoError>([&] { probe_writable(folder.path() / "file" / "run", 0); }));
  const HookGuard guard([](FileOperation operation, const fs::path&) {
    return operation == FileOperation::fsync ? EROFS : 0;
  });
  expect_in("Read-only file system", message_of<IoError>([&] { probe_writable(run, 0); }));
  EXPECT_TRUE(hidden_names(run).empty());
}

TEST(RunFolder, RemovesLeftoversOfDeadRuns) {
  const TemporaryFolder folder;
  const fs::path run = folder.path();
  EXPECT_FALSE(holds_a_run(run));
  const fs::path step = test::write_sample(run, 40, 2);
  const fs::path ckpt = run / "ckpt";
  EXPECT_TRUE(holds_a_run(run));
  fs::create_directories(ckpt / ".tmp-step_00000050-host-1-0");
  write_bytes(ckpt / ".tmp-step_00000050-host-1-0" / "shard_00000-of-00001.h5", "half");
  write_bytes(ckpt / ".tmp-LATEST-77", "step");
  fs::create_directories(ckpt / ".trash-step_00000010-5");
  fs::copy(step, ckpt / ".replaced-step_00000040");
  fs::rename(step, ckpt / ".replaced-step_00000030");
  const RunLock lock(run);
  const std::vector<std::string> notices = remove_leftovers(lock);
  EXPECT_EQ(notices.size(), 5U);
  EXPECT_TRUE(hidden_names(ckpt).empty());
  EXPECT_TRUE(fs::exists(ckpt / "step_00000030" / "MANIFEST.json"));
  EXPECT_TRUE(fs::exists(ckpt / "step_00000040" / "MANIFEST.json"));
  EXPECT_TRUE(remove_leftovers(lock).empty());
}

}  // namespace
}  // namespace vsr::runtime
