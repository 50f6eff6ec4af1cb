// SPDX-License-Identifier: Apache-2.0
// NCCL as a table of functions in types of our own: what calls it compiles without its header, and
// tests put a fake in its place. Meanings and numbers are those of nccl.h 2.28, which the file that
// fills the table checks.
#pragma once

#include <array>
#include <cstddef>

#include "comm/device/device.hpp"

namespace vsr::comm {

struct NcclCommTag;
/// The communicator of this rank.
using NcclComm = NcclCommTag*;

/// What every call returns.
enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};

/// Types of elements.
enum class NcclType : int { bytes = 1, fp16 = 6, fp32 = 7, fp64 = 8, bf16 = 9 };

/// Names a communicator that is to be made.
struct NcclUniqueId {
  std::array<char, 128> bytes{};
};

/// Counts are in elements, memory is that of the device, and work goes to the stream. No call waits
/// for another rank: a result `in_progress` is asked after by `async_error`.
struct NcclFunctions {
  const char* (*error_text)(NcclResult) = nullptr;
  /// What NCCL logged last; never null.
  const char* (*last_error)(NcclComm) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*init_rank)(NcclComm*, int world, NcclUniqueId, int rank) = nullptr;
  NcclResult (*async_error)(NcclComm, NcclResult* state) = nullptr;
  /// Local: ends what is under way and frees the communicator.
  NcclResult (*abort)(NcclComm) = nullptr;
  NcclResult (*finalize)(NcclComm) = nullptr;
  /// After `finalize` has completed.
  NcclResult (*destroy)(NcclComm) = nullptr;

  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_reduce_sum)(const void* in, void* out, std::size_t count, NcclType, NcclComm,
                               DeviceStream) = nullptr;
  /// `count` elements for each rank.
  NcclResult (*reduce_scatter_sum)(const void* in, void* out, std::size_t count, NcclType, NcclComm,
                                   DeviceStream) = nullptr;
  NcclResult (*reduce_sum)(const void* in, void* out, std::size_t count, NcclType, int root,
                           NcclComm, DeviceStream) = nullptr;
  /// `count` elements of each rank.
  NcclResult (*all_gather)(const void* in, void* out, std::size_t count, NcclType, NcclComm,
                           DeviceStream) = nullptr;
  NcclResult (*broadcast)(const void* in, void* out, std::size_t count, NcclType, int root,
                          NcclComm, DeviceStream) = nullptr;
  NcclResult (*send)(const void* data, std::size_t count, NcclType, int peer, NcclComm,
                     DeviceStream) = nullptr;
  NcclResult (*receive)(void* data, std::size_t count, NcclType, int peer, NcclComm,
                        DeviceStream) = nullptr;
};

/// The NCCL library of this build.
/// @throws NotCompiled in a build without CUDA
const NcclFunctions& nccl_library();

}  // namespace vsr::comm
