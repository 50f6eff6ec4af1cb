#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A project that takes vsr_dist in with add_subdirectory, at CMake's default C++ standard: it builds, runs
# with the same bits on 1 and 2 ranks, and gets none of our tests, benchmarks and errors for warnings.
source "$(dirname "$0")/lib.sh"
own=$VSR_BIN/..
# As deep as the build folder it stands beside, so that ccache finds what that one has compiled.
build=$own/../consumer
rm -rf "$build"
trap 'rm -rf "$work" "$build" "$build.make"' EXIT

# What this build was configured with counts there too.
given=()
for name in VSR_TORCH_ROOT VSR_WITH_CUDA VSR_CCACHE CMAKE_CXX_COMPILER CMAKE_PREFIX_PATH; do
  line=$(grep -E "^$name:" "$own/CMakeCache.txt") || continue
  given+=("-D$line")
done
cmake -G Ninja -S "$VSR_SOURCE/tests/consumer" -B "$build" "${given[@]}" >"$work/output.txt" 2>&1 &&
  cmake --build "$build" --target consumer --parallel 2 >>"$work/output.txt" 2>&1 ||
  { tail -n 40 "$work/output.txt"; fail "the project of somebody else does not build"; }

# The other generator asks for more: C++20 of nvcc, too.
cmake -G "Unix Makefiles" -S "$VSR_SOURCE/tests/consumer" -B "$build.make" "${given[@]}" >"$work/output.txt" 2>&1 ||
  { tail -n 20 "$work/output.txt"; fail "the project of somebody else is not configured with Makefiles"; }

for option in VSR_BUILD_TESTS VSR_BUILD_BENCH VSR_WERROR; do
  grep -q "^$option:BOOL=OFF$" "$build/CMakeCache.txt" || fail "$option is not off in a subproject"
done
[[ $(cd "$build" && ctest -N 2>&1) != *unit.* ]] || fail "our tests are among those of the project"

run() { timeout 120 $VSR_MPIRUN -np "$1" "$build/consumer"; }
alone=$(run 1)
[[ $alone =~ ^loss\ 0\.000[0-9]+,\ masters\ [0-9a-f]{32}$ ]] || fail "it printed: $alone"
both=$(run 2)
[[ $both == "$alone" ]] || fail "on 1 rank: $alone, on 2 ranks: $both"
echo "$alone"
