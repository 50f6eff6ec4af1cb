#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python example of docs/checkpoints.md, run as it stands there on a checkpoint of two ranks. Makes what
# it needs once, in the user's cache folder; ends with 77 and the reason where that cannot be had.
source "$(dirname "$0")/lib.sh"
source "$VSR_SOURCE/launch/common.sh"
venv=$vsr_cache/h5py-venv
wanted="h5py==3.14.0 numpy==2.3.3"

skip() {
  echo "SKIPPED: $*"
  exit 77
}

make_environment() {
  (make_room 140) || skip "there is no room for $venv"
  echo "h5py and NumPy: 22 MB to download from PyPI, 115 MB in $venv"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv" || skip "there is no python3 that makes virtual environments"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all: $wanted ||
    skip "PyPI gave no packages (see above)"
  printf '%s' "$wanted" >"$venv/.complete"
}

(make_room 0) || skip "there is no cache folder"
lock_cache
[[ $(cat "$venv/.complete" 2>/dev/null) == "$wanted" ]] || make_environment
exec 9>&-

cd "$work"
small_clip clip.mp4
with --total-iter 4
train 2 --train clip.mp4 --out runs/mine "${changed[@]}"
awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' "$VSR_SOURCE/docs/checkpoints.md" >example.py
(($(grep -c . example.py) <= 10)) || fail "the example has more than 10 lines"
"$venv/bin/python" -B example.py >"$work/output.txt"
grep -qx "iteration 4" "$work/output.txt" || { cat "$work/output.txt"; fail "no iteration"; }
grep -qE "^fusion.weight \(8, 9, 3, 3\) -?[0-9.e-]+$" "$work/output.txt" || { cat "$work/output.txt"; fail "no values"; }
(($(wc -l <"$work/output.txt") == 9)) || { cat "$work/output.txt"; fail "expected 8 parameters"; }
