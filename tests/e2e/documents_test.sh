#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command line that README.md, CONTRIBUTING.md and docs/ show is run, in a clone of its own; long ones
# in a short form that stands here beside them. A line that this test does not know fails it, so that no
# document shows a command nobody has tried.
source "$(dirname "$0")/lib.sh"
git clone --quiet "$VSR_SOURCE" "$work/a clone"
cd "$work/a clone"
source launch/mpirun_env.sh

mapfile -t lines < <(grep -hE '^    (bash|mpirun|build/|cmake|ctest|sbatch|source|h5ls|python3?) ?' README.md CONTRIBUTING.md docs/*.md |
  sed -E 's/^ +//; s/ +#.*$//' | awk '!seen[$0]++')
((${#lines[@]} > 5)) || fail "found only ${#lines[@]} commands in the documents"

prepare_clips() {
  mkdir -p my_clips
  small_clip my_clips/one.mp4
  build/release/bin/vsr testclip low.mp4 --frames 4 --height 36 --width 44 >/dev/null
}

try() {
  case $1 in
    "bash launch/demo.sh") VSR_DEMO_ITERATIONS=4 bash launch/demo.sh ;;
    "bash tests/run.sh") bash tests/run.sh -R unit.shard ;;
    "bash tests/run.sh --long") bash tests/run.sh --long -R unit.shard ;;
    "bash tests/run.sh -R optim") bash tests/run.sh -R optim ;;
    "bash tests/run.sh --preset asan") bash tests/run.sh --preset asan -R 'unit.(shard|half_sum|kernels)' ;;
    "bash launch/build.sh" | "bash launch/build.sh debug") $1 ;;
    "bash launch/build.sh release -- -DVSR_WITH_CUDA=OFF") $1 ;;
    "bash bench/compare.sh collectives") bash bench/compare.sh collectives --quick --rounds 1 ;;
    "bash bench/compare.sh step") bash bench/compare.sh step --quick --rounds 1 ;;
    "bash bench/compare.sh checkpoint --rounds 9") bash bench/compare.sh checkpoint --quick --rounds 1 ;;
    "mpirun -np 8 build/release/bin/vsr_dist_train --train my_clips/ --total-iter 20000 --out runs/mine")
      prepare_clips
      mpirun -np 8 build/release/bin/vsr_dist_train --train my_clips/ --total-iter 2 --gt-size 32 --out runs/mine ;;
    "build/release/bin/vsr upscale runs/mine low.mp4 high.mp4") $1 ;;
    # Of the run that the README's line above has made.
    "build/release/bin/vsr checkpoint "*) [[ -d runs/mine ]] && $1 ;;
    "source launch/mpirun_env.sh") $1 ;;
    "cmake -S my_project -B my_build -DVSR_DIST_FOLDER=path/to/vsr_dist")
      cp -r tests/consumer my_project
      cmake -S my_project -B my_build -DVSR_DIST_FOLDER="$PWD" ;;
    "cmake --build my_build --target consumer" | "mpirun -np 2 my_build/consumer") $1 ;;
    *) fail "the documents show a command that is not tried here: $1" ;;
  esac
}

for line in "${lines[@]}"; do
  printf '== %s\n' "$line"
  try "$line" >"$work/output.txt" 2>&1 || { tail -n 30 "$work/output.txt"; fail "$line"; }
done
