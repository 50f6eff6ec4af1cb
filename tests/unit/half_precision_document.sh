#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The programs that docs/half_precision.md shows are those that are compiled and run: the first by
# half_precision_test, the second, with its CMakeLists.txt, by e2e.consumer.
set -euo pipefail

cd "${VSR_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}"

# shown LANGUAGE N: the Nth block of that language in the document.
shown() {
  awk -v start="\`\`\`$1" -v wanted="$2" '
    $0 == start { inside = ++n == wanted; next }
    $0 == "```" { inside = 0 }
    inside' docs/half_precision.md
}

# compare LANGUAGE N TEXT
compare() {
  local text
  text=$(shown "$1" "$2")
  [[ -n $text ]] || { echo "docs/half_precision.md shows no block $2 of $1"; exit 1; }
  diff <(printf '%s\n' "$text") <(printf '%s\n' "$3")
}

compare cpp 1 "$(sed -n '/^\/\/ --- docs\/half_precision.md$/,/^\/\/ --- end$/p' tests/mpi/half_precision_test.cpp |
  sed '/^\/\/ --- /d')"
compare cmake 1 "$(sed -n '/^cmake_minimum_required/,$p' tests/consumer/CMakeLists.txt)"
compare cpp 2 "$(sed -n '/^#include/,$p' tests/consumer/main.cpp)"
