// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handles.hpp"

namespace vsr::comm {
namespace {

constexpr int kExchangeTag = 1;

std::span<const std::uint16_t> as_values(const void* bits, int count) {
  return {static_cast<const std::uint16_t*>(bits), static_cast<std::size_t>(count)};
}

std::span<std::uint16_t> as_values(void* bits, int count) {
  return {static_cast<std::uint16_t*>(bits), static_cast<std::size_t>(count)};
}

// What MPI calls for each piece of a reduction; called from C, so nothing may leave as exception,
// and nothing does: the sizes are equal by construction.
void add_fp16_for_mpi(void* in, void* in_out, int* count, MPI_Datatype*) noexcept {
  add_fp16(as_values(static_cast<const void*>(in), *count), as_values(in_out, *count));
}

void add_bf16_for_mpi(void* in, void* in_out, int* count, MPI_Datatype*) noexcept {
  add_bf16(as_values(static_cast<const void*>(in), *count), as_values(in_out, *count));
}

MpiOp make_sum(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  VSR_MPI(MPI_Op_create(function, /*commute=*/1, &op));
  return MpiOp(op);
}

// Run `call(pointer, count)` on pieces of at most `piece` elements.
template <typename T, typename Call>
void in_pieces(std::span<T> values, std::size_t piece, Call call) {
  for (std::size_t at = 0; at < values.size(); at += piece) {
    const std::size_t count = std::min(piece, values.size() - at);
    call(values.data() + at, static_cast<int>(count));
  }
}

template <typename T>
void all_reduce_in_pieces(std::span<T> values, std::size_t chunk_bytes, MPI_Datatype type,
                          MPI_Op op, MPI_Comm comm) {
  const std::size_t piece = std::max<std::size_t>(1, chunk_bytes / sizeof(T));
  in_pieces(values, piece, [&](T* data, int count) {
    VSR_MPI(MPI_Allreduce(MPI_IN_PLACE, data, count, type, op, comm));
  });
}

std::string bytes_text(std::size_t bytes) {
  return std::to_string(bytes) + " bytes";
}

}  // namespace

struct MpiCommunicator::Handles {
  MpiComm comm;
  MpiOp sum_fp16;
  MpiOp sum_bf16;
  std::vector<MPI_Request> requests;  // kept for its memory
};

MpiCommunicator::MpiCommunicator(const MpiOptions& options)
    : chunk_bytes_(options.chunk_bytes), handles_(std::make_unique<Handles>()) {
  VSR_CHECK(is_mpi_running(), "make an MpiEnvironment before the communicator");
  VSR_CHECK(chunk_bytes_ > 0 && chunk_bytes_ <= std::size_t{std::numeric_limits<int>::max()},
            "got messages of " + bytes_text(chunk_bytes_));
  VSR_CHECK(options.ranks_per_node >= 0,
            "got " + std::to_string(options.ranks_per_node) + " ranks per node");
  MPI_Comm duplicate = MPI_COMM_NULL;
  VSR_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &duplicate));
  handles_->comm = MpiComm(duplicate);
  VSR_MPI(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN));
  VSR_MPI(MPI_Comm_rank(duplicate, &rank_));
  VSR_MPI(MPI_Comm_size(duplicate, &world_));
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int size = 0;
  VSR_MPI(MPI_Get_processor_name(name.data(), &size));
  host_.assign(name.data(), static_cast<std::size_t>(size));
  handles_->sum_fp16 = make_sum(add_fp16_for_mpi);
  handles_->sum_bf16 = make_sum(add_bf16_for_mpi);
  find_node_ranks(options.ranks_per_node);
}

MpiCommunicator::~MpiCommunicator() = default;

void MpiCommunicator::find_node_ranks(int ranks_per_node) {
  MPI_Comm node = MPI_COMM_NULL;
  VSR_MPI(
      MPI_Comm_split_type(handles_->comm.get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node));
  const MpiComm owner(node);
  int size = 0;
  VSR_MPI(MPI_Comm_size(node, &size));
  node_ranks_.resize(static_cast<std::size_t>(size));
  VSR_MPI(MPI_Allgather(&rank_, 1, MPI_INT, node_ranks_.data(), 1, MPI_INT, node));
  if (ranks_per_node == 0) return;
  const auto own = std::find(node_ranks_.begin(), node_ranks_.end(), rank_) - node_ranks_.begin();
  const auto first = own / ranks_per_node * ranks_per_node;
  const auto last = std::min<std::ptrdiff_t>(first + ranks_per_node, size);
  node_ranks_ = std::vector<int>(node_ranks_.begin() + first, node_ranks_.begin() + last);
}

void MpiCommunicator::do_barrier() {
  VSR_MPI(MPI_Barrier(handles_->comm.get()));
}

void MpiCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  VSR_CHECK(root >= 0 && root < world_,
            "got root " + std::to_string(root) + " in a world of " + std::to_string(world_));
  in_pieces(data, chunk_bytes_, [&](std::byte* piece, int count) {
    VSR_MPI(MPI_Bcast(piece, count, MPI_BYTE, root, handles_->comm.get()));
  });
  if (rank_ == root) sent_bytes_ += static_cast<std::int64_t>(data.size()) * (world_ - 1);
}

