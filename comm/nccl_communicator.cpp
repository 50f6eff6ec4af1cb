// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_communicator.hpp"

#include <algorithm>
#include <future>
#include <numeric>
#include <thread>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

using Clock = std::chrono::steady_clock;
// Short enough to cost a step little, long enough to leave the core to others.
constexpr auto kPoll = std::chrono::microseconds(20);

// Call `call(begin, end)` for pieces that cover `size`.
template <typename Call>
void each_piece(std::size_t size, std::size_t piece, Call call) {
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t end = begin + std::min(piece, size - begin);
    call(begin, end);
    begin = end;
  }
}

std::size_t largest(std::span<const std::size_t> sizes) {
  return sizes.empty() ? 0 : *std::ranges::max_element(sizes);
}

bool are_equal(std::span<const std::size_t> sizes) {
  return std::ranges::all_of(sizes, [&](std::size_t size) { return size == sizes.front(); });
}

NcclType nccl_type(SumType type) {
  switch (type) {
    case SumType::fp16:
      return NcclType::fp16;
    case SumType::bf16:
      return NcclType::bf16;
    default:
      return NcclType::fp32;
  }
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

// Everything of an exchange is on the stream when it was begun; the mark tells when it is through.
// So smaller pieces would arrive no sooner, and only make more messages.
class NcclCommunicator::Exchange final : public PendingExchange {
 public:
  Exchange(NcclCommunicator& ranks, std::vector<Transfer> transfers)
      : ranks_(ranks), transfers_(std::move(transfers)), is_done_(*ranks.device_) {}
  // The GPU would go on to fill memory that its owner frees, or freeing it would wait for a peer.
  ~Exchange() override {
    if (!is_over()) ranks_.abort_in_time();
  }

  void mark_end() {
    ranks_.device_->record(is_done_.get(), ranks_.stream_->get());
    is_begun_ = true;
  }

 private:
  void do_finish(const Arrived& arrived) override {
    ranks_.wait_for("exchange", is_done_.get());
    is_finished_ = true;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      std::size_t size = 0;
      for (const auto& part : transfers_[i].incoming) size = std::max(size, part.size());
      if (size > 0) arrived(i, 0, size);
    }
  }

  bool is_over() noexcept {
    try {
      return is_finished_ || (is_begun_ && ranks_.device_->is_done(is_done_.get()));
    } catch (...) {
      return false;
    }
  }

  NcclCommunicator& ranks_;
  std::vector<Transfer> transfers_;
  OwnedEvent is_done_;
  bool is_begun_ = false;  // the mark is on the stream
  bool is_finished_ = false;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<Device> device, const NcclFunctions& nccl,
                                   const NcclOptions& options)
    : device_(std::move(device)), nccl_(nccl), options_(options) {
  VSR_CHECK(device_, "an NCCL communicator needs a device");
  refuse_shared_devices();
  NcclUniqueId id;
  agree_all_ok("making the NCCL communicator", [&] {
    device_->make_current();
    stream_ = std::make_unique<OwnedStream>(*device_);
    work_is_there_ = std::make_unique<OwnedEvent>(*device_);
    is_done_ = std::make_unique<OwnedEvent>(*device_);
    if (rank_ != 0) return;
    const NcclResult result = nccl_.get_unique_id(&id);
    if (result != NcclResult::success)
      throw Error(ExitCode::communication, "NCCL cannot be used: " + trouble(result));
  });
  broadcast(std::span<char>(id.bytes), 0);
  meet(id);
}

NcclCommunicator::~NcclCommunicator() {
  abort_in_time();
}

void NcclCommunicator::refuse_shared_devices() {
  const std::vector<std::string> uuids = all_gather_strings(device_->uuid());
  const std::vector<std::string> names = all_gather_strings(device_->name() + " on " + host_);
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    const bool is_shared = std::ranges::count(uuids, uuids[i]) > 1;
    if (!is_shared) continue;
    std::string table;
    for (std::size_t rank = 0; rank < uuids.size(); ++rank)
      table += "\n  rank " + std::to_string(rank) + ": " + names[rank] + ", " + uuids[rank];
    throw ConfigurationError(
        "two ranks have the same GPU, which NCCL does not allow; start as many ranks on a node as "
        "it has GPUs, or let the launcher give each rank its own (Slurm: --gpus-per-task=1):" +
        table);
  }
}

