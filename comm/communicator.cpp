// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include <limits>

#include "comm/device/device_plan.hpp"
#include "comm/error.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/nccl_communicator.hpp"

namespace vsr::comm {
namespace {

struct Failure {
  int exit_code = 0;  // 0: none
  std::string message;
};

Failure run_and_catch(std::string_view what, const std::function<void()>& action) {
  constexpr int kInternal = static_cast<int>(ExitCode::internal);
  try {
    action();
    return {};
  } catch (const AgreedError&) {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    return {static_cast<int>(error.exit_code()), error.what()};
  } catch (const std::exception& error) {
    return {kInternal, std::string(what) + ": " + error.what()};
  } catch (...) {
    return {kInternal, std::string(what) + ": an exception of unknown type"};
  }
}

}  // namespace

// A call that throws is one that was not left.
template <typename Call>
void Communicator::recorded(Operation operation, std::size_t bytes, const Call& call) {
  if (recorder_) recorder_->enter(operation, bytes, purpose_);
  call();
  if (recorder_) recorder_->leave();
}

void Communicator::barrier() {
  recorded(Operation::barrier, 0, [&] { do_barrier(); });
}

void Communicator::broadcast_bytes(std::span<std::byte> data, int root) {
  recorded(Operation::broadcast, data.size(), [&] { do_broadcast(data, root); });
}

void Communicator::all_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                                    std::span<const std::size_t> sizes_bytes) {
  recorded(Operation::all_gather, mine.size(), [&] { do_all_gather(mine, all, sizes_bytes); });
}

void Communicator::exchange_bytes(std::span<const std::span<const std::byte>> outgoing,
                                  std::span<const std::span<std::byte>> incoming) {
  const Transfer transfer{{outgoing.begin(), outgoing.end()}, {incoming.begin(), incoming.end()}};
  exchange_pieces({&transfer, 1}, std::numeric_limits<std::size_t>::max(),
                  [](std::size_t, std::size_t, std::size_t) {});
}

void Communicator::exchange_pieces(std::span<const Transfer> transfers, std::size_t piece_bytes,
                                   const Arrived& arrived) {
  finish_exchange(begin_exchange(transfers, piece_bytes), arrived);
}

std::unique_ptr<PendingExchange> Communicator::begin_exchange(std::span<const Transfer> transfers,
                                                              std::size_t piece_bytes) {
  VSR_CHECK(piece_bytes > 0, "got pieces of 0 bytes");
  const auto world = static_cast<std::size_t>(world_);
  std::size_t bytes = 0;
  for (const Transfer& transfer : transfers) {
    VSR_CHECK(transfer.outgoing.size() == world && transfer.incoming.size() == world,
              "got " + std::to_string(transfer.outgoing.size()) + " outgoing and " +
                  std::to_string(transfer.incoming.size()) + " incoming spans in a world of " +
                  std::to_string(world_));
    for (const std::span<const std::byte> part : transfer.outgoing) bytes += part.size();
  }
  std::unique_ptr<PendingExchange> exchange = do_begin_exchange(transfers, piece_bytes);
  exchange->bytes_ = bytes;
  return exchange;
}

// What is recorded is the step that waits for other ranks.
void Communicator::finish_exchange(std::unique_ptr<PendingExchange> exchange,
                                   const Arrived& arrived) {
  VSR_CHECK(exchange, "no exchange was begun");
  recorded(Operation::exchange, exchange->bytes_, [&] { exchange->do_finish(arrived); });
}

void Communicator::all_gather_bulk(std::span<std::byte> all,
                                   std::span<const std::size_t> sizes_bytes) {
  const auto own = static_cast<std::size_t>(rank_);
  const std::size_t bytes = own < sizes_bytes.size() ? sizes_bytes[own] : 0;
  recorded(Operation::all_gather, bytes, [&] { do_all_gather_bulk(all, sizes_bytes); });
}

void Communicator::broadcast_bulk(std::span<std::byte> data, int root) {
  recorded(Operation::broadcast, data.size(), [&] { do_broadcast_bulk(data, root); });
}

