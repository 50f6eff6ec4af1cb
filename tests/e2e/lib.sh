# SPDX-License-Identifier: Apache-2.0
# What the script tests share: a place of their own, the programs, and checks that say what they saw.
# Sourced; wants VSR_BIN, VSR_SOURCE and VSR_MPIRUN in the environment, as CTest sets them.
set -euo pipefail
: "${VSR_BIN:?folder of the programs}" "${VSR_SOURCE:?folder of the sources}" "${VSR_MPIRUN:?mpirun and its options}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# run_ranks P ARGUMENTS…: vsr_dist_train on P ranks; what it prints goes to $work/output.txt, its exit code to $rc.
run_ranks() {
  local ranks=$1
  shift
  rc=0
  timeout 300 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/vsr_dist_train" "$@" >"$work/output.txt" 2>&1 || rc=$?
}

# The same, and it has to end well.
train() {
  run_ranks "$@"
  [[ $rc == 0 ]] || { cat "$work/output.txt"; fail "exit code $rc of: $*"; }
}

# The hash of the masters that the last run printed.
masters() {
  grep -oE '^masters [0-9a-f]{32}$' "$work/output.txt" | cut -d' ' -f2 || { cat "$work/output.txt"; fail "no masters printed"; }
}

# small_clip FILE: a moving clip, the same each time.
small_clip() {
  "$VSR_BIN/vsr" testclip "$1" --seed 1 --frames 40 --height 96 --width 128 >/dev/null
}

# Options of a run of a few milliseconds a step.
small_run=(--gt-size 32 --batch 1 --leaves 4 --channels 8 --blocks 1 --total-iter 40 --lr 1e-3 --save-freq 10
  --val-freq 0 --print-freq 20)

# with OPTION VALUE…: the small run with other values, in the array $changed.
with() {
  changed=("${small_run[@]}")
  local i found
  while (($# > 0)); do
    found=
    for i in "${!changed[@]}"; do
      [[ ${changed[i]} != "$1" ]] || { changed[i + 1]=$2; found=1; }
    done
    [[ -n $found ]] || changed+=("$1" "$2")
    shift 2
  done
}