// Every rank gives up in time, so all of them get to the agreement.
void NcclCommunicator::meet(const NcclUniqueId& id) {
  const Meeting mine = meet_alone(id);
  const std::vector<char> are_late = all_gather(static_cast<char>(mine.is_late));
  const std::vector<std::string> troubles = all_gather_strings(mine.trouble);
  std::vector<int> missing;
  int cause = -1;
  for (int rank = 0; rank < world_; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (troubles[at].empty()) continue;
    missing.push_back(rank);
    // Where one rank fails the others wait in vain: an error says more than their time-out.
    if (cause < 0 || (are_late[static_cast<std::size_t>(cause)] && !are_late[at])) cause = rank;
  }
  if (missing.empty()) return;
  abort_in_time();
  throw AgreedError(ExitCode::communication,
                    "NCCL did not bring " + list_of(missing) + " of " + std::to_string(world_) +
                        " together: rank " + std::to_string(cause) + ": " +
                        troubles[static_cast<std::size_t>(cause)] +
                        "; NCCL_DEBUG=INFO shows what it tried, --backend mpi does without it",
                    cause);
}

NcclCommunicator::Meeting NcclCommunicator::meet_alone(const NcclUniqueId& id) {
  const auto start = Clock::now();
  NcclResult state = nccl_.init_rank(&comm_, world_, id, rank_);
  while (state == NcclResult::in_progress) {
    if (Clock::now() - start > options_.time_limit)
      return {true, "no answer after " + std::to_string(options_.time_limit.count()) + " ms"};
    std::this_thread::sleep_for(kPoll);
    const NcclResult asked = nccl_.async_error(comm_, &state);
    if (asked != NcclResult::success) state = asked;
  }
  return {false, state == NcclResult::success ? "" : trouble(state)};
}

std::string NcclCommunicator::trouble(NcclResult result) const {
  const std::string more = nccl_.last_error(comm_);
  return std::string(nccl_.error_text(result)) + (more.empty() ? "" : " (" + more + ")");
}

// The end of a broken communicator may itself wait for ever, so it runs beside this thread.
bool NcclCommunicator::abort_in_time() noexcept {
  if (comm_ == nullptr) return true;
  const NcclComm comm = std::exchange(comm_, nullptr);
  try {
    auto promise = std::make_shared<std::promise<void>>();
    std::thread([promise, comm, abort = nccl_.abort, device = device_.get()] {
      abort(comm);
      promise->set_value();
    }).detach();
    return promise->get_future().wait_for(options_.abort_limit) == std::future_status::ready;
  } catch (...) {
    return false;  // no thread to be had: the end of the process frees it
  }
}

void NcclCommunicator::give_up(const char* what, const std::string& why) {
  const bool is_ended = abort_in_time();
  throw CommError("rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " + host_ +
                  ", " + device_->name() + ": NCCL " + what + " failed: " + why +
                  (is_ended ? "" : "; its communicator could not be ended in time"));
}

// Inside a group nothing has started; its end tells. A group belongs to the thread, so it is ended
// while the communicator of its calls is still there.
void NcclCommunicator::check(const char* what, NcclResult result) {
  if (is_in_group_) {
    if (result == NcclResult::success || result == NcclResult::in_progress) return;
    const std::string why = trouble(result);
    is_in_group_ = false;
    nccl_.group_end();
    give_up(what, why);
  }
  const auto start = Clock::now();
  while (result == NcclResult::in_progress) {
    if (Clock::now() - start > options_.time_limit)
      give_up(what, "not started after " + std::to_string(options_.time_limit.count()) + " ms");
    std::this_thread::sleep_for(kPoll);
    const NcclResult asked = nccl_.async_error(comm_, &result);
    if (asked != NcclResult::success) result = asked;
  }
  if (result != NcclResult::success) give_up(what, trouble(result));
}

void NcclCommunicator::require_alive() const {
  if (comm_ == nullptr)
    throw CommError("rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " +
                    host_ + ": the NCCL communicator was closed or has failed");
}

void NcclCommunicator::start_after_work() {
  require_alive();
  device_->record(work_is_there_->get(), device_->work_stream());
  device_->wait(stream_->get(), work_is_there_->get());
}

void NcclCommunicator::in_group(const char* what, const std::function<void()>& calls) {
  check(what, nccl_.group_start());
  is_in_group_ = true;
  calls();
  is_in_group_ = false;
  check(what, nccl_.group_end());
}

void NcclCommunicator::run(const char* what, const std::function<void()>& calls) {
  start_after_work();
  calls();
  device_->record(is_done_->get(), stream_->get());
  wait_for(what, is_done_->get());
}

