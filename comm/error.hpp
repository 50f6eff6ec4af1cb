// SPDX-License-Identifier: Apache-2.0
// The errors of the whole project and the exit code each of them stands for. They live in the
// lowest layer so that every layer throws the same types and `main` alone turns them into an exit
// code.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace vsr {

/// What a process of ours returns; scripts and schedulers act on these numbers.
enum class ExitCode : int {
  ok = 0,              ///< finished, and the final state is on disk
  usage = 64,          ///< unknown option, missing argument
  data = 65,           ///< unreadable input, or only bad checkpoints
  internal = 70,       ///< a fault of ours
  io = 74,             ///< a file could not be written; the final state could not be saved
  communication = 75,  ///< MPI, NCCL or CUDA failed, or a rank hangs
  configuration = 78,  ///< options that contradict each other, the machine or the run in the folder
  stopped = 85,        ///< stopped on request, after a checkpoint
  diverged = 86,       ///< the loss scale is stuck at its floor, or replicas differ
};

/// Root of all errors. `what()` is one message for a person: what happened, got and expected, what
/// to do. `where()` is "file:line" of our source, for messages about faults of ours.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message,
        std::source_location where = std::source_location::current());
  ExitCode exit_code() const noexcept { return code_; }
  const std::string& where() const noexcept { return where_; }

 private:
  ExitCode code_;
  std::string where_;
};

/// A caller broke the contract of a function of ours (exit 70).
class ArgumentError : public Error {
 public:
  explicit ArgumentError(const std::string& message,
                         std::source_location where = std::source_location::current())
      : Error(ExitCode::internal, message, where) {}
};

/// The command line is wrong (exit 64).
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message,
                      std::source_location where = std::source_location::current())
      : Error(ExitCode::usage, message, where) {}
};

/// An input cannot be used: missing clip, no video in it, too small (exit 65).
class DataError : public Error {
 public:
  explicit DataError(const std::string& message,
                     std::source_location where = std::source_location::current())
      : Error(ExitCode::data, message, where) {}
};

/// A checkpoint is damaged or incomplete (exit 65).
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message,
                           std::source_location where = std::source_location::current())
      : Error(ExitCode::data, message, where) {}
};

/// The operating system refused a read, a write or a folder (exit 74).
class IoError : public Error {
 public:
  explicit IoError(const std::string& message,
                   std::source_location where = std::source_location::current())
      : Error(ExitCode::io, message, where) {}
};

/// The HDF5 library failed; the message ends in its own error stack (exit 74).
class Hdf5Error : public Error {
 public:
  explicit Hdf5Error(const std::string& message,
                     std::source_location where = std::source_location::current())
      : Error(ExitCode::io, message, where) {}
};

/// MPI or NCCL failed (exit 75).
class CommError : public Error {
 public:
  explicit CommError(const std::string& message,
                     std::source_location where = std::source_location::current())
      : Error(ExitCode::communication, message, where) {}
};

/// The CUDA runtime or a kernel failed: a fault of the machine, after which a run can go on from
/// its last checkpoint (exit 75).
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& message,
                     std::source_location where = std::source_location::current())
      : Error(ExitCode::communication, message, where) {}
};

/// Options that contradict each other, the machine, or what the output folder holds (exit 78).
class ConfigurationError : public Error {
 public:
  explicit ConfigurationError(const std::string& message,
                              std::source_location where = std::source_location::current())
      : Error(ExitCode::configuration, message, where) {}
};

/// Training no longer makes sense: stuck at the smallest loss scale, replicas differ (exit 86).
class DivergedError : public Error {
 public:
  explicit DivergedError(const std::string& message,
                         std::source_location where = std::source_location::current())
      : Error(ExitCode::diverged, message, where) {}
};

/// A function was asked for that this build does not hold; names the module and how to get it (exit
/// 78).
class NotCompiled : public Error {
 public:
  NotCompiled(const std::string& function, const std::string& module,
              std::source_location where = std::source_location::current())
      : Error(ExitCode::configuration, function + " needs " + module + ", which this build lacks",
              where) {}
};

/// Thrown by `Communicator::agree_all_ok` on *every* rank when at least one rank failed: the
/// message and exit code of the lowest failing rank. All ranks hold it, so rank 0 alone prints it
/// and all of them leave in order.
class AgreedError : public Error {
 public:
  AgreedError(ExitCode code, const std::string& message, int rank,
              std::source_location where = std::source_location::current())
      : Error(code, message, where), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

}  // namespace vsr

/// Always on: throws ArgumentError with `message` when the condition does not hold; where() is the
/// line of the check.
#define VSR_CHECK(condition, message)                      \
  do {                                                     \
    if (!(condition)) throw ::vsr::ArgumentError(message); \
  } while (false)
