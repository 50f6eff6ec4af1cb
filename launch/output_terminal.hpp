// SPDX-License-Identifier: Apache-2.0
// Whether a person watches the output. Open MPI gives the ranks of its own node a pseudo-terminal
// even when mpirun's output goes to a file, so asking about our own descriptor is not enough.
#pragma once

namespace vsr::launch {

/// True when standard output reaches a terminal: our own, or under mpirun that of the mpirun which
/// started this process.
bool output_is_terminal();

}  // namespace vsr::launch
