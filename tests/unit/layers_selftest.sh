#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# layers_test.sh has to find each kind of forbidden include, and to pass over allowed ones.
set -euo pipefail

test=$(cd "$(dirname "$0")" && pwd)/layers_test.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect VERDICT FILE INCLUDE: a tree of one file that includes INCLUDE passes or fails.
expect() {
  local verdict=$1 file=$2 include=$3 got=pass
  rm -rf "$work/tree"
  mkdir -p "$work/tree/$(dirname "$file")"
  echo "#include $include" > "$work/tree/$file"
  bash "$test" "$work/tree" > "$work/out" || got=fail
  if [[ $got != "$verdict" ]]; then
    echo "$file with $include: got $got, expected $verdict"
    cat "$work/out"
    exit 1
  fi
  if [[ $verdict == fail ]] && ! grep -q "$file" "$work/out"; then
    echo "the message does not name $file"
    exit 1
  fi
}

expect pass comm/a.cpp '<mpi.h>'
expect pass comm/mpi_handles.hpp '<mpi.h>'
expect fail comm/a.hpp '<mpi.h>'
expect fail optim/a.cpp '<mpi.h>'
expect fail runtime/train/a.cpp '"nccl.h"'
expect pass runtime/checkpoint/a.cpp '<hdf5.h>'
expect fail runtime/train/a.cpp '<hdf5.h>'
expect pass runtime/video/a.cpp '<libavcodec/avcodec.h>'
expect fail launch/a.cpp '<libswscale/swscale.h>'
expect pass optim/a.hpp '<torch/torch.h>'
expect fail comm/a.hpp '<ATen/ATen.h>'
expect fail runtime/video/a.cpp '<torch/torch.h>'
expect fail runtime/metrics/a.cpp '<c10/core/Device.h>'
expect pass runtime/a.cpp '"optim/a.hpp"'
expect fail comm/a.cpp '"optim/a.hpp"'
expect fail optim/a.cpp '"runtime/a.hpp"'
expect fail runtime/train/a.cpp '"launch/a.hpp"'
expect fail comm/a.cpp '"tests/support/mpi_world.hpp"'
echo "all kinds found"
