// SPDX-License-Identifier: Apache-2.0
#include "comm/flight_recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>

#include "comm/error.hpp"
#include "comm/processes.hpp"

namespace vsr::comm {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic = {'V', 'S', 'R', 'F', 'L', 'T', '0', '1'};

struct Header {
  std::array<char, 8> magic{};
  std::int32_t rank = 0;
  std::int32_t world = 0;
  std::int64_t pid = 0;
  std::uint64_t newest = 0;   // sequence of the newest record
  std::int64_t alive_ns = 0;  // newest sign of life without a call
  std::array<char, 88> host{};
};
static_assert(sizeof(Header) == 128);

template <std::size_t Size>
void copy_text(std::string_view text, std::array<char, Size>& target) noexcept {
  const std::size_t size = std::min(text.size(), Size - 1);
  std::copy_n(text.data(), size, target.data());
  std::fill(target.begin() + static_cast<std::ptrdiff_t>(size), target.end(), '\0');
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& bytes) {
  return {bytes.data(), ::strnlen(bytes.data(), Size)};
}

std::string file_name(int rank) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "rank_%05d.bin", rank);
  return text.data();
}

[[noreturn]] void fail(const char* what, const fs::path& path, int error) {
  throw IoError(std::string("cannot ") + what + " '" + path.string() +
                "': " + std::strerror(error));
}

struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

}  // namespace

// The whole file. Other processes read it meanwhile, so what they look at is stored atomically.
struct FlightRecorder::File {
  Header header;
  std::array<FlightRecord, kCapacity> records;

  FlightRecord& record(std::uint64_t sequence) { return records[(sequence - 1) % kCapacity]; }
};

std::string_view operation_name(Operation operation) noexcept {
  constexpr std::array<std::string_view, 9> kNames = {
      "none",          "barrier",         "broadcast",       "all_gather",
      "exchange",      "all_reduce_fp16", "all_reduce_bf16", "all_reduce_fp32",
      "reduce_scatter"};
  const auto index = static_cast<std::size_t>(operation);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

FlightRecorder::FlightRecorder(const fs::path& folder, int rank, int world, std::string_view host) {
  const fs::path path = folder / file_name(rank);
  const Descriptor descriptor{::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (descriptor.number < 0) fail("open", path, errno);
  const int error = ::posix_fallocate(descriptor.number, 0, sizeof(File));
  if (error != 0) fail("make room for", path, error);
  void* const memory =
      ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.number, 0);
  if (memory == MAP_FAILED) fail("map", path, errno);
  file_ = new (memory) File;
  file_->header.rank = rank;
  file_->header.world = world;
  file_->header.pid = ::getpid();
  copy_text(host, file_->header.host);
  file_->header.alive_ns = monotonic_ns();
  file_->header.magic = kMagic;
}

FlightRecorder::~FlightRecorder() {
  ::munmap(file_, sizeof(File));
}

void FlightRecorder::enter(Operation operation, std::uint64_t bytes,
                           std::string_view purpose) noexcept {
  const std::uint64_t sequence = file_->header.newest + 1;
  FlightRecord& record = file_->record(sequence);
  record.sequence = sequence;
  record.operation = operation;
  record.bytes = bytes;
  copy_text(purpose, record.purpose);
  record.left_ns = 0;
  record.entered_ns = monotonic_ns();
  __atomic_store_n(&file_->header.newest, sequence, __ATOMIC_RELEASE);
}

void FlightRecorder::leave() noexcept {
  FlightRecord& record = file_->record(file_->header.newest);
  __atomic_store_n(&record.left_ns, monotonic_ns(), __ATOMIC_RELEASE);
}

void FlightRecorder::alive() noexcept {
  __atomic_store_n(&file_->header.alive_ns, monotonic_ns(), __ATOMIC_RELEASE);
}

namespace {

// One rank's file as it is now; a reader of its own descriptor, so that files of other hosts on a
// shared file system are not those of an hour ago.
class FlightFile {
 public:
  /// @throws IoError, DataError
  FlightFile(const fs::path& folder, int rank)
      : path_(folder / file_name(rank)), file_(path_, std::ios::binary) {
    if (!file_) fail("open", path_, errno);
    header_ = read<Header>(0);
    if (header_.magic != kMagic) refuse();
  }
  const Header& header() const noexcept { return header_; }
  FlightRecord record(std::uint64_t sequence) {
    const std::uint64_t index = (sequence - 1) % FlightRecorder::kCapacity;
    return read<FlightRecord>(sizeof(Header) + index * sizeof(FlightRecord));
  }

 private:
  template <typename T>
  T read(std::uint64_t offset) {
    T value;
    file_.seekg(static_cast<std::streamoff>(offset));
    if (!file_.read(reinterpret_cast<char*>(&value), sizeof value)) refuse();
    return value;
  }
  [[noreturn]] void refuse() const {
    throw DataError("'" + path_.string() + "' is no flight record");
  }

  fs::path path_;
  std::ifstream file_;
  Header header_;
};

std::string missing_text(const FlightState& state, const FlightRecord& wanted, std::int64_t now) {
  if (!state.is_readable)
    return "rank " + std::to_string(state.rank) + " has no flight record: it did not come so far";
  std::string text = rank_text(state) + " did not enter " + operation_text(wanted) + ": ";
  if (state.newest.sequence == 0)
    text += "it entered nothing yet";
  else if (state.newest.left_ns == 0)
    text += "it is in " + operation_text(state.newest) + " since " +
            seconds_text(now - state.newest.entered_ns);
  else
    text += "it left " + operation_text(state.newest) + " " +
            seconds_text(now - state.newest.left_ns) + " ago";
  return text + "; its last sign of life was " + seconds_text(now - state.alive_ns) + " ago";
}

}  // namespace

FlightState read_flight_of(const fs::path& folder, int rank) {
  FlightState state;
  state.rank = rank;
  try {
    FlightFile file(folder, rank);
    const Header& header = file.header();
    state.host = text_of(header.host);
    state.pid = header.pid;
    if (header.newest > 0) state.newest = file.record(header.newest);
    state.alive_ns = std::max({header.alive_ns, state.newest.entered_ns, state.newest.left_ns});
    state.is_readable = header.rank == rank;
  } catch (const Error&) {
    // What cannot be read is told as such.
  }
  return state;
}

std::vector<FlightState> read_flight(const fs::path& folder, int world) {
  std::vector<FlightState> states;
  for (int rank = 0; rank < world; ++rank) states.push_back(read_flight_of(folder, rank));
  return states;
}

int flight_world(const fs::path& folder) {
  try {
    return std::clamp(FlightFile(folder, 0).header().world, 0, 1 << 20);
  } catch (const Error&) {
    return 0;
  }
}

std::vector<FlightRecord> flight_records(const fs::path& folder, int rank) {
  FlightFile file(folder, rank);
  const std::uint64_t newest = file.header().newest;
  const std::uint64_t kept = std::min(newest, FlightRecorder::kCapacity);
  std::vector<FlightRecord> records;
  for (std::uint64_t sequence = newest - kept + 1; sequence <= newest; ++sequence)
    records.push_back(file.record(sequence));
  return records;
}

std::string seconds_text(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s",
                static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9);
  return text.data();
}

