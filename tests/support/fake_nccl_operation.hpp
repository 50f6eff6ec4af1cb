// SPDX-License-Identifier: Apache-2.0
// What an operation of the fake NCCL sends and expects, over MPI and without ever blocking. In
// front of its data each rank says what it is doing, so that calls which differ between ranks show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_handles.hpp"

namespace vsr::test::fake {

// What a rank says it is doing, in front of the data.
struct Header {
  enum class Kind : int { hello, all_reduce, reduce_scatter, reduce, all_gather, broadcast, send };
  Kind kind = Kind::hello;
  int type = 0;
  int root = -1;
  std::uint64_t count = 0;
  bool operator==(const Header&) const = default;
};

/// "all-reduce of 12 elements of type 7".
std::string text_of(const Header& header);

// A message that is expected, and what to do with its data.
struct Expected {
  int peer = 0;
  Header header;
  std::function<void(std::span<const std::byte>)> take;
};

struct Message {
  int peer = 0;
  Header header;
  std::span<const std::byte> data;
};

// One call: what goes out, what comes in, and what follows when all is there.
struct Call {
  std::vector<Message> outgoing;
  std::vector<Expected> incoming;
  std::function<void()> finish;
  bool is_collective = true;
};

inline constexpr int kTagsPerCommunicator = 4096;
inline constexpr int kPeerTag = kTagsPerCommunicator - 1;  // of sends: their order tells them apart

/// Sends and receives of one operation; looked at again and again until it is over.
class Operation {
 public:
  Operation(MPI_Comm comm, int rank, int tag, std::vector<Call> calls)
      : comm_(comm), rank_(rank), tag_(tag), calls_(std::move(calls)) {}

  /// @returns whether it is over; a difference between ranks goes to `error`
  bool look(std::string& error);

 private:
  int tag_of(const Header& header) const;
  void start();
  bool take(int peer, Expected& expected, std::string& error);

  MPI_Comm comm_;
  int rank_;
  int tag_;
  std::vector<Call> calls_;
  bool is_started_ = false;
  std::deque<std::vector<std::byte>> texts_;
  std::vector<MPI_Request> requests_;
  std::map<int, std::deque<Expected>> waiting_;
};

}  // namespace vsr::test::fake
