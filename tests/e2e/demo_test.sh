#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo with few iterations, on its real clip where it can be had: it ends in the line of the result and
# leaves a picture.
source "$(dirname "$0")/lib.sh"
cd "$VSR_SOURCE"
VSR_DEMO_ITERATIONS=4 VSR_DEMO_OUT=$work/demo bash launch/demo.sh >"$work/output.txt" 2>&1 || { cat "$work/output.txt"; fail "demo.sh"; }
tail -n 1 "$work/output.txt" | grep -qE '^held-out PSNR-Y [0-9.]+ dB, bicubic [0-9.]+ dB, gain [+-][0-9.]+ dB$' ||
  { cat "$work/output.txt"; fail "the last line is not the result"; }
picture=$(grep -oE '[^ ]*_strip.png' "$work/output.txt" | tail -n 1)
[[ -s $picture ]] || { cat "$work/output.txt"; fail "no picture «$picture»"; }
tail -n 2 "$work/output.txt"

# A folder that no demo made is left alone.
mkdir "$work/precious"
echo thesis >"$work/precious/thesis.txt"
rc=0
VSR_DEMO_ITERATIONS=4 VSR_DEMO_OUT=$work/precious bash launch/demo.sh >"$work/output.txt" 2>&1 || rc=$?
[[ $rc == 78 && $(ls "$work/precious") == thesis.txt ]] || { cat "$work/output.txt"; fail "demo.sh took a folder that is not its own"; }