std::string rank_text(const FlightState& state) {
  return "rank " + std::to_string(state.rank) + " on " + state.host + " (process " +
         std::to_string(state.pid) + ")";
}

std::string operation_text(const FlightRecord& record) {
  const std::string purpose = text_of(record.purpose);
  return "operation " + std::to_string(record.sequence) + " (" +
         std::string(operation_name(record.operation)) + (purpose.empty() ? "" : " of " + purpose) +
         ", " + std::to_string(record.bytes) + " bytes)";
}

namespace {

/// Whether the rank's process is one of this host that a signal has stopped.
bool is_stopped(const FlightState& state) {
  return state.host == host_name() && process_field(state.pid, 3) == "T";
}

/// All are inside the same call. A rank that was stopped there has entered it like the others.
std::vector<std::string> stopped_texts(std::span<const FlightState> states) {
  std::vector<std::string> lines;
  for (const FlightState& state : states)
    if (is_stopped(state))
      lines.push_back(rank_text(state) + " is stopped by a signal inside " +
                      operation_text(state.newest));
  return lines;
}

}  // namespace

std::string who_is_missing(std::span<const FlightState> states,
                           std::optional<std::int64_t> now_ns) {
  constexpr std::size_t kMostNamed = 8;
  FlightRecord furthest;
  std::int64_t now = now_ns.value_or(0);
  for (const FlightState& state : states) {
    if (state.newest.sequence > furthest.sequence) furthest = state.newest;
    if (!now_ns) now = std::max(now, state.alive_ns);
  }
  std::vector<std::string> lines;
  bool are_all_inside = furthest.sequence > 0;
  for (const FlightState& state : states) {
    const FlightRecord& newest = state.newest;
    are_all_inside = are_all_inside && newest.sequence == furthest.sequence && newest.left_ns == 0;
    if (newest.sequence < furthest.sequence || !state.is_readable)
      lines.push_back(missing_text(state, furthest, now));
    else if (newest.operation != furthest.operation)
      lines.push_back(rank_text(state) + " is in " + operation_text(newest) +
                      " where others are in " + operation_text(furthest) +
                      ": all ranks must make the same calls in the same order");
  }
  if (lines.empty() && are_all_inside) lines = stopped_texts(states);
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMostNamed); ++i)
    text += (text.empty() ? "" : "\n") + lines[i];
  if (lines.size() > kMostNamed)
    text += "\nand " + std::to_string(lines.size() - kMostNamed) + " more ranks";
  if (lines.empty() && are_all_inside)
    text = "all ranks entered " + operation_text(furthest) + ", which does not end: the network?";
  if (lines.empty() && !are_all_inside && furthest.sequence > 0)
    text = "no rank is behind: all made " + std::to_string(furthest.sequence) + " calls";
  return text;
}

}  // namespace vsr::comm
