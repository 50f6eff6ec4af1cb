// SPDX-License-Identifier: Apache-2.0
// How much memory this machine can still give. Linux promises more than it has and then kills a
// process, so buffers are compared with this before they are taken.
#pragma once

#include <cstdint>
#include <string>

namespace vsr::comm {

/// Bytes that can be taken without swapping: MemAvailable of the kernel, and no more than the limit
/// of the container. Local. The largest value there is when the machine does not say.
/// @param root folder that stands for "/" (for tests)
std::uint64_t available_memory_bytes(const std::string& root = "/");

}  // namespace vsr::comm
