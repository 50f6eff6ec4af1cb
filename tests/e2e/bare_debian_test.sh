#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The two commands of the README on a Debian 12 that has nothing: a chroot made by debootstrap, without
# CUDA, with HEAD of this repository in it. Needs root, network and about 8 GB in TMPDIR.
#   VSR_BARE_STEPS       which of: demo tests (default: both)
#   VSR_BARE_ITERATIONS  training iterations of the demo (default 20)
#   VSR_BARE_CTEST       arguments for ctest, split at spaces (default: the short tier)
# Mounts live in a mount namespace and processes in a process namespace of their own: both end with this
# script, however it ends, so that removing the folder can never reach outside it.
set -euo pipefail
source_dir=${VSR_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)}
steps=${VSR_BARE_STEPS:-demo tests}
mirror=${VSR_BARE_MIRROR:-http://deb.debian.org/debian}

if (($(id -u) != 0)); then
  echo "skipped: making a chroot needs root"
  exit 77
fi

inside() { # in the namespaces; $1 is the folder
  local root=$1
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  ln -sf pts/ptmx "$root/dev/ptmx"
  local enter=(env -i HOME=/root "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    "VSR_DEMO_ITERATIONS=${VSR_BARE_ITERATIONS:-20}")
  local name
  for name in http_proxy https_proxy no_proxy PIP_INDEX_URL PIP_DEFAULT_TIMEOUT; do
    [[ -z ${!name:-} ]] || enter+=("$name=${!name}")
  done
  [[ ! -e $root/etc/host-ca.crt ]] || enter+=(PIP_CERT=/etc/host-ca.crt SSL_CERT_FILE=/etc/host-ca.crt)
  enter+=(chroot "$root" bash -c)

  if [[ " $steps " == *" demo "* ]]; then
    "${enter[@]}" "cd '/root/a copy' && bash launch/demo.sh" | tee "$root/demo.txt"
    tail -n 1 "$root/demo.txt" |
      grep -qE '^held-out PSNR-Y [0-9.]+ dB, bicubic [0-9.]+ dB, gain [+-][0-9.]+ dB$'
  fi
  if [[ " $steps " == *" tests "* ]]; then
    "${enter[@]}" "cd '/root/a copy' && bash tests/run.sh ${VSR_BARE_CTEST:-}"
  fi
  # Any other step is a command line of its own.
  if [[ " $steps " != *" demo "* && " $steps " != *" tests "* ]]; then
    "${enter[@]}" "cd '/root/a copy' && $steps"
  fi
  local again
  again=$("${enter[@]}" "cd '/root/a copy' && bash launch/install_deps.sh" 2>&1)
  if [[ -n $again ]]; then
    echo "a second install_deps.sh was not silent: $again"
    return 1
  fi
  [[ ! -e $root/usr/local/cuda ]]
}

if [[ ${1:-} == --inside ]]; then
  inside "$2"
  exit
fi

if ! command -v debootstrap >/dev/null; then
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends --yes -qq debootstrap >/dev/null
fi
root=$(mktemp -d "${TMPDIR:-/tmp}/vsr_bare_debian.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 143' TERM INT
chmod 755 "$root"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 || {
  tail -n 20 "$root.log"
  exit 1
}
rm -f "$root.log"

# The way to the network, as this machine has it.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
apt-config dump | grep -E '^Acquire::(http|https|Check-)' >"$root/etc/apt/apt.conf.d/90host" || true
for file in /etc/pip.conf "${PIP_CONFIG_FILE:-/nonexistent}"; do
  [[ ! -f $file ]] || cp "$file" "$root/etc/pip.conf"
done
certificates=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
[[ ! -f $certificates ]] || cp -L "$certificates" "$root/etc/host-ca.crt"

mkdir "$root/root/a copy"
git -C "$source_dir" archive HEAD | tar -x -C "$root/root/a copy"
unshare --mount --propagation private --pid --fork --kill-child bash "${BASH_SOURCE[0]}" --inside "$root"