void NcclCommunicator::wait_for(const char* what, DeviceEvent event) {
  require_alive();  // an abort passes the marks of what it cuts short
  device_->wait(device_->work_stream(), event);
  const auto start = Clock::now();
  while (!device_->is_done(event)) {
    NcclResult state = NcclResult::success;
    const NcclResult asked = nccl_.async_error(comm_, &state);
    if (asked != NcclResult::success) state = asked;
    if (state != NcclResult::success && state != NcclResult::in_progress)
      give_up(what, trouble(state));
    if (Clock::now() - start > options_.time_limit)
      give_up(what, "not over after " + std::to_string(options_.time_limit.count()) + " ms");
    std::this_thread::sleep_for(kPoll);
  }
}

std::unique_ptr<PendingExchange> NcclCommunicator::do_begin_exchange(
    std::span<const Transfer> transfers, std::size_t) {
  const auto own = static_cast<std::size_t>(rank_);
  for (const Transfer& transfer : transfers)
    VSR_CHECK(transfer.outgoing[own].size() == transfer.incoming[own].size(),
              "got " + std::to_string(transfer.outgoing[own].size()) +
                  " bytes for the own rank and room for " +
                  std::to_string(transfer.incoming[own].size()));
  auto exchange =
      std::make_unique<Exchange>(*this, std::vector<Transfer>(transfers.begin(), transfers.end()));
  start_after_work();
  for (const Transfer& transfer : transfers) {
    if (!transfer.outgoing[own].empty())
      device_->copy(transfer.outgoing[own], transfer.incoming[own], stream_->get());
    in_group("exchange", [&] {
      for (std::size_t step = 1; step < static_cast<std::size_t>(world_); ++step) {
        const std::size_t to = (own + step) % static_cast<std::size_t>(world_);
        const std::size_t from =
            (own + static_cast<std::size_t>(world_) - step) % static_cast<std::size_t>(world_);
        const std::span<const std::byte> out = transfer.outgoing[to];
        each_piece(out.size(), options_.chunk_bytes, [&](std::size_t begin, std::size_t end) {
          check("send", nccl_.send(out.data() + begin, end - begin, NcclType::bytes,
                                   static_cast<int>(to), comm_, stream_->get()));
        });
        const std::span<std::byte> in = transfer.incoming[from];
        each_piece(in.size(), options_.chunk_bytes, [&](std::size_t begin, std::size_t end) {
          check("receive", nccl_.receive(in.data() + begin, end - begin, NcclType::bytes,
                                         static_cast<int>(from), comm_, stream_->get()));
        });
        sent_bytes_ += static_cast<std::int64_t>(out.size());
      }
    });
  }
  exchange->mark_end();
  return exchange;
}

void NcclCommunicator::do_all_gather_bulk(std::span<std::byte> all,
                                          std::span<const std::size_t> sizes_bytes) {
  std::vector<std::size_t> starts(sizes_bytes.size() + 1, 0);
  std::partial_sum(sizes_bytes.begin(), sizes_bytes.end(), starts.begin() + 1);
  VSR_CHECK(sizes_bytes.size() == static_cast<std::size_t>(world_) && all.size() == starts.back(),
            "got room for " + std::to_string(all.size()) + " bytes, needed " +
                std::to_string(starts.back()) + " of " + std::to_string(sizes_bytes.size()) +
                " ranks in a world of " + std::to_string(world_));
  const auto own = static_cast<std::size_t>(rank_);
  if (all.empty()) return;
  run("all-gather", [&] {
    if (are_equal(sizes_bytes) && sizes_bytes.front() <= options_.chunk_bytes) {
      check("all-gather",
            nccl_.all_gather(all.data() + starts[own], all.data(), sizes_bytes.front(),
                             NcclType::bytes, comm_, stream_->get()));
      return;
    }
    // One broadcast from each owner: shards differ by a block.
    each_piece(largest(sizes_bytes), options_.chunk_bytes, [&](std::size_t begin, std::size_t end) {
      in_group("all-gather", [&] {
        for (std::size_t owner = 0; owner < sizes_bytes.size(); ++owner) {
          if (begin >= sizes_bytes[owner]) continue;
          std::byte* const part = all.data() + starts[owner] + begin;
          check("broadcast",
                nccl_.broadcast(part, part, std::min(end, sizes_bytes[owner]) - begin,
                                NcclType::bytes, static_cast<int>(owner), comm_, stream_->get()));
        }
      });
    });
  });
  sent_bytes_ += static_cast<std::int64_t>(sizes_bytes[own]) * (world_ - 1);
}

