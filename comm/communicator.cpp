// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include "comm/error.hpp"
#include "comm/mpi_communicator.hpp"

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
  std::size_t bytes = 0;
  for (const std::span<const std::byte> part : outgoing) bytes += part.size();
  recorded(Operation::exchange, bytes, [&] { do_exchange(outgoing, incoming); });
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
  if (backend == Backend::nccl) {
    throw NotCompiled("backend nccl (the MPI backend does the same: --backend mpi)",
                      "the NCCL communicator");
  }
  return std::make_unique<MpiCommunicator>();
}

}  // namespace vsr::comm
