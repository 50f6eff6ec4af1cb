// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handles.hpp"
#include "tests/support/fake_nccl_operation.hpp"

namespace vsr::test {
namespace {

using comm::DeviceStream;
using comm::NcclComm;
using comm::NcclResult;
using comm::NcclType;
using fake::Call;
using fake::Expected;
using fake::Header;
using fake::kPeerTag;
using fake::kTagsPerCommunicator;
using fake::Message;
using fake::Operation;

std::size_t width_of(NcclType type) {
  switch (type) {
    case NcclType::bytes:
      return 1;
    case NcclType::fp16:
    case NcclType::bf16:
      return 2;
    case NcclType::fp32:
      return 4;
    default:
      return 8;
  }
}

void add(NcclType type, std::span<const std::byte> values, std::span<std::byte> sum) {
  const std::size_t count = sum.size() / width_of(type);
  const auto* const in = values.data();
  auto* const out = sum.data();
  if (type == NcclType::fp16)
    return comm::add_fp16({reinterpret_cast<const std::uint16_t*>(in), count},
                          {reinterpret_cast<std::uint16_t*>(out), count});
  if (type == NcclType::bf16)
    return comm::add_bf16({reinterpret_cast<const std::uint16_t*>(in), count},
                          {reinterpret_cast<std::uint16_t*>(out), count});
  VSR_CHECK(type == NcclType::fp32, "the fake adds fp16, bf16 and fp32 only");
  for (std::size_t i = 0; i < count; ++i)
    reinterpret_cast<float*>(out)[i] += reinterpret_cast<const float*>(in)[i];
}

void add_fp16_for_mpi(void* in, void* sum, int* count, MPI_Datatype*) noexcept {
  add(NcclType::fp16, {static_cast<std::byte*>(in), static_cast<std::size_t>(*count) * 2},
      {static_cast<std::byte*>(sum), static_cast<std::size_t>(*count) * 2});
}
void add_bf16_for_mpi(void* in, void* sum, int* count, MPI_Datatype*) noexcept {
  add(NcclType::bf16, {static_cast<std::byte*>(in), static_cast<std::size_t>(*count) * 2},
      {static_cast<std::byte*>(sum), static_cast<std::size_t>(*count) * 2});
}

comm::MpiOp op_of(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  VSR_MPI(MPI_Op_create(function, 1, &op));
  return comm::MpiOp(op);
}

class FakeCommunicator;

// One for the whole process, never freed: a message that an aborted fake has left on its way would
// meet the next communicator that Open MPI gives the same number.
MPI_Comm ranks_of_all_fakes() {
  static const MPI_Comm ranks = [] {
    MPI_Comm duplicate = MPI_COMM_NULL;
    VSR_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &duplicate));
    VSR_MPI(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN));
    return duplicate;
  }();
  return ranks;
}

// All that the functions of the table share.
struct Library {
  explicit Library(FakeDevice& fake) : device(fake) {
    VSR_MPI(MPI_Comm_rank(mpi, &rank));
    VSR_MPI(MPI_Comm_size(mpi, &world));
    sum_fp16 = op_of(add_fp16_for_mpi);
    sum_bf16 = op_of(add_bf16_for_mpi);
  }

  NcclResult refuse(const std::string& why) {
    last_error = why;
    return NcclResult::invalid_argument;
  }
  // The next operation of this rank is the one that goes wrong.
  bool strikes(NcclFault::Kind kind, int operation) const {
    return fault.kind == kind && fault.operation == operation;
  }

  FakeDevice& device;
  MPI_Comm mpi = ranks_of_all_fakes();
  comm::MpiOp sum_fp16, sum_bf16;
  int rank = 0;
  int world = 1;
  NcclFault fault;
  int operations = 0;

  int group_depth = 0;
  std::vector<Call> group;
  FakeCommunicator* group_comm = nullptr;
  DeviceStream group_stream = nullptr;
  std::map<std::string, int> calls;
  std::atomic<int> live = 0;
  std::string last_error;
  // Kept until the end: messages may still be under way.
  std::vector<std::shared_ptr<FakeCommunicator>> communicators;
};

