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

// A piece of a transfer, and how many receives are posted up to its end.
struct PostedPiece {
  std::size_t transfer = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t requests_before_next = 0;
};

// Call `call(begin, end)` for pieces that cover the largest of `spans`.
template <typename Spans, typename Call>
void each_piece(const Spans& spans, std::size_t piece_bytes, Call call) {
  std::size_t size = 0;
  for (const auto& one : spans) size = std::max(size, one.size());
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t end = begin + std::min(piece_bytes, size - begin);
    call(begin, end);
    begin = end;
  }
}

template <typename Byte>
std::span<Byte> part_of(std::span<Byte> whole, std::size_t begin, std::size_t end) {
  const std::size_t first = std::min(begin, whole.size());
  return whole.subspan(first, std::min(end, whole.size()) - first);
}

std::string bytes_text(std::size_t bytes) {
  return std::to_string(bytes) + " bytes";
}

void copy_own_part(const Transfer& transfer, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  const std::span<const std::byte> mine = transfer.outgoing[own];
  VSR_CHECK(mine.size() == transfer.incoming[own].size(),
            "got " + bytes_text(mine.size()) + " for the own rank and room for " +
                bytes_text(transfer.incoming[own].size()));
  if (!mine.empty()) std::memmove(transfer.incoming[own].data(), mine.data(), mine.size());
}

}  // namespace

struct MpiCommunicator::Handles {
  MpiComm comm;
  MpiOp sum_fp16;
  MpiOp sum_bf16;
};

// The messages of one exchange. Those of several under way are told apart by their order, which is
// the same on all ranks.
class MpiCommunicator::Exchange final : public PendingExchange {
 public:
  Exchange(const MpiCommunicator& ranks, std::span<const Transfer> transfers,
           std::size_t piece_bytes)
      : ranks_(ranks), comm_(ranks.handles_->comm.get()) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      each_piece(transfers[i].incoming, piece_bytes, [&](std::size_t begin, std::size_t end) {
        post_receives(transfers[i], begin, end);
        pieces_.push_back({i, begin, end, receives_.size()});
      });
    }
    for (const Transfer& transfer : transfers) {
      each_piece(transfer.outgoing, piece_bytes,
                 [&](std::size_t begin, std::size_t end) { post_sends(transfer, begin, end); });
    }
  }
  ~Exchange() override {
    for (std::vector<MPI_Request>* requests : {&receives_, &sends_})
      for (MPI_Request& request : *requests) give_up(request);
  }

  std::int64_t sent_bytes() const noexcept { return sent_bytes_; }
  void do_finish(const Arrived& arrived) override {
    std::exception_ptr failure;
    std::size_t received = 0;
    for (const PostedPiece& piece : pieces_) {
      for (; received < piece.requests_before_next; ++received) wait_for_receive(received);
      if (failure) continue;
      try {
        arrived(piece.transfer, piece.begin, piece.end);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    for (MPI_Request& request : sends_) VSR_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // Only after a failure: whoever waits for the other side waits for ever, so nobody does.
  static void give_up(MPI_Request& request) noexcept {
    if (request == MPI_REQUEST_NULL) return;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }

  // Ranks start with their next one, so that not all of them send to rank 0 first.
  void post_receives(const Transfer& transfer, std::size_t begin, std::size_t end) {
    const auto world = static_cast<std::size_t>(ranks_.world());
    for (std::size_t step = 1; step < world; ++step) {
      const std::size_t from = (static_cast<std::size_t>(ranks_.rank()) + world - step) % world;
      in_pieces(part_of(transfer.incoming[from], begin, end), ranks_.chunk_bytes_,
                [&](std::byte* data, int count) {
                  receives_.push_back(MPI_REQUEST_NULL);
                  expected_.push_back(count);
                  VSR_MPI(MPI_Irecv(data, count, MPI_BYTE, static_cast<int>(from), kExchangeTag,
                                    comm_, &receives_.back()));
                });
    }
  }

  void post_sends(const Transfer& transfer, std::size_t begin, std::size_t end) {
    const auto world = static_cast<std::size_t>(ranks_.world());
    for (std::size_t step = 1; step < world; ++step) {
      const std::size_t to = (static_cast<std::size_t>(ranks_.rank()) + step) % world;
      const std::span<const std::byte> part = part_of(transfer.outgoing[to], begin, end);
      in_pieces(part, ranks_.chunk_bytes_, [&](const std::byte* data, int count) {
        sends_.push_back(MPI_REQUEST_NULL);
        VSR_MPI(MPI_Isend(data, count, MPI_BYTE, static_cast<int>(to), kExchangeTag, comm_,
                          &sends_.back()));
      });
      sent_bytes_ += static_cast<std::int64_t>(part.size());
    }
  }

  // One by one: MPI_Waitall of Open MPI 4.1 now and then spins for ever when a request has failed.
  void wait_for_receive(std::size_t index) {
    MPI_Status status{};
    VSR_MPI(MPI_Wait(&receives_[index], &status));
    int received = 0;
    VSR_MPI(MPI_Get_count(&status, MPI_BYTE, &received));
    if (received == expected_[index]) return;
    throw CommError("rank " + std::to_string(ranks_.rank()) + "/" + std::to_string(ranks_.world()) +
                    " on " + ranks_.host() + ": rank " + std::to_string(status.MPI_SOURCE) +
                    " sent " + std::to_string(received) + " bytes, expected " +
                    std::to_string(expected_[index]) +
                    "; both sides must agree on the sizes of an exchange");
  }

  const MpiCommunicator& ranks_;
  MPI_Comm comm_;
  std::vector<PostedPiece> pieces_;
  std::vector<MPI_Request> receives_;
  std::vector<int> expected_;  // bytes of each receive
  std::vector<MPI_Request> sends_;
  std::int64_t sent_bytes_ = 0;
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
    Transfer transfer{std::vector<std::span<const std::byte>>(world, mine), {}};
    for (std::size_t r = 0; r < world; ++r) {
      transfer.incoming.push_back(all.subspan(starts[r], sizes_bytes[r]));
    }
    copy_own_part(transfer, rank_);
    Exchange exchange(*this, {&transfer, 1}, all.size());
    exchange.do_finish([](std::size_t, std::size_t, std::size_t) {});
    sent_bytes_ += exchange.sent_bytes();
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

std::unique_ptr<PendingExchange> MpiCommunicator::do_begin_exchange(
    std::span<const Transfer> transfers, std::size_t piece_bytes) {
  for (const Transfer& transfer : transfers) copy_own_part(transfer, rank_);
  auto exchange = std::make_unique<Exchange>(*this, transfers, piece_bytes);
  sent_bytes_ += exchange->sent_bytes();
  return exchange;
}

void MpiCommunicator::do_all_gather_bulk(std::span<std::byte> all,
                                         std::span<const std::size_t> sizes_bytes) {
  const auto own = static_cast<std::size_t>(rank_);
  VSR_CHECK(own < sizes_bytes.size(), "got sizes of " + std::to_string(sizes_bytes.size()) +
                                          " ranks in a world of " + std::to_string(world_));
  const std::size_t begin = std::accumulate(
      sizes_bytes.begin(), sizes_bytes.begin() + static_cast<std::ptrdiff_t>(own), std::size_t{0});
  VSR_CHECK(begin + sizes_bytes[own] <= all.size(),
            "got room for " + bytes_text(all.size()) + ", too little for the own part");
  do_all_gather(all.subspan(begin, sizes_bytes[own]), all, sizes_bytes);
}

void MpiCommunicator::do_broadcast_bulk(std::span<std::byte> data, int root) {
  do_broadcast(data, root);
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
