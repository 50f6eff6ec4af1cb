# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The few checks that tests of scripts need, and a folder of their own in $work. To be sourced by bash.
set -uo pipefail
: "${VSR_SOURCE:?set by CTest: the root of the repository}"
work=$(mktemp -d "${TMPDIR:-/tmp}/vsr test.XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  printf 'FAILED: %s\n' "$*"
  failures=$((failures + 1))
}

# expect_code EXPECTED COMMAND...: run it, with its output in $output.
expect_code() {
  local expected=$1 code=0
  shift
  output=$("$@" 2>&1) || code=$?
  [[ $code == "$expected" ]] ||
    fail "exit code of \"$*\": got $code, expected $expected; its output: $output"
}

expect_text() {
  [[ $output == *"$1"* ]] || fail "no \"$1\" in: $output"
}

expect_equal() {
  [[ $1 == "$2" ]] || fail "got \"$1\", expected \"$2\""
}

# fake NAME: a command of this name, with the script on the standard input, in a folder to put before PATH.
fake() {
  mkdir -p "$work/fakes"
  { echo '#!/usr/bin/env bash'; cat; } >"$work/fakes/$1"
  chmod +x "$work/fakes/$1"
}

finish() {
  ((failures == 0)) || exit 1
  echo "all checks passed"
  exit 0
}