void Communicator::all_reduce_sum_fp16(std::span<std::uint16_t> values) {
  recorded(Operation::all_reduce_fp16, values.size_bytes(), [&] { do_all_reduce_fp16(values); });
}

void Communicator::all_reduce_sum_bf16(std::span<std::uint16_t> values) {
  recorded(Operation::all_reduce_bf16, values.size_bytes(), [&] { do_all_reduce_bf16(values); });
}

void Communicator::all_reduce_sum_fp32(std::span<float> values) {
  recorded(Operation::all_reduce_fp32, values.size_bytes(), [&] { do_all_reduce_fp32(values); });
}

void Communicator::reduce_scatter_sum(SumType type, std::span<const std::byte> values,
                                      std::span<std::byte> mine,
                                      std::span<const std::size_t> sizes_bytes) {
  const std::size_t width = type == SumType::fp32 ? 4 : 2;
  const auto own = static_cast<std::size_t>(rank_);
  std::size_t total = 0;
  for (const std::size_t size : sizes_bytes) {
    VSR_CHECK(size % width == 0, "a part of " + std::to_string(size) +
                                     " bytes is no whole number "
                                     "of elements of " +
                                     std::to_string(width) + " bytes");
    total += size;
  }
  VSR_CHECK(sizes_bytes.size() == static_cast<std::size_t>(world_) && total == values.size() &&
                mine.size() == sizes_bytes[own],
            "got " + std::to_string(values.size()) + " bytes, room for " +
                std::to_string(mine.size()) + ", and sizes of " +
                std::to_string(sizes_bytes.size()) + " ranks that make " + std::to_string(total));
  recorded(Operation::reduce_scatter, values.size(),
           [&] { do_reduce_scatter(type, values, mine, sizes_bytes); });
}

void Communicator::do_reduce_scatter(SumType, std::span<const std::byte>, std::span<std::byte>,
                                     std::span<const std::size_t>) {
  throw ArgumentError("backend " + std::string(backend()) +
                      " does not add up on the way; let owners add what an exchange brings");
}

std::vector<std::string> Communicator::all_gather_strings(std::string_view mine) {
  const std::vector<std::size_t> sizes = all_gather(mine.size());
  const std::vector<char> bytes = all_gather(std::span<const char>(mine), sizes);
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::size_t size : sizes) {
    texts.emplace_back(bytes.data() + at, size);
    at += size;
  }
  return texts;
}

std::string Communicator::broadcast_string(std::string_view text, int root) {
  std::uint64_t size = text.size();
  broadcast(std::span<std::uint64_t>(&size, 1), root);
  std::string result(rank_ == root ? text : std::string_view());
  result.resize(size);
  if (size > 0) broadcast(std::span<char>(result), root);
  return result;
}

void Communicator::agree_all_ok(std::string_view what, const std::function<void()>& action) {
  const Failure failure = run_and_catch(what, action);
  const std::vector<int> codes = all_gather(failure.exit_code);
  for (int rank = 0; rank < world_; ++rank) {
    const int code = codes[static_cast<std::size_t>(rank)];
    if (code == 0) continue;
    throw AgreedError(static_cast<ExitCode>(code), broadcast_string(failure.message, rank), rank);
  }
}

std::string_view to_string(Backend backend) noexcept {
  switch (backend) {
    case Backend::mpi:
      return "mpi";
    case Backend::nccl:
      return "nccl";
    case Backend::automatic:
      break;
  }
  return "automatic";
}

std::unique_ptr<Communicator> make_communicator(Backend backend) {
  if (backend != Backend::nccl) return std::make_unique<MpiCommunicator>();
  MpiCommunicator world;
  world.agree_all_ok("loading NCCL", [] { nccl_library(); });
  const DevicePlan plan = plan_devices(world, find_devices());
  if (!plan.reason.empty())
    throw ConfigurationError("backend nccl needs a GPU of its own for each rank, and " +
                             plan.reason + "; --backend mpi does without");
  std::unique_ptr<Device> device;
  world.agree_all_ok("opening a GPU", [&] { device = open_device(plan.index); });
  return std::make_unique<NcclCommunicator>(std::move(device), nccl_library());
}

}  // namespace vsr::comm
