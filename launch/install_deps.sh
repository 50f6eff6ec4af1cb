#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building, running and testing vsr_dist need: Debian packages, and LibTorch in the user's
# cache folder. Silent and quick when nothing is missing, so that every other script can call it first.
#
# Without root or sudo: have the packages below installed by an administrator, or from conda or Spack and
# set VSR_SKIP_PACKAGES=1. VSR_TORCH_ROOT names a LibTorch of your own (the folder with include/ and lib/).
# VSR_CACHE names another place for the downloads.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The one list of packages.
packages=(
  # to build
  g++ cmake ninja-build ccache pkg-config git
  libopenmpi-dev libhdf5-dev libboost-program-options-dev nlohmann-json3-dev libfmt-dev libspdlog-dev
  libxxhash-dev libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
  # to run
  openmpi-bin
  # to download LibTorch and the demo clip
  python3-venv ca-certificates unzip
  # to test
  libgtest-dev clang-format-14 hdf5-tools
)

torch_version=2.11.0
torch_sha256=7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a
torch_cpu_bytes=451209129
# The two CUDA libraries that the wheel's libtorch_cpu.so asks for, where no CUDA 13 toolkit has them.
cuda_wheels=(
  nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
  nvidia-cuda-cupti==13.0.85 4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
)
torch_home="$vsr_cache/torch-$torch_version"

missing_packages() {
  local -A installed=()
  local package
  # dpkg-query fails when it does not know one of the names, and still answers for the others.
  while read -r package; do
    installed[$package]=1
  done < <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^installed //p')
  for package in "${packages[@]}"; do
    [[ -n ${installed[$package]:-} ]] || printf '%s\n' "$package"
  done
}

install_packages() {
  [[ -z ${VSR_SKIP_PACKAGES:-} ]] || return 0
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: taking what corresponds to these packages as installed: ${packages[*]}"
    return 0
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} > 0)) || return 0

  local line="apt-get install --no-install-recommends ${missing[*]}"
  if (($(id -u) != 0)); then
    # Without a terminal sudo cannot ask for a password.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      as_root=(sudo)
    else
      die "Debian packages are missing and this user may not install them (not root, no sudo).
An administrator can install them with
  $line
Without one: get their like from conda or Spack, set VSR_SKIP_PACKAGES=1 and run this again."
    fi
  fi
  local apt=("${as_root[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get
    -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update -qq >&2 || true
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  { "${apt[@]}" install --no-install-recommends --assume-no "${missing[@]}" 2>/dev/null || true; } |
    grep -E '^(Need to get|After this operation)' >&2 || true
  "${apt[@]}" install --no-install-recommends --yes -qq "${missing[@]}" >/dev/null ||
    die "apt-get could not install them (see above); without network this machine needs a Debian mirror in
/etc/apt/sources.list. By hand:
  $line"
}

# True where the library of this name lies in a place that cmake/LibTorch.cmake looks into.
has_cuda_library() {
  local found
  for found in "$torch_home/nvidia/cu13/lib/$1" \
    "${CUDA_HOME:-/usr/local/cuda}"/{lib64,extras/CUPTI/lib64}/"$1" \
    /usr/local/cuda{,-13*}/{lib64,extras/CUPTI/lib64}/"$1"; do
    [[ ! -e $found ]] || return 0
  done
  # The linker's cache may still list what has gone.
  while read -r found; do
    [[ ! -e $found ]] || return 0
  done < <({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | sed -n "s|.*$1 .* => ||p")
  return 1
}

has_torch() {
  [[ -e $torch_home/.complete && -e $torch_home/torch/include/torch/script.h ]] &&
    [[ $(stat -Lc %s "$torch_home/torch/lib/libtorch_cpu.so" 2>/dev/null) == "$torch_cpu_bytes" ]]
}

no_network() {
  die "downloading $1 from PyPI failed (see above); nothing half-finished was kept. Check the network, or
give pip a mirror (PIP_INDEX_URL, or PIP_FIND_LINKS with a folder of wheels), or set VSR_TORCH_ROOT to a
LibTorch of your own."
}

install_torch() {
  if [[ -n ${VSR_TORCH_ROOT:-} ]]; then
    [[ -e $VSR_TORCH_ROOT/include/torch/script.h ]] ||
      die "VSR_TORCH_ROOT=$VSR_TORCH_ROOT: no include/torch/script.h there; name the folder that holds
LibTorch's include/ and lib/"
    return 0
  fi
  local need_torch=1 need_cuda=1
  ! has_torch || need_torch=0
  if has_cuda_library libcudart.so.13 && has_cuda_library libcupti.so.13; then need_cuda=0; fi
  ((need_torch || need_cuda)) || return 0

  [[ $(uname -sm) == "Linux x86_64" ]] ||
    die "the LibTorch fetched here is for Linux x86_64, this is $(uname -sm); set VSR_TORCH_ROOT to one of
your own"
  make_room $((need_torch * 1800 + need_cuda * 100))
  lock_cache
  new_partial
  if ((need_torch)) && ! has_torch; then fetch_torch; fi
  if ((need_cuda)); then fetch_cuda_libraries; fi
}

fetch_torch() {
  local files=$partial/torch
  say "LibTorch $torch_version: 531 MB to download, 1.1 GB in $torch_home"
  fetch_wheels "torch==$torch_version" "$torch_sha256" || no_network "LibTorch"
  # Programs need the libraries and headers, people the licences, and the parity tests the Python.
  unzip -q "$partial"/torch-*.whl 'torch/lib/*' 'torch/include/*' 'torch/share/*' '*.dist-info/*' \
    'torch/*.py' 'torch/_C.*' 'torch/bin/torch_shm_manager' 'torchgen/*.py' -d "$files" ||
    die "the wheel of LibTorch could not be unpacked in $vsr_cache"
  local bytes
  bytes=$(stat -c %s "$files/torch/lib/libtorch_cpu.so")
  ((bytes == torch_cpu_bytes)) ||
    die "libtorch_cpu.so of the wheel has $bytes bytes, expected $torch_cpu_bytes"
  printf 'torch %s sha256 %s\n' "$torch_version" "$torch_sha256" >"$files/.complete"
  sync -f "$files"
  # The CUDA libraries of an earlier set-up stay of use.
  if [[ -d $torch_home/nvidia ]]; then mv "$torch_home/nvidia" "$files/"; fi
  if [[ -e $torch_home ]]; then mv "$torch_home" "$partial/old"; fi
  mv -T "$files" "$torch_home"
  rm -f "$partial"/torch-*.whl "$partial/wanted.txt"
}

fetch_cuda_libraries() {
  local files=$partial/cuda library
  say "CUDA runtime and CUPTI for LibTorch: 13 MB to download, 45 MB in $torch_home/nvidia"
  rm -rf "$partial/pip"
  fetch_wheels "${cuda_wheels[@]}" || no_network "the CUDA runtime and CUPTI"
  for library in "$partial"/nvidia_cuda_*.whl; do
    unzip -qo "$library" 'nvidia/cu13/lib/*' '*.dist-info/*' -d "$files"
  done
  mkdir -p "$torch_home/nvidia/cu13/lib"
  # The two that has_cuda_library looks for come last, so that an interrupted move is taken up again.
  mkdir "$files/last"
  mv "$files"/nvidia/cu13/lib/lib{cudart,cupti}.so.13 "$files/last/"
  mv -f "$files"/nvidia/cu13/lib/* "$torch_home/nvidia/cu13/lib/"
  mv -f "$files"/last/* "$torch_home/nvidia/cu13/lib/"
  cp -r "$files"/*.dist-info "$torch_home/"
}

install_packages
install_torch
