// SPDX-License-Identifier: Apache-2.0
// `vsr checkpoint COMMAND`: what one does with the checkpoints of a run by hand. Free of MPI and
// LibTorch.
#pragma once

#include <string>
#include <vector>

namespace vsr::launch {

/// Run `vsr checkpoint` with the arguments after that word; prints to stdout.
/// @returns the exit code: 0; of `diff` 1 when the two differ; of `verify --all` 65 when one is bad
/// @throws UsageError, ConfigurationError, CheckpointError, IoError
int run_checkpoint_command(const std::vector<std::string>& arguments);

}  // namespace vsr::launch
