# SPDX-License-Identifier: Apache-2.0
"""Makes the virtual environment that the peers run in, once, in the user's cache folder.

It stands apart from the comparison so that a peer that cannot be installed ends as a reason in the
report, never as a shorter table. Standard library only: it runs before anything is installed.
"""
import glob
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "2.11.0"
DEEPSPEED = "0.19.8"
TORCH_PYTHON_NEEDS = ["typing_extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock",
                      "numpy", "setuptools", "wheel"]
TORCH_CUDA_NEEDS = ["nvidia-cusparselt-cu13==0.8.0", "nvidia-nvshmem-cu13==3.4.5",
                    "nvidia-cufile"]
DEEPSPEED_NEEDS = ["einops", "hjson", "msgpack", "ninja", "packaging", "psutil", "py-cpuinfo",
                   "pydantic", "tqdm"]
# What the torch wheel for CUDA 13 links that the small wheels above do not bring.
TOOLKIT_LIBRARIES = ["libcudart.so.13", "libcublas.so.13", "libcudnn.so.9", "libnccl.so.2"]
TOOLKIT_FOLDERS = ["/usr/local/cuda*/lib64", "/usr/local/cuda*/lib",
                   "/usr/local/cuda*/extras/CUPTI/lib64", "/usr/lib/x86_64-linux-gnu",
                   "/usr/lib64"]


@dataclass
class Environment:
    """Where the peers run; `missing` maps a package that cannot be used to the reason."""
    python: Path
    variables: dict
    missing: dict = field(default_factory=dict)


