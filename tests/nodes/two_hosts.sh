# SPDX-License-Identifier: Apache-2.0
# Two hosts on one machine: network namespaces of their own with a cable between them, and other host names, so that
# everything between them is real TCP. Sourced after tests/e2e/lib.sh; needs root and ip, else the test is skipped.
#   hosts_mpirun A B …: mpirun of A ranks on the first and B on the second host.

net=10.$((64 + $$ % 64)).$(($$ / 64 % 256))
hosts=("vsr$$a" "vsr$$b")

remove_hosts() {
  local host
  for host in "${hosts[@]}"; do
    ip netns delete "$host" 2>/dev/null || true
  done
  rm -rf "$work"
}

skip() {
  echo "skipped: $*"
  exit 77
}

make_hosts() {
  command -v ip >/dev/null || skip "no ip (package iproute2)"
  [[ $(id -u) == 0 ]] || skip "only root may make network namespaces"
  ip netns add "${hosts[0]}" 2>/dev/null || skip "no right to make network namespaces here"
  trap remove_hosts EXIT
  ip netns add "${hosts[1]}"
  ip link add name cable netns "${hosts[0]}" type veth peer name cable netns "${hosts[1]}"
  local i
  for i in 0 1; do
    ip -n "${hosts[i]}" address add "$net.$((i + 1))/24" dev cable
    ip -n "${hosts[i]}" link set cable up
    ip -n "${hosts[i]}" link set lo up
  done
  # What mpirun starts the other host's ranks by: agent HOST COMMAND…
  cat >"$work/agent" <<AGENT
#!/usr/bin/env bash
host=\$1
shift
exec ip netns exec "vsr$$\$([[ \$host == $net.1 ]] && echo a || echo b)" unshare --uts \
  bash -c 'hostname "\$0"; exec bash -c "\$1"' "\$host" "\$*"
AGENT
  chmod +x "$work/agent"
}

hosts_mpirun() {
  local first=$1 second=$2
  shift 2
  "$work/agent" "$net.1" exec $VSR_MPIRUN --host "$net.1:$first,$net.2:$second" -np "$((first + second))" \
    --mca plm_rsh_agent "$work/agent" --mca plm rsh --mca btl_tcp_if_include "$net.0/24" \
    --mca oob_tcp_if_include "$net.0/24" "$(printf '%q ' "$@")"
}