Library* library = nullptr;
// Of all fakes of the process: what an aborted one has left on its way must not reach the next.
int ids = 0;

Call to_all(const Header& header, std::span<const std::byte> data) {
  Call call;
  for (int peer = 0; peer < library->world; ++peer)
    if (peer != library->rank) call.outgoing.push_back({peer, header, data});
  return call;
}

class FakeCommunicator {
 public:
  FakeCommunicator(int id, bool answers)
      : first_tag_(id % 256 * kTagsPerCommunicator),
        hello_(answers ? std::make_unique<Operation>(library->mpi, library->rank, first_tag_,
                                                     hello_calls())
                       : nullptr) {}

  // A call or two later: what asks must ask again.
  NcclResult state() {
    if (is_aborted_) return NcclResult::invalid_usage;
    if (!error_.empty()) {
      library->last_error = error_;
      return NcclResult::remote_error;
    }
    if (!is_ready_) {
      if (!hello_ || !hello_->look(error_)) return NcclResult::in_progress;
      is_ready_ = true;
    }
    if (looks_to_wait_ > 0) {
      --looks_to_wait_;
      return NcclResult::in_progress;
    }
    return NcclResult::success;
  }

  NcclResult put(DeviceStream stream, std::vector<Call> calls) {
    if (is_aborted_ || !is_ready_ || is_finalized_)
      return library->refuse("no usable communicator");
    const int number = library->operations++;
    // Collectives are the same on all ranks, sends are not: only the former count.
    const bool is_collective = std::ranges::any_of(calls, &Call::is_collective);
    if (is_collective) ++next_;
    const int tag = first_tag_ + 1 + next_ % (kPeerTag - 1);
    auto operation =
        std::make_shared<Operation>(library->mpi, library->rank, tag, std::move(calls));
    library->device.put(stream, [this, number, operation] { return look(number, *operation); });
    looks_to_wait_ = 2;
    return NcclResult::in_progress;
  }

  void abort() { is_aborted_ = true; }
  NcclResult finalize() {
    is_finalized_ = true;
    looks_to_wait_ = 2;
    return NcclResult::in_progress;
  }
  bool may_be_destroyed() const { return is_finalized_ && looks_to_wait_ == 0; }

 private:
  static std::vector<Call> hello_calls() {
    const Header header{Header::Kind::hello, 0, -1, static_cast<std::uint64_t>(library->world)};
    Call call = to_all(header, {});
    for (const Message& message : call.outgoing)
      call.incoming.push_back({message.peer, header, {}});
    return {call};
  }

  bool look(int number, Operation& operation) {
    if (library->strikes(NcclFault::Kind::hangs, number)) return false;
    if (library->strikes(NcclFault::Kind::async_error, number))
      error_ = "injected: the network broke";
    return error_.empty() && !is_aborted_ && operation.look(error_);
  }

  int first_tag_;
  std::unique_ptr<Operation> hello_;
  int next_ = 0;
  int looks_to_wait_ = 0;
  bool is_ready_ = false;
  bool is_finalized_ = false;
  std::atomic<bool> is_aborted_ = false;
  std::string error_;
};

FakeCommunicator& of(NcclComm comm) {
  return *reinterpret_cast<FakeCommunicator*>(comm);
}

// A call by itself is a group of one.
NcclResult enqueue(NcclComm comm, DeviceStream stream, Call call) {
  if (library->group_depth == 0) {
    std::vector<Call> calls;
    calls.push_back(std::move(call));
    return of(comm).put(stream, std::move(calls));
  }
  if (library->group_comm != nullptr &&
      (library->group_comm != &of(comm) || library->group_stream != stream))
    return library->refuse("a group over two communicators or streams, which the fake does not do");
  library->group_comm = &of(comm);
  library->group_stream = stream;
  library->group.push_back(std::move(call));
  return NcclResult::success;
}