void MpiCommunicator::do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                    std::span<const std::size_t> sizes_bytes) {
  const auto world = static_cast<std::size_t>(world_);
  const auto own = static_cast<std::size_t>(rank_);
  VSR_CHECK(sizes_bytes.size() == world, "got sizes of " + std::to_string(sizes_bytes.size()) +
                                             " ranks in a world of " + std::to_string(world_));
  VSR_CHECK(mine.size() == sizes_bytes[own],
            "got " + bytes_text(mine.size()) + ", announced " + bytes_text(sizes_bytes[own]));
  std::vector<std::size_t> starts(world + 1, 0);
  std::partial_sum(sizes_bytes.begin(), sizes_bytes.end(), starts.begin() + 1);
  VSR_CHECK(all.size() == starts[world],
            "got room for " + bytes_text(all.size()) + ", needed " + bytes_text(starts[world]));
  if (all.size() > chunk_bytes_) {
    std::vector<std::span<const std::byte>> outgoing(world, mine);
    std::vector<std::span<std::byte>> incoming;
    for (std::size_t r = 0; r < world; ++r) {
      incoming.push_back(all.subspan(starts[r], sizes_bytes[r]));
    }
    do_exchange(outgoing, incoming);  // counts what it sends
    return;
  }
  const std::vector<int> counts(sizes_bytes.begin(), sizes_bytes.end());
  const std::vector<int> places(starts.begin(), starts.end() - 1);
  const bool in_place = mine.data() == all.data() + starts[own];
  const void* source = in_place ? MPI_IN_PLACE : static_cast<const void*>(mine.data());
  VSR_MPI(MPI_Allgatherv(source, counts[own], MPI_BYTE, all.data(), counts.data(), places.data(),
                         MPI_BYTE, handles_->comm.get()));
  sent_bytes_ += static_cast<std::int64_t>(mine.size()) * (world_ - 1);
}

void MpiCommunicator::do_exchange(std::span<const std::span<const std::byte>> outgoing,
                                  std::span<const std::span<std::byte>> incoming) {
  const auto world = static_cast<std::size_t>(world_);
  const auto own = static_cast<std::size_t>(rank_);
  VSR_CHECK(outgoing.size() == world && incoming.size() == world,
            "got " + std::to_string(outgoing.size()) + " outgoing and " +
                std::to_string(incoming.size()) + " incoming spans in a world of " +
                std::to_string(world_));
  VSR_CHECK(outgoing[own].size() == incoming[own].size(),
            "got " + bytes_text(outgoing[own].size()) + " for the own rank and room for " +
                bytes_text(incoming[own].size()));
  auto& requests = handles_->requests;
  requests.clear();
  std::vector<int> expected;
  // Start with the next rank on each, so that not all of them send to rank 0 first.
  for (std::size_t step = 1; step < world; ++step) {
    const std::size_t from = (own + world - step) % world;
    in_pieces(incoming[from], chunk_bytes_, [&](std::byte* piece, int count) {
      requests.push_back(MPI_REQUEST_NULL);
      expected.push_back(count);
      VSR_MPI(MPI_Irecv(piece, count, MPI_BYTE, static_cast<int>(from), kExchangeTag,
                        handles_->comm.get(), &requests.back()));
    });
  }
  for (std::size_t step = 1; step < world; ++step) {
    const std::size_t to = (own + step) % world;
    in_pieces(outgoing[to], chunk_bytes_, [&](const std::byte* piece, int count) {
      requests.push_back(MPI_REQUEST_NULL);
      VSR_MPI(MPI_Isend(piece, count, MPI_BYTE, static_cast<int>(to), kExchangeTag,
                        handles_->comm.get(), &requests.back()));
    });
    sent_bytes_ += static_cast<std::int64_t>(outgoing[to].size());
  }
  if (!outgoing[own].empty()) {
    std::memmove(incoming[own].data(), outgoing[own].data(), outgoing[own].size());
  }
  // One by one: MPI_Waitall of Open MPI 4.1 now and then spins for ever when a request has failed.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    MPI_Status status{};
    VSR_MPI(MPI_Wait(&requests[i], &status));
    if (i >= expected.size()) continue;  // a send
    int received = 0;
    VSR_MPI(MPI_Get_count(&status, MPI_BYTE, &received));
    if (received != expected[i]) throw_wrong_size(status.MPI_SOURCE, received, expected[i]);
  }
}

void MpiCommunicator::throw_wrong_size(int source, int received, int expected) const {
  throw CommError("rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " + host_ +
                  ": rank " + std::to_string(source) + " sent " + std::to_string(received) +
                  " bytes, expected " + std::to_string(expected) +
                  "; both sides must agree on the sizes of an exchange");
}

void MpiCommunicator::count_all_reduce(std::size_t bytes) noexcept {
  sent_bytes_ += 2 * static_cast<std::int64_t>(bytes) * (world_ - 1) / world_;
}

void MpiCommunicator::do_all_reduce_fp16(std::span<std::uint16_t> values) {
  all_reduce_in_pieces(values, chunk_bytes_, MPI_UINT16_T, handles_->sum_fp16.get(),
                       handles_->comm.get());
  count_all_reduce(values.size_bytes());
}

void MpiCommunicator::do_all_reduce_bf16(std::span<std::uint16_t> values) {
  all_reduce_in_pieces(values, chunk_bytes_, MPI_UINT16_T, handles_->sum_bf16.get(),
                       handles_->comm.get());
  count_all_reduce(values.size_bytes());
}

void MpiCommunicator::do_all_reduce_fp32(std::span<float> values) {
  all_reduce_in_pieces(values, chunk_bytes_, MPI_FLOAT, MPI_SUM, handles_->comm.get());
  count_all_reduce(values.size_bytes());
}

}  // namespace vsr::comm
