// SPDX-License-Identifier: Apache-2.0
// main() of all GoogleTest programs that run under mpirun. GoogleTest alone would print every line
// once per rank, lose the failures of other ranks in the noise, and wait for ever when one rank
// leaves a case early while the others are in a collective.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi_environment.hpp"
#include "comm/mpi_handles.hpp"
#include "tests/support/mpi_world.hpp"

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kTestsFailed = 1;
constexpr int kHang = 75;
std::shared_ptr<vsr::comm::Communicator> shared_world;

seconds seconds_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return seconds(text == nullptr ? otherwise : std::atoi(text));
}

void say(int rank, const std::string& text) {
  const std::string line = "[rank " + std::to_string(rank) + "] " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// Ends the job when one case runs for too long.
class Watchdog {
 public:
  explicit Watchdog(int rank)
      : rank_(rank),
        limit_(seconds_from_environment("VSR_TEST_WATCHDOG_S", 30)),
        thread_([this] { watch(); }) {}
  ~Watchdog() {
    is_done_ = true;
    thread_.join();
  }

  void start(const std::string& name) {
    const std::lock_guard lock(mutex_);
    name_ = name;
    since_ = steady_clock::now();
  }
  void stop() { start(""); }

 private:
  void watch() {
    while (!is_done_) {
      std::this_thread::sleep_for(milliseconds(50));
      const std::lock_guard lock(mutex_);
      if (name_.empty() || steady_clock::now() - since_ < limit_) continue;
      say(rank_, name_ + " still runs after " + std::to_string(limit_.count()) +
                     " s (VSR_TEST_WATCHDOG_S); ending the job");
      vsr::comm::MpiEnvironment::abort(kHang);
    }
  }

  int rank_;
  seconds limit_;
  std::mutex mutex_;
  std::string name_;
  steady_clock::time_point since_;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

// Keeps the ranks together from case to case and brings all failures to rank 0.
class RankListener : public testing::EmptyTestEventListener {
 public:
  RankListener(MPI_Comm comm, Watchdog& watchdog) : comm_(comm), watchdog_(watchdog) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &world_);
  }

  void OnTestStart(const testing::TestInfo& info) override {
    name_ = std::string(info.test_suite_name()) + "." + info.name();
    failures_.clear();
    watchdog_.start(name_);
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string file = result.file_name() == nullptr ? "unknown file" : result.file_name();
    failures_ += file + ":" + std::to_string(result.line_number()) + ": " + result.message() + "\n";
  }

  // Runs before rank 0 prints the verdict, so what is added here is part of it.
  void OnTestEnd(const testing::TestInfo& info) override {
    meet(info.result()->Failed());
    watchdog_.stop();
    const std::vector<std::string> all = gather(failures_);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (!all[rank].empty()) ADD_FAILURE() << "[rank " << rank << "] " << all[rank];
    }
  }

 private:
  // A rank that failed may have left its peers in a collective of the case: it waits a moment for
  // them and then ends the job, instead of letting them run into the watchdog.
  void meet(bool has_failed) {
    const auto patience = seconds_from_environment("VSR_TEST_GRACE_S", 5);
    const auto start = steady_clock::now();
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(comm_, &request);
    for (int is_complete = 0; is_complete == 0;) {
      MPI_Test(&request, &is_complete, MPI_STATUS_IGNORE);
      if (is_complete != 0) break;
      std::this_thread::sleep_for(milliseconds(1));
      if (!has_failed || steady_clock::now() - start < patience) continue;
      say(rank_,
          name_ + " failed here while other ranks still wait in it; ending the job\n" + failures_);
      vsr::comm::MpiEnvironment::abort(kTestsFailed);
    }
  }

  // What each rank gives, on rank 0; empty elsewhere.
  std::vector<std::string> gather(const std::string& mine) {
    const int size = static_cast<int>(mine.size());
    std::vector<int> sizes(static_cast<std::size_t>(world_));
    MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, comm_);
    std::vector<int> starts(sizes.size() + 1, 0);
    for (std::size_t i = 0; i < sizes.size(); ++i) starts[i + 1] = starts[i] + sizes[i];
    std::string bytes(rank_ == 0 ? static_cast<std::size_t>(starts.back()) : 0, '\0');
    MPI_Gatherv(mine.data(), size, MPI_CHAR, bytes.data(), sizes.data(), starts.data(), MPI_CHAR, 0,
                comm_);
    std::vector<std::string> texts;
    for (std::size_t i = 0; rank_ == 0 && i < sizes.size(); ++i) {
      texts.push_back(
          bytes.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(sizes[i])));
    }
    return texts;
  }

  MPI_Comm comm_;
  Watchdog& watchdog_;
  int rank_ = 0;
  int world_ = 1;
  std::string name_;
  std::string failures_;
};

int run_all(int argc, char** argv) {
  shared_world = vsr::test::make_world();
  const int rank = shared_world->rank();
  MPI_Comm duplicate = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
  const vsr::comm::MpiComm comm(duplicate);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
  }
  Watchdog watchdog(rank);
  listeners.Append(new RankListener(comm.get(), watchdog));
  const int mine = RUN_ALL_TESTS();
  int worst = mine;
  MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, comm.get());
  shared_world->close();
  shared_world.reset();
  return worst;
}

}  // namespace

vsr::comm::Communicator& vsr::test::world() {
  return *shared_world;
}

int main(int argc, char** argv) {
  try {
    vsr::comm::MpiEnvironment mpi(argc, argv);
    return run_all(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "test program: %s\n", error.what());
    vsr::comm::MpiEnvironment::abort(kTestsFailed);
  }
}