std::span<const std::byte> bytes_of(const void* memory, std::size_t count, NcclType type) {
  return {static_cast<const std::byte*>(memory), count * width_of(type)};
}
std::span<std::byte> bytes_of(void* memory, std::size_t count, NcclType type) {
  return {static_cast<std::byte*>(memory), count * width_of(type)};
}

bool holds(std::span<const std::byte> bytes) {
  return bytes.empty() || library->device.holds(bytes.data(), bytes.size());
}

constexpr const char* kForeign = "memory that is not the device's";

Header header_of(Header::Kind kind, std::size_t count, NcclType type, int root = -1) {
  return {kind, static_cast<int>(type), root, count};
}

// In MPI's own order, as the MPI backend adds; nobody gets there before all have said what they do.
NcclResult all_reduce_sum(const void* in, void* out, std::size_t count, NcclType type,
                          NcclComm comm, DeviceStream stream) {
  ++library->calls["all_reduce"];
  const auto from = bytes_of(in, count, type);
  const auto to = bytes_of(out, count, type);
  if (!holds(from) || !holds(to)) return library->refuse(kForeign);
  const Header header = header_of(Header::Kind::all_reduce, count, type);
  Call call = to_all(header, {});
  for (const Message& message : call.outgoing) call.incoming.push_back({message.peer, header, {}});
  call.finish = [from, to, count, type] {
    if (from.data() != to.data()) std::memcpy(to.data(), from.data(), to.size());
    MPI_Datatype kind = type == NcclType::fp32 ? MPI_FLOAT : MPI_UINT16_T;
    MPI_Op op = type == NcclType::fp32   ? MPI_SUM
                : type == NcclType::fp16 ? library->sum_fp16.get()
                                         : library->sum_bf16.get();
    VSR_MPI(
        MPI_Allreduce(MPI_IN_PLACE, to.data(), static_cast<int>(count), kind, op, library->mpi));
  };
  return enqueue(comm, stream, std::move(call));
}

// Parts of all ranks arrive in any order and are added in that of the ranks.
struct Sum {
  std::vector<std::vector<std::byte>> parts;
  std::span<const std::byte> own;
  std::span<std::byte> out;
  NcclType type = NcclType::fp32;
  void finish() {
    const auto own_at = static_cast<std::size_t>(library->rank);
    parts[own_at].assign(own.begin(), own.end());
    std::vector<std::byte> sum = parts.front();
    for (std::size_t rank = 1; rank < parts.size(); ++rank) add(type, parts[rank], sum);
    std::memcpy(out.data(), sum.data(), sum.size());
  }
};

// Let `call` end with the sum, at this rank, of what all ranks send it.
void expect_sum(Call& call, const Header& header, std::span<const std::byte> own,
                std::span<std::byte> out, NcclType type) {
  auto sum = std::make_shared<Sum>();
  sum->parts.resize(static_cast<std::size_t>(library->world));
  sum->own = own;
  sum->out = out;
  sum->type = type;
  for (int peer = 0; peer < library->world; ++peer) {
    if (peer == library->rank) continue;
    call.incoming.push_back({peer, header, [sum, peer](std::span<const std::byte> data) {
                               sum->parts[static_cast<std::size_t>(peer)].assign(data.begin(),
                                                                                 data.end());
                             }});
  }
  call.finish = [sum] { sum->finish(); };
}

NcclResult reduce_scatter_sum(const void* in, void* out, std::size_t count, NcclType type,
                              NcclComm comm, DeviceStream stream) {
  ++library->calls["reduce_scatter"];
  const auto from = bytes_of(in, count * static_cast<std::size_t>(library->world), type);
  const auto to = bytes_of(out, count, type);
  if (!holds(from) || !holds(to)) return library->refuse(kForeign);
  const Header header = header_of(Header::Kind::reduce_scatter, count, type);
  Call call;
  for (int peer = 0; peer < library->world; ++peer)
    if (peer != library->rank)
      call.outgoing.push_back(
          {peer, header, from.subspan(static_cast<std::size_t>(peer) * to.size(), to.size())});
  expect_sum(call, header,
             from.subspan(static_cast<std::size_t>(library->rank) * to.size(), to.size()), to,
             type);
  return enqueue(comm, stream, std::move(call));
}

