# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How our scripts start MPI programs: the array vsr_mpirun and the environment that goes with it, for Open
# MPI and for MPICH. To be sourced by bash: source launch/mpirun_env.sh; "${vsr_mpirun[@]}" -np 2 PROGRAM
# After it a plain `mpirun` does the same.

vsr_mpirun=("${VSR_MPIRUN_COMMAND:-mpirun}")
if "${vsr_mpirun[0]}" --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE'; then
  # More ranks than cores are allowed.
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  # After SIGTERM the ranks get 3 s to save instead of 1 s. Open MPI sleeps through this time twice
  # whenever a rank ends with another code than 0, even if all ranks are gone by then, so that each
  # second more makes every mistyped option and every failed run end 2 s later. Whoever needs longer to
  # save sends SIGUSR1, for which nothing is limited, or sets the variable.
  export OMPI_MCA_odls_base_sigkill_timeout="${OMPI_MCA_odls_base_sigkill_timeout:-3}"
  export OMPI_MCA_btl_base_warn_component_unused=0
  if (($(id -u) == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
fi
# A rank is one core; several OpenMP threads in each would only get in each other's way.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
