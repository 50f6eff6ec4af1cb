// SPDX-License-Identifier: Apache-2.0
// What each rank was doing when a job hung or died: the last collective calls in a file that is
// mapped into memory, so that a record costs no system call and outlives SIGKILL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vsr::comm {

/// The calls of Communicator that all ranks enter together.
enum class Operation : std::uint32_t {
  none,
  barrier,
  broadcast,
  all_gather,
  exchange,
  all_reduce_fp16,
  all_reduce_bf16,
  all_reduce_fp32,
  reduce_scatter
};

/// "all_gather", …; "unknown" for a number that is none of them.
std::string_view operation_name(Operation operation) noexcept;

/// One collective call of one rank, as it lies in the file.
struct FlightRecord {
  std::uint64_t sequence = 0;  ///< from 1 on; the same number on all ranks is the same call
  Operation operation = Operation::none;
  std::uint32_t unused = 0;
  std::int64_t entered_ns = 0;  ///< CLOCK_MONOTONIC of the host
  std::int64_t left_ns = 0;     ///< 0: still inside
  std::uint64_t bytes = 0;      ///< of this rank
  std::array<char, 24> purpose{};
};
static_assert(sizeof(FlightRecord) == 64);

/// Records the calls of one rank. One thread enters and leaves; alive() may come from any.
class FlightRecorder {
 public:
  static constexpr std::uint64_t kCapacity = 4096;  ///< records that are kept

  /// Makes (or empties) the file of this rank in `folder`, which is there.
  /// @throws IoError naming the file; a full disk shows here and not later
  FlightRecorder(const std::filesystem::path& folder, int rank, int world, std::string_view host);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// @param purpose what it is for, such as "agree"; cut at 23 bytes
  void enter(Operation operation, std::uint64_t bytes, std::string_view purpose) noexcept;
  void leave() noexcept;
  /// A sign of life of a rank that works for long without a collective call.
  void alive() noexcept;

 private:
  struct File;
  File* file_;
};

/// Where one rank stands, read from its file while it writes there or after it died.
struct FlightState {
  int rank = -1;
  bool is_readable = false;  ///< false: no file, or not yet; then the rest says nothing
  std::string host;
  std::int64_t pid = 0;
  FlightRecord newest;        ///< sequence 0: it entered nothing
  std::int64_t alive_ns = 0;  ///< newest sign of life: a call, or alive()
};

/// The state of one rank from its file in `folder`. Local, never throws for a bad file.
FlightState read_flight_of(const std::filesystem::path& folder, int rank);
/// The states of ranks [0, world).
std::vector<FlightState> read_flight(const std::filesystem::path& folder, int world);
/// The number of ranks that the files in `folder` tell of; 0 where there are none.
int flight_world(const std::filesystem::path& folder);
/// All records that are kept of one rank, oldest first.
/// @throws IoError, or DataError for a file that is no flight record
std::vector<FlightRecord> flight_records(const std::filesystem::path& folder, int rank);

/// A sentence for each rank that holds the others up: which one did not enter which call, or is in
/// another one, and since when; where all are inside the same call it says so, and which of them a
/// signal has stopped on this host.
/// @param now_ns CLOCK_MONOTONIC, or nothing after the job ended: then the newest sign of life
std::string who_is_missing(std::span<const FlightState> states, std::optional<std::int64_t> now_ns);

/// "operation 8812 (all_gather of agree, 336 bytes)".
std::string operation_text(const FlightRecord& record);

/// "rank 3 on HOST (process 1234)".
std::string rank_text(const FlightState& state);
/// "2.5 s"; nothing is below 0.
std::string seconds_text(std::int64_t ns);

/// CLOCK_MONOTONIC in ns.
std::int64_t monotonic_ns() noexcept;

}  // namespace vsr::comm
