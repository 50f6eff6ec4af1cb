#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program that docs/half_precision.md shows is the one that half_precision_test compiles and runs.
set -euo pipefail

cd "${VSR_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}"
shown=$(sed -n '/^```cpp$/,/^```$/p' docs/half_precision.md | sed '/^```/d')
tested=$(sed -n '/^\/\/ --- docs\/half_precision.md$/,/^\/\/ --- end$/p' tests/mpi/half_precision_test.cpp |
  sed '/^\/\/ --- /d')
[[ -n $shown ]] || { echo "docs/half_precision.md shows no program"; exit 1; }
diff <(printf '%s\n' "$shown") <(printf '%s\n' "$tested")
