#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks at a checkpoint with HDF5's own tools, as somebody without this program would, after its
# folder was renamed.
set -eu -o pipefail
command -v h5ls >/dev/null && command -v h5dump >/dev/null || { echo "no HDF5 tools"; exit 77; }
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
$VSR_MPIRUN -np 2 "$VSR_BIN/checkpoint_saver" "$run/run" 1
mv "$run/run/ckpt/step_00000001" "$run/moved"
listing=$(h5ls -r "$run/moved/global.h5")
expect() { grep -Eq -- "$1" <<<"$2" || { echo "no '$1' in:"; echo "$2"; exit 1; }; }
for array in master exp_avg exp_avg_sq; do
  expect "^/$array/head.weight +Dataset \{16, 3, 3, 3\}" "$listing"
  expect "^/$array/body.weight +Dataset \{20000, 3, 5\}" "$listing"
  expect "^/$array/nothing +Dataset \{0, 4\}" "$listing"
done
expect "^/params/name +Dataset \{6\}" "$listing"
expect "^/buffers/norm.running_mean +Dataset \{3\}" "$listing"
expect "^/state +Dataset \{SCALAR\}" "$listing"
# master at iteration 1, element 0: (131 + 1009 - 32000) / 64; element 1 is 7 / 64 more.
values=$(h5dump -d /master/head.weight -s 0,0,0,0 -c 1,1,1,2 "$run/moved/global.h5")
expect "-482\.188, -482\.078" "$values"
expect '"head.weight", "head.bias"' "$(h5dump -d /params/name "$run/moved/global.h5")"
expect '65536' "$(h5dump -d /state "$run/moved/global.h5")"
expect "^/intervals +Dataset" "$(h5ls -r "$run/moved/shard_00001-of-00002.h5")"
echo "$listing"
