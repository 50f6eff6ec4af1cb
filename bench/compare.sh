#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures ours beside its peers on this machine: bench/compare.sh step [--quick]; --help lists the rest.
# Builds what is missing; the peers get a virtual environment of their own in the cache folder.
set -euo pipefail
source_folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$source_folder"

# Always built anew, so that the numbers belong to this commit; VSR_BIN names programs built elsewhere.
if [[ -z "${VSR_BIN:-}" ]]; then
  if [[ " $* " != *" --help "* && " $* " != *" -h "* ]]; then
    bash launch/build.sh release
  fi
  export VSR_BIN="$source_folder/build/release/bin"
fi
source launch/mpirun_env.sh
export VSR_MPIRUN="${VSR_MPIRUN:-${vsr_mpirun[*]}}"
export PYTHONDONTWRITEBYTECODE=1
exec python3 bench/compare.py "$@"