NcclResult reduce_sum(const void* in, void* out, std::size_t count, NcclType type, int root,
                      NcclComm comm, DeviceStream stream) {
  ++library->calls["reduce"];
  const auto from = bytes_of(in, count, type);
  const auto to = bytes_of(out, root == library->rank ? count : 0, type);
  if (!holds(from) || !holds(to)) return library->refuse(kForeign);
  const Header header = header_of(Header::Kind::reduce, count, type, root);
  Call call;
  if (root == library->rank)
    expect_sum(call, header, from, to, type);
  else
    call.outgoing.push_back({root, header, from});
  return enqueue(comm, stream, std::move(call));
}

NcclResult all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                      DeviceStream stream) {
  ++library->calls["all_gather"];
  const auto from = bytes_of(in, count, type);
  const auto to = bytes_of(out, count * static_cast<std::size_t>(library->world), type);
  if (!holds(from) || !holds(to)) return library->refuse(kForeign);
  const Header header = header_of(Header::Kind::all_gather, count, type);
  Call call = to_all(header, from);
  for (int peer = 0; peer < library->world; ++peer) {
    const auto place = to.subspan(static_cast<std::size_t>(peer) * from.size(), from.size());
    if (peer != library->rank)
      call.incoming.push_back({peer, header, [place](std::span<const std::byte> data) {
                                 std::memcpy(place.data(), data.data(), data.size());
                               }});
    else
      call.finish = [place, from] { std::memmove(place.data(), from.data(), from.size()); };
  }
  return enqueue(comm, stream, std::move(call));
}

NcclResult broadcast(const void* in, void* out, std::size_t count, NcclType type, int root,
                     NcclComm comm, DeviceStream stream) {
  ++library->calls["broadcast"];
  const auto from = bytes_of(in, count, type);
  const auto to = bytes_of(out, count, type);
  if (!holds(to) || (root == library->rank && !holds(from))) return library->refuse(kForeign);
  const Header header = header_of(Header::Kind::broadcast, count, type, root);
  Call call;
  if (root == library->rank) {
    call = to_all(header, from);
    call.finish = [from, to] { std::memmove(to.data(), from.data(), from.size()); };
  } else {
    call.incoming.push_back({root, header, [to](std::span<const std::byte> data) {
                               std::memcpy(to.data(), data.data(), data.size());
                             }});
  }
  return enqueue(comm, stream, std::move(call));
}

NcclResult send(const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                DeviceStream stream) {
  ++library->calls["send"];
  const auto from = bytes_of(data, count, type);
  if (!holds(from)) return library->refuse(kForeign);
  if (library->group_depth == 0) return library->refuse("a send outside a group may wait for ever");
  Call call;
  call.is_collective = false;
  call.outgoing.push_back({peer, header_of(Header::Kind::send, count, type), from});
  return enqueue(comm, stream, std::move(call));
}

NcclResult receive(void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                   DeviceStream stream) {
  ++library->calls["receive"];
  const auto to = bytes_of(data, count, type);
  if (!holds(to)) return library->refuse(kForeign);
  if (library->group_depth == 0)
    return library->refuse("a receive outside a group may wait for ever");
  Call call;
  call.is_collective = false;
  call.incoming.push_back(
      {peer, header_of(Header::Kind::send, count, type), [to](std::span<const std::byte> bytes) {
         std::memcpy(to.data(), bytes.data(), bytes.size());
       }});
  return enqueue(comm, stream, std::move(call));
}

NcclResult group_start() {
  ++library->calls["group_start"];
  ++library->group_depth;
  return NcclResult::success;
}

