#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to a trained network: installs what is missing, builds, fetches a clip, trains on two ranks
# and prints how far the network is above bicubic on frames it has never seen. A second run reuses the
# packages, the build and the clip, and trains anew. VSR_DEMO_ITERATIONS shortens or lengthens it,
# VSR_DEMO_OUT is where it writes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ranks=2
iterations=${VSR_DEMO_ITERATIONS:-4000}
out=${VSR_DEMO_OUT:-build/demo}
# The training; --train and --out are added below, everything else is default.
training=(
  --total-iter "$iterations"
  --print-freq 100
  --batch 2
  --leaves 2
  --lr 2e-3
)

[[ $iterations =~ ^[1-9][0-9]*$ ]] || {
  say "VSR_DEMO_ITERATIONS=$iterations: expected a number of iterations above 0"
  exit 64
}
cd "$vsr_source"
bin=$(bash launch/build.sh release | tail -n 1)
source launch/mpirun_env.sh

if ! clip=$(bash launch/fetch_demo_clip.sh); then
  clip=build/demo_clip.mp4
  say "training on a moving test clip made from a seed instead; its numbers are not those of a real clip"
  "$bin/vsr" testclip "$clip" --seed 1
fi

# The folder of an earlier demo, known by a file it left, makes room; anybody else's stays as it is.
if [[ -e $out && ! -e $out/made_by_demo && -n $(ls -A "$out") ]]; then
  say "$out holds files that no demo made; choose another folder with VSR_DEMO_OUT"
  exit 78
fi
rm -rf "$out/run" "$out/output.txt"
mkdir -p "$out"
touch "$out/made_by_demo"
say "training $iterations iterations on $ranks ranks; log in $out/run/train.log"
"${vsr_mpirun[@]}" -np "$ranks" "$bin/vsr_dist_train" --train "$clip" --out "$out/run" "${training[@]}" |
  tee "$out/output.txt"

result=$(grep -oE 'held-out PSNR-Y .*' "$out/output.txt" | tail -n 1) ||
  die "the training ended without a result; see $out/output.txt"
picture=$(find "$out/run/val" -name '*_strip.png' 2>/dev/null | sort | tail -n 1)
[[ -z $picture ]] || printf 'low | bicubic | super-resolved | original: %s\n' "$picture"
printf '%s\n' "$result"
