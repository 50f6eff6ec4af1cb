// SPDX-License-Identifier: Apache-2.0
// What every program of ours does around its work: turn exceptions into one message and the
// documented exit code. Kept apart so that the programs read as what they do.
#pragma once

#include <functional>
#include <string_view>

namespace vsr::launch {

/// Run `body` of a program without MPI and return its exit code. A vsr::Error is printed to stderr
/// as "NAME: error: MESSAGE" and its code returned; any other exception counts as a fault of ours
/// (70).
int run_program(std::string_view name, const std::function<int()>& body) noexcept;

/// The same for a rank of an MPI job, MPI being started. An AgreedError is held by all ranks: rank
/// 0 prints it and all return its code, so that MPI ends in order. Any other exception happened on
/// this rank alone: it is printed with rank and host, and the whole job is ended at once with its
/// code, since the other ranks may wait in a collective.
int run_rank(std::string_view name, int rank, const std::function<int()>& body) noexcept;

}  // namespace vsr::launch
