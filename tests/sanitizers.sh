#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The memory of `comm` and of the kernels of `optim` under the address and undefined-behaviour sanitizers, with MPI at
# 1 and 2 ranks; the units without MPI and LibTorch under the thread sanitizer. Builds only what it runs.
#   bash tests/sanitizers.sh [asan] [tsan]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/common.sh"
cd "$vsr_source"

kernels=(half_sum_test kernels_test update_kernels_test arithmetic_test cuda_emulation_test)
units=(error_test flat_layout_test bucket_plan_test loss_scaler_test shard_test unique_handle_test flight_test
  launch_guard_test checkpoint_files_test checkpoint_format_test checkpoint_reader_test weights_files_test)
with_mpi=(communicator_test peer_buffer_test leaf_exchange_test nccl_communicator_test)

joined() { local IFS='|'; echo "$*"; }

# check PRESET REGEX TARGETS…
check() {
  local preset=$1 regex=$2
  shift 2
  local log
  log=$(mktemp)
  cmake --preset "$preset" -DVSR_BUILD_TESTS=ON >"$log" 2>&1 && cmake --build "build/$preset" --target "$@" >"$log" 2>&1 ||
    { tail -n 40 "$log"; rm "$log"; die "the $preset build failed"; }
  rm "$log"
  ctest --test-dir "build/$preset" --no-tests=error --output-on-failure -R "$regex"
}

(($# > 0)) || set -- asan tsan
for preset in "$@"; do
  case $preset in
    asan)
      check asan "^(unit\.($(joined "${kernels[@]}" "${units[@]}"))|.*\.($(joined "${with_mpi[@]}"))\.np[12])\$" \
        "${kernels[@]}" "${units[@]}" "${with_mpi[@]}" ;;
    tsan)
      # A report ends the test, also one that comes when it is over.
      TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
        check tsan "^unit\.($(joined "${kernels[@]}" "${units[@]}"))\$" "${kernels[@]}" "${units[@]}" ;;
    *) die "sanitizers.sh: got '$preset', expected asan or tsan" ;;
  esac
done
