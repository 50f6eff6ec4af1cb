// SPDX-License-Identifier: Apache-2.0
#include "comm/launch_guard.hpp"

#include <cstdlib>
#include <string>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

struct LauncherSize {
  std::string variable;
  long processes = 0;  // 0: not known
};

LauncherSize read_size(const char* variable, const EnvironmentReader& environment) {
  const char* text = environment(variable);
  if (text == nullptr) return {};
  char* end = nullptr;
  const long processes = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || processes < 1) return {};
  return {variable, processes};
}

// An mpirun inside a step of srun is the nearer launcher, so the order matters. A batch script has
// SLURM_NTASKS too, without being a step: only SLURM_STEP_ID tells that srun started this process.
LauncherSize nearest_launcher(const EnvironmentReader& environment) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    LauncherSize found = read_size(variable, environment);
    if (found.processes > 0) return found;
  }
  if (environment("SLURM_STEP_ID") == nullptr) return {};
  return read_size("SLURM_NTASKS", environment);
}

}  // namespace

void refuse_lone_ranks(int world, const EnvironmentReader& environment) {
  if (world != 1) return;
  const LauncherSize launcher = nearest_launcher(environment);
  if (launcher.processes <= 1) return;
  const bool is_slurm = launcher.variable.rfind("SLURM_", 0) == 0;
  throw ConfigurationError(
      "the launcher started " + std::to_string(launcher.processes) + " processes (" +
      launcher.variable +
      "), but MPI sees a world of 1: they would all train alone and overwrite " +
      "each other's files; start with " +
      (is_slurm ? "`srun --mpi=pmix ...` (`srun --mpi=list` shows what is there) or `mpirun ...`"
                : "the `mpirun` of the MPI library this program is linked with, or with " +
                      std::string("`srun --mpi=pmix ...` under Slurm")));
}

}  // namespace vsr::comm
