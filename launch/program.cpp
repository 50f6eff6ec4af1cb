// SPDX-License-Identifier: Apache-2.0
#include "launch/program.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/processes.hpp"

namespace vsr::launch {
namespace {

struct Failure {
  int code = static_cast<int>(ExitCode::internal);
  std::string message;
  bool is_agreed = false;
};

bool is_fault_of_ours(ExitCode code) {
  return code == ExitCode::internal || code == ExitCode::communication;
}

Failure current_failure() {
  try {
    throw;
  } catch (const AgreedError& error) {
    return {static_cast<int>(error.exit_code()), error.what(), true};
  } catch (const DivergedError& error) {
    return {static_cast<int>(error.exit_code()), error.what(), true};
  } catch (const Error& error) {
    std::string message = error.what();
    if (is_fault_of_ours(error.exit_code())) message += " [" + error.where() + "]";
    return {static_cast<int>(error.exit_code()), std::move(message), false};
  } catch (const std::exception& error) {
    return {static_cast<int>(ExitCode::internal), std::string("internal error: ") + error.what(),
            false};
  } catch (...) {
    return {static_cast<int>(ExitCode::internal), "internal error of unknown type", false};
  }
}

/// One write, so that lines of several ranks do not mix.
void print_error(const std::string& line) {
  std::fflush(stdout);
  std::fputs((line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

int run_program(std::string_view name, const std::function<int()>& body) noexcept {
  std::signal(SIGXFSZ, SIG_IGN);  // a quota is then a write that fails, with a message
  std::signal(SIGPIPE, SIG_IGN);  // and whoever reads our output may leave without ending a run
  try {
    return body();
  } catch (...) {
    const Failure failure = current_failure();
    print_error(std::string(name) + ": error: " + failure.message);
    return failure.code;
  }
}

int run_rank(std::string_view name, int rank, const std::function<int()>& body) noexcept {
  try {
    return body();
  } catch (...) {
    const Failure failure = current_failure();
    if (failure.is_agreed) {
      if (rank == 0) print_error(std::string(name) + ": error: " + failure.message);
      return failure.code;
    }
    print_error(std::string(name) + ": rank " + std::to_string(rank) + " (" + comm::host_name() +
                "): error: " + failure.message);
    comm::MpiEnvironment::abort(failure.code);
  }
}

}  // namespace vsr::launch
