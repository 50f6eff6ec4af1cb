// SPDX-License-Identifier: Apache-2.0
// Checked calls of the CUDA runtime, for all layers; free of its headers. Only in builds with CUDA.
#pragma once

#include <source_location>
#include <string>

namespace vsr::comm {

/// Throw when `code`, what a CUDA runtime call returned, is not success.
/// @param what the call and its sizes, for the message
/// @throws CudaError "WHAT failed on CUDA device D: text of the CUDA runtime (name)", and what to
///         do where that is known
void check_cuda(int code, const std::string& what,
                std::source_location where = std::source_location::current());

}  // namespace vsr::comm

/// Always on: run a call of the CUDA runtime; throws CudaError with its text if it fails.
#define VSR_CUDA(call) ::vsr::comm::check_cuda(static_cast<int>(call), #call)