void NcclCommunicator::do_broadcast_bulk(std::span<std::byte> data, int root) {
  VSR_CHECK(root >= 0 && root < world_,
            "got root " + std::to_string(root) + " in a world of " + std::to_string(world_));
  if (data.empty()) return;
  run("broadcast", [&] {
    each_piece(data.size(), options_.chunk_bytes, [&](std::size_t begin, std::size_t end) {
      std::byte* const part = data.data() + begin;
      check("broadcast",
            nccl_.broadcast(part, part, end - begin, NcclType::bytes, root, comm_, stream_->get()));
    });
  });
  if (rank_ == root) sent_bytes_ += static_cast<std::int64_t>(data.size()) * (world_ - 1);
}

void NcclCommunicator::all_reduce(std::span<std::byte> values, NcclType type,
                                  std::size_t element_bytes) {
  if (values.empty()) return;
  const std::size_t piece =
      std::max(element_bytes, options_.chunk_bytes / element_bytes * element_bytes);
  run("all-reduce", [&] {
    each_piece(values.size(), piece, [&](std::size_t begin, std::size_t end) {
      std::byte* const part = values.data() + begin;
      check("all-reduce", nccl_.all_reduce_sum(part, part, (end - begin) / element_bytes, type,
                                               comm_, stream_->get()));
    });
  });
  sent_bytes_ += 2 * static_cast<std::int64_t>(values.size()) * (world_ - 1) / world_;
}

void NcclCommunicator::do_all_reduce_fp16(std::span<std::uint16_t> values) {
  all_reduce(std::as_writable_bytes(values), NcclType::fp16, 2);
}
void NcclCommunicator::do_all_reduce_bf16(std::span<std::uint16_t> values) {
  all_reduce(std::as_writable_bytes(values), NcclType::bf16, 2);
}
void NcclCommunicator::do_all_reduce_fp32(std::span<float> values) {
  all_reduce(std::as_writable_bytes(values), NcclType::fp32, 4);
}

void NcclCommunicator::do_reduce_scatter(SumType type, std::span<const std::byte> values,
                                         std::span<std::byte> mine,
                                         std::span<const std::size_t> sizes_bytes) {
  if (values.empty()) return;
  const std::size_t width = type == SumType::fp32 ? 4 : 2;
  run("reduce-scatter", [&] {
    if (are_equal(sizes_bytes) && sizes_bytes.front() <= options_.chunk_bytes) {
      check("reduce-scatter",
            nccl_.reduce_scatter_sum(values.data(), mine.data(), mine.size() / width,
                                     nccl_type(type), comm_, stream_->get()));
      return;
    }
    const std::size_t piece = std::max(width, options_.chunk_bytes / width * width);
    each_piece(largest(sizes_bytes), piece, [&](std::size_t begin, std::size_t end) {
      in_group("reduce-scatter", [&] {
        std::size_t start = 0;
        for (std::size_t owner = 0; owner < sizes_bytes.size(); ++owner) {
          const std::size_t size = sizes_bytes[owner];
          if (begin < size) {
            std::byte* const out =
                owner == static_cast<std::size_t>(rank_) ? mine.data() + begin : nullptr;
            check("reduce", nccl_.reduce_sum(values.data() + start + begin, out,
                                             (std::min(end, size) - begin) / width, nccl_type(type),
                                             static_cast<int>(owner), comm_, stream_->get()));
          }
          start += size;
        }
      });
    });
  });
  sent_bytes_ += static_cast<std::int64_t>(values.size() - mine.size());
}

void NcclCommunicator::close() {
  if (std::exchange(is_closed_, true)) return;
  // A rank that went on alone would end what the others still use; and where one was aborted, the
  // others have nobody left to end with.
  const std::vector<char> are_alive = all_gather(static_cast<char>(comm_ != nullptr));
  if (std::ranges::count(are_alive, 0) > 0) {
    abort_in_time();
    return;
  }
  check("finalize", nccl_.finalize(comm_));
  const NcclComm comm = std::exchange(comm_, nullptr);
  const NcclResult result = nccl_.destroy(comm);
  if (result != NcclResult::success)
    throw CommError("rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " +
                    host_ + ": NCCL could not end its communicator: " + nccl_.error_text(result));
}

}  // namespace vsr::comm