def cache_folder() -> Path:
    """The cache folder of this project, as the build scripts name it."""
    if os.environ.get("VSR_CACHE"):
        return Path(os.environ["VSR_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "vsr_dist"


def toolkit_folders() -> list:
    """Folders of a CUDA 13 toolkit that hold all that the torch wheel needs of it, or []."""
    found = {}
    for pattern in TOOLKIT_FOLDERS:
        for folder in sorted(glob.glob(pattern)):
            for name in TOOLKIT_LIBRARIES + ["libcupti.so.13"]:
                if os.path.exists(os.path.join(folder, name)):
                    found.setdefault(name, os.path.realpath(folder))
    if any(name not in found for name in TOOLKIT_LIBRARIES):
        return []
    return sorted(set(found.values()))


def prepare(say=print, may_download=True) -> Environment:
    """Make or reuse the environment and tell what is missing in it and why."""
    cache = cache_folder()
    venv = cache / "peers-venv"
    toolkit = toolkit_folders()
    environment = Environment(venv / "bin" / "python", _variables(cache, venv, toolkit))
    stamp = venv / "ready.json"
    wanted = {"torch": TORCH, "deepspeed": DEEPSPEED, "toolkit": toolkit,
              "python": list(sys.version_info[:2])}
    if _read_json(stamp) == wanted and environment.python.exists() and _link_holds(venv):
        return environment
    if not may_download:
        reason = f"not installed in {venv}, and downloads are switched off"
        environment.missing = {"torch": reason, "deepspeed": reason}
        return environment

    try:
        _make_venv(environment, venv)
        _install_torch(environment, cache, venv, toolkit, say)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = _reason(error)
        environment.missing = {"torch": reason, "deepspeed": f"needs torch: {reason}"}
        return environment
    try:
        _install_deepspeed(environment, venv, say)
    except (OSError, subprocess.CalledProcessError) as error:
        environment.missing["deepspeed"] = _reason(error)
        return environment
    stamp.write_text(json.dumps(wanted))
    return environment


def _make_venv(environment, venv):
    has_pip = [str(environment.python), "-c", "import pip"]
    try:
        _run(has_pip, environment)
    except (OSError, subprocess.CalledProcessError):
        try:
            _run([sys.executable, "-m", "venv", "--clear", str(venv)], environment)
        except subprocess.CalledProcessError as error:
            raise OSError("python3 -m venv cannot make an environment (on Debian: apt-get install "
                          f"python3-venv): {_reason(error)}") from error


def _install_torch(environment, cache, venv, toolkit, say):
    if _imports(environment, "torch", TORCH):
        return
    if toolkit and _link_unpacked_wheel(cache, venv):
        say(f"peers: using the PyTorch {TORCH} unpacked in {cache}; a few MB more go to {venv}")
        _pip(environment, TORCH_PYTHON_NEEDS)
        if _imports(environment, "torch", TORCH):
            return
        _unpacked_wheel_link(venv).unlink()
    if toolkit:
        say(f"peers: downloading PyTorch {TORCH} (0.8 GB, 2 GB on disk) to {venv}")
        _pip(environment, ["--no-deps", f"torch=={TORCH}"] + TORCH_CUDA_NEEDS)
        _pip(environment, TORCH_PYTHON_NEEDS)
        environment.variables = _variables(cache, venv, toolkit)  # the folders are there now
    else:
        say(f"peers: downloading PyTorch {TORCH} with its CUDA libraries "
            f"(2.6 GB, 6 GB on disk) to {venv}")
        _pip(environment, [f"torch=={TORCH}"] + TORCH_PYTHON_NEEDS)
    _require_import(environment, "torch", TORCH)


def _install_deepspeed(environment, venv, say):
    if _imports(environment, "deepspeed", DEEPSPEED):
        return
    say(f"peers: downloading DeepSpeed {DEEPSPEED} (about 30 MB with what it needs) to {venv}")
    _pip(environment, DEEPSPEED_NEEDS)
    # It looks at torch while it is built, so the build must see this environment.
    _pip(environment, ["--no-deps", "--no-build-isolation", f"deepspeed=={DEEPSPEED}"])
    _require_import(environment, "deepspeed", DEEPSPEED)


def _unpacked_wheel_link(venv) -> Path:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return venv / "lib" / version / "site-packages" / "vsr_unpacked_torch.pth"


def _link_holds(venv) -> bool:
    """False when the wheel that the environment points at was removed."""
    link = _unpacked_wheel_link(venv)
    return not link.exists() or os.path.isdir(link.read_text().strip())


def _link_unpacked_wheel(cache, venv) -> bool:
    """Point the environment at the wheel our own build was made with, where this Python can load it:
    the peers then run the very libraries that we run, and 2 GB are not there twice."""
    unpacked = cache / f"torch-{TORCH}"
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    if not glob.glob(str(unpacked / "torch" / f"_C.{tag}*.so")):
        return False
    _unpacked_wheel_link(venv).write_text(f"{unpacked}\n")
    return True


def _variables(cache, venv, toolkit) -> dict:
    variables = dict(os.environ)
    if toolkit:
        packages = str(venv / "lib" / "python*" / "site-packages" / "nvidia" / "*" / "lib")
        unpacked = str(cache / f"torch-{TORCH}" / "nvidia" / "*" / "lib")
        folders = toolkit + sorted(glob.glob(packages)) + sorted(glob.glob(unpacked))
        if os.environ.get("LD_LIBRARY_PATH"):
            folders.append(os.environ["LD_LIBRARY_PATH"])
        variables["LD_LIBRARY_PATH"] = ":".join(folders)
    variables.update(PATH=f"{venv / 'bin'}:{os.environ.get('PATH', '')}", PYTHONNOUSERSITE="1",
                     TORCH_EXTENSIONS_DIR=str(cache / "peers-extensions"), DS_ACCELERATOR="cpu",
                     CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")
    return variables


def _imports(environment, package, version) -> bool:
    try:
        _require_import(environment, package, version)
        return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _require_import(environment, package, version):
    check = (f"import {package}; found = {package}.__version__.split('+')[0]; "
             f"assert found == '{version}', '{package} ' + found + ' is there, {version} expected'")
    _run([str(environment.python), "-c", check], environment)


def _pip(environment, packages):
    _run([str(environment.python), "-m", "pip", "install", "--quiet",
          "--disable-pip-version-check"] + packages, environment)


def _run(command, environment):
    subprocess.run(command, env=environment.variables, check=True, text=True,
                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _reason(error) -> str:
    """The last line that says something, of what a failed command printed."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line.strip() for line in (error.stdout or "").splitlines() if line.strip()]
        return lines[-1] if lines else f"{error.cmd[0]} ended with code {error.returncode}"
    return str(error)


def _read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
