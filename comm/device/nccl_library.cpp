// SPDX-License-Identifier: Apache-2.0
// Fills the table from libnccl.so.2, loaded when it is first asked for: runs without NCCL do not
// need it, and a program that brings its own (LibTorch's does) shares it.
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <string>

#include "comm/device/nccl_functions.hpp"
#include "comm/error.hpp"

namespace vsr::comm {
namespace {

static_assert(NCCL_MAJOR == 2 && sizeof(ncclUniqueId) == sizeof(NcclUniqueId));
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 &&
              ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5 &&
              ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclUint8 == 1 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 &&
              ncclBfloat16 == 9);

// Pointers to the functions of the library.
struct Library {
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
};

template <typename Function>
void find(void* handle, const char* name, Function& function) {
  void* const symbol = dlsym(handle, name);
  if (symbol == nullptr)
    throw ConfigurationError("libnccl.so.2 lacks " + std::string(name) +
                             "; install NCCL 2.28 or later, or use --backend mpi");
  std::memcpy(&function, &symbol, sizeof(function));
}

Library load() {
  // Never closed: NCCL's threads may outlive every communicator.
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    throw ConfigurationError("NCCL cannot be loaded: " + std::string(why == nullptr ? "" : why) +
                             "; install libnccl2, or use --backend mpi");
  }
  Library library;
  find(handle, "ncclGetErrorString", library.error_string);
  find(handle, "ncclGetLastError", library.last_error);
  find(handle, "ncclGetUniqueId", library.get_unique_id);
  find(handle, "ncclCommInitRankConfig", library.init_rank);
  find(handle, "ncclCommGetAsyncError", library.async_error);
  find(handle, "ncclCommAbort", library.abort);
  find(handle, "ncclCommFinalize", library.finalize);
  find(handle, "ncclCommDestroy", library.destroy);
  find(handle, "ncclGroupStart", library.group_start);
  find(handle, "ncclGroupEnd", library.group_end);
  find(handle, "ncclAllReduce", library.all_reduce);
  find(handle, "ncclReduceScatter", library.reduce_scatter);
  find(handle, "ncclReduce", library.reduce);
  find(handle, "ncclAllGather", library.all_gather);
  find(handle, "ncclBroadcast", library.broadcast);
  find(handle, "ncclSend", library.send);
  find(handle, "ncclRecv", library.receive);
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

NcclResult ours(ncclResult_t result) noexcept {
  return static_cast<NcclResult>(result);
}
ncclDataType_t type_of(NcclType type) noexcept {
  return static_cast<ncclDataType_t>(type);
}
ncclComm_t real(NcclComm comm) noexcept {
  return reinterpret_cast<ncclComm_t>(comm);
}
cudaStream_t real(DeviceStream stream) noexcept {
  return reinterpret_cast<cudaStream_t>(stream);
}

NcclResult init_rank(NcclComm* comm, int world, NcclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId unique_id;
  std::memcpy(&unique_id, &id, sizeof(unique_id));
  ncclComm_t made = nullptr;
  const ncclResult_t result = library().init_rank(&made, world, unique_id, rank, &config);
  *comm = reinterpret_cast<NcclComm>(made);
  return ours(result);
}

NcclFunctions fill() {
  NcclFunctions table;
  table.error_text = [](NcclResult result) {
    return library().error_string(static_cast<ncclResult_t>(result));
  };
  table.last_error = [](NcclComm comm) {
    const char* const text = library().last_error(real(comm));
    return text == nullptr ? "" : text;
  };
  table.get_unique_id = [](NcclUniqueId* id) {
    return ours(library().get_unique_id(reinterpret_cast<ncclUniqueId*>(id)));
  };
  table.init_rank = &init_rank;
  table.async_error = [](NcclComm comm, NcclResult* state) {
    ncclResult_t now = ncclSuccess;
    const ncclResult_t result = library().async_error(real(comm), &now);
    *state = ours(now);
    return ours(result);
  };
  table.abort = [](NcclComm comm) { return ours(library().abort(real(comm))); };
  table.finalize = [](NcclComm comm) { return ours(library().finalize(real(comm))); };
  table.destroy = [](NcclComm comm) { return ours(library().destroy(real(comm))); };
  table.group_start = [] { return ours(library().group_start()); };
  table.group_end = [] { return ours(library().group_end()); };
  table.all_reduce_sum = [](const void* in, void* out, std::size_t count, NcclType type,
                            NcclComm comm, DeviceStream stream) {
    return ours(
        library().all_reduce(in, out, count, type_of(type), ncclSum, real(comm), real(stream)));
  };
  table.reduce_scatter_sum = [](const void* in, void* out, std::size_t count, NcclType type,
                                NcclComm comm, DeviceStream stream) {
    return ours(
        library().reduce_scatter(in, out, count, type_of(type), ncclSum, real(comm), real(stream)));
  };
  table.reduce_sum = [](const void* in, void* out, std::size_t count, NcclType type, int root,
                        NcclComm comm, DeviceStream stream) {
    return ours(
        library().reduce(in, out, count, type_of(type), ncclSum, root, real(comm), real(stream)));
  };
  table.all_gather = [](const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                        DeviceStream stream) {
    return ours(library().all_gather(in, out, count, type_of(type), real(comm), real(stream)));
  };
  table.broadcast = [](const void* in, void* out, std::size_t count, NcclType type, int root,
                       NcclComm comm, DeviceStream stream) {
    return ours(library().broadcast(in, out, count, type_of(type), root, real(comm), real(stream)));
  };
  table.send = [](const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                  DeviceStream stream) {
    return ours(library().send(data, count, type_of(type), peer, real(comm), real(stream)));
  };
  table.receive = [](void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                     DeviceStream stream) {
    return ours(library().receive(data, count, type_of(type), peer, real(comm), real(stream)));
  };
  return table;
}

}  // namespace

const NcclFunctions& nccl_library() {
  library();
  static const NcclFunctions table = fill();
  return table;
}

}  // namespace vsr::comm
