# SPDX-License-Identifier: Apache-2.0
"""What a number was measured on and with: no measurement is written without it."""
import os
import platform
import re
import shlex
import subprocess


def machine():
    """CPU, cores, memory, kernel, and how busy the machine was before we began."""
    return dict(cpu=_cpu_model(), cores=len(os.sched_getaffinity(0)),
                memory_gib=round(_memory_bytes() / 2 ** 30, 1), kernel=platform.release(),
                system=_system_name(), load_before=round(os.getloadavg()[0], 2))


def versions(source, records):
    """Commit, Open MPI, and what the programs said of themselves in their `versions`."""
    found = dict(commit=_commit(source), mpi=_mpi_version(), python=platform.python_version())
    for record in records:
        found.update(record.get("versions", {}))
    return found


def _cpu_model():
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _system_name():
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text("/etc/os-release"), re.MULTILINE)
    return match.group(1) if match else platform.system()


def _commit(source):
    commit = _output(["git", "-C", source, "rev-parse", "--short=12", "HEAD"])
    if not commit:
        return "unknown"
    changed = _output(["git", "-C", source, "status", "--porcelain", "--untracked-files=no"])
    return commit + ("-dirty" if changed else "")


def _mpi_version():
    command = shlex.split(os.environ.get("VSR_MPIRUN", "mpirun"))[:1] + ["--version"]
    lines = _output(command).splitlines()
    return lines[0].replace("mpirun (", "").replace(")", "") if lines else "unknown"


def _text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _output(command):
    try:
        return subprocess.run(command, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