NcclResult group_end() {
  if (library->group_depth == 0) return library->refuse("a group that was not started");
  if (--library->group_depth > 0) return NcclResult::success;
  FakeCommunicator* const comm = std::exchange(library->group_comm, nullptr);
  if (comm == nullptr) return NcclResult::success;
  return comm->put(library->group_stream, std::exchange(library->group, {}));
}

NcclResult get_unique_id(comm::NcclUniqueId* id) {
  ++library->calls["get_unique_id"];
  id->bytes.fill('v');
  id->bytes.front() = static_cast<char>(ids++ % 100);
  return NcclResult::success;
}

NcclResult init_rank(NcclComm* comm, int world, comm::NcclUniqueId id, int rank) {
  ++library->calls["init"];
  if (world != library->world || rank != library->rank || id.bytes.back() != 'v')
    return library->refuse("another world, rank or id than those of the others");
  if (library->fault.kind == NcclFault::Kind::init_fails) {
    library->last_error = "injected: no route to rank 0";
    return NcclResult::system_error;
  }
  const bool answers = library->fault.kind != NcclFault::Kind::init_hangs;
  library->communicators.push_back(std::make_shared<FakeCommunicator>(id.bytes.front(), answers));
  ++library->live;
  *comm = reinterpret_cast<NcclComm>(library->communicators.back().get());
  return NcclResult::in_progress;
}

NcclResult async_error(NcclComm comm, NcclResult* state) {
  *state = of(comm).state();
  return NcclResult::success;
}

NcclResult abort_communicator(NcclComm comm) {
  if (library->fault.abort_hangs) std::this_thread::sleep_for(std::chrono::seconds(1));
  of(comm).abort();
  --library->live;
  return NcclResult::success;
}

NcclResult finalize(NcclComm comm) {
  ++library->calls["finalize"];
  return of(comm).finalize();
}

NcclResult destroy(NcclComm comm) {
  ++library->calls["destroy"];
  if (!of(comm).may_be_destroyed()) return library->refuse("destroy before finalize was over");
  --library->live;
  return NcclResult::success;
}

const char* error_text(NcclResult result) {
  switch (result) {
    case NcclResult::system_error:
      return "unhandled system error";
    case NcclResult::remote_error:
      return "remote process exited or there was a network error";
    case NcclResult::invalid_argument:
      return "invalid argument";
    default:
      return "no error";
  }
}

}  // namespace

struct FakeNccl::Impl {
  explicit Impl(FakeDevice& device) : shared(device) {}
  Library shared;
  comm::NcclFunctions table{.error_text = &error_text,
                            .last_error = [](NcclComm) { return library->last_error.c_str(); },
                            .get_unique_id = &get_unique_id,
                            .init_rank = &init_rank,
                            .async_error = &async_error,
                            .abort = &abort_communicator,
                            .finalize = &finalize,
                            .destroy = &destroy,
                            .group_start = &group_start,
                            .group_end = &group_end,
                            .all_reduce_sum = &all_reduce_sum,
                            .reduce_scatter_sum = &reduce_scatter_sum,
                            .reduce_sum = &reduce_sum,
                            .all_gather = &all_gather,
                            .broadcast = &broadcast,
                            .send = &send,
                            .receive = &receive};
};

FakeNccl::FakeNccl(FakeDevice& device) : impl_(std::make_unique<Impl>(device)) {
  VSR_CHECK(library == nullptr, "one fake NCCL at a time");
  library = &impl_->shared;
}

FakeNccl::~FakeNccl() {
  library = nullptr;
}

const comm::NcclFunctions& FakeNccl::functions() const noexcept {
  return impl_->table;
}
void FakeNccl::inject(NcclFault fault) {
  impl_->shared.fault = fault;
  impl_->shared.fault.operation += impl_->shared.operations;
}
int FakeNccl::calls(const std::string& function) const {
  const auto found = impl_->shared.calls.find(function);
  return found == impl_->shared.calls.end() ? 0 : found->second;
}
int FakeNccl::live_communicators() const {
  return impl_->shared.live;
}

}  // namespace vsr::test
