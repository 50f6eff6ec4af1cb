// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl_operation.hpp"

#include <cstring>

#include "comm/mpi_check.hpp"

namespace vsr::test::fake {

std::string text_of(const Header& header) {
  static const char* const kNames[] = {
      "init", "all-reduce", "reduce-scatter", "reduce", "all-gather", "broadcast", "send"};
  return std::string(kNames[static_cast<int>(header.kind)]) + " of " +
         std::to_string(header.count) + " elements of type " + std::to_string(header.type) +
         (header.root < 0 ? "" : ", root " + std::to_string(header.root));
}

bool Operation::look(std::string& error) {
  if (!is_started_) start();
  for (auto& [peer, expected] : waiting_)
    while (!expected.empty() && error.empty() && take(peer, expected.front(), error))
      expected.pop_front();
  for (const auto& [peer, expected] : waiting_)
    if (!expected.empty()) return false;
  int are_sent = 1;
  MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &are_sent, MPI_STATUSES_IGNORE);
  if (are_sent == 0) return false;
  for (Call& call : calls_)
    if (call.finish) call.finish();
  return true;
}

int Operation::tag_of(const Header& header) const {
  return header.kind == Header::Kind::send
             ? tag_ / kTagsPerCommunicator * kTagsPerCommunicator + kPeerTag
             : tag_;
}

// What lies in memory now is what goes out.
void Operation::start() {
  is_started_ = true;
  for (Call& call : calls_) {
    for (const Message& message : call.outgoing) {
      std::vector<std::byte>& text = texts_.emplace_back(sizeof(Header) + message.data.size());
      std::memcpy(text.data(), &message.header, sizeof(Header));
      if (!message.data.empty())
        std::memcpy(text.data() + sizeof(Header), message.data.data(), message.data.size());
      requests_.push_back(MPI_REQUEST_NULL);
      VSR_MPI(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, message.peer,
                        tag_of(message.header), comm_, &requests_.back()));
    }
    for (Expected& expected : call.incoming) waiting_[expected.peer].push_back(std::move(expected));
  }
}

bool Operation::take(int peer, Expected& expected, std::string& error) {
  int is_there = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status{};
  VSR_MPI(MPI_Improbe(peer, tag_of(expected.header), comm_, &is_there, &message, &status));
  if (is_there == 0) return false;
  int size = 0;
  VSR_MPI(MPI_Get_count(&status, MPI_BYTE, &size));
  std::vector<std::byte> text(static_cast<std::size_t>(size));
  VSR_MPI(MPI_Mrecv(text.data(), size, MPI_BYTE, &message, MPI_STATUS_IGNORE));
  Header got;
  std::memcpy(&got, text.data(), sizeof(Header));
  if (!(got == expected.header)) {
    error = "rank " + std::to_string(peer) + " calls " + text_of(got) + ", rank " +
            std::to_string(rank_) + " expects " + text_of(expected.header);
    return false;
  }
  if (expected.take) expected.take(std::span<const std::byte>(text).subspan(sizeof(Header)));
  return true;
}

}  // namespace vsr::test::fake
