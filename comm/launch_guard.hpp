// SPDX-License-Identifier: Apache-2.0
// Catches the classic accident of MPI on clusters: the launcher starts N processes, the MPI library
// does not recognise it, and N lone runs overwrite each other's files.
#pragma once

#include <functional>

namespace vsr::comm {

/// Reads one environment variable; null when it is not set.
using EnvironmentReader = std::function<const char*(const char* name)>;

/// Throw when a launcher says that it started several processes and MPI sees only this one. The
/// nearest launcher counts: Open MPI's mpirun, another PMI launcher, then a step of srun. Local.
/// @param world size of the MPI world
/// @throws ConfigurationError naming the variable, both numbers and the command that works
void refuse_lone_ranks(int world, const EnvironmentReader& environment);

}  // namespace vsr::comm
