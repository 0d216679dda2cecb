#!/usr/bin/env python3
"""Finds what a build for NVIDIA GPUs needs, before it begins: a PyTorch for CUDA with a GPU, nvcc with the runtime
library of the same CUDA and, if there are any, the headers for cuDNN's attention.

Prints shell assignments (COPUS_TORCH_DIR, CUDAToolkit_ROOT) for scripts/build on standard output. If something is
missing, it prints one message that lists for each thing where it was looked for and what to install, and exits with 2.

Uses the first Python of these that has a PyTorch for CUDA: COPUS_PYTHON, the Python of the active virtual or conda
environment, of .venv, or on the PATH. Uses the first nvcc of these: CUDACXX, nvcc below CUDA_HOME, on the PATH, or in
/usr/local/cuda.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent


def of_cmake(file: str, pattern: str) -> tuple[int, ...]:
    """A version of two numbers, read from a CMake file of the build."""
    return tuple(map(int, re.search(pattern, (ROOT / "cmake" / file).read_text(encoding="utf-8")).groups()))


OLDEST_TORCH = of_cmake("FindLibtorch.cmake", r"set\(OLDEST_TORCH (\d+)\.(\d+)\)")
LEAST_CAPABILITY = of_cmake("CopusGpu.cmake", r"set\(CMAKE_CUDA_ARCHITECTURES (\d+)(\d)-real")
PROBE = """
import json, torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "cmake": torch.utils.cmake_prefix_path,
                  "gpus": gpus, "capability": torch.cuda.get_device_capability() if gpus else None}))
"""
# The driver's devices, which show that there is a card without PyTorch: on Linux, and in Windows' subsystem for Linux.
DEVICES = ["/dev/nvidia[0-9]*", "/dev/dxg"]
PROBE_SECONDS = 120  # a first import from a network's file system is slow


class Missing(NamedTuple):
    what: str
    looked: list[str]
    remedy: str


def candidates(*paths: str | pathlib.Path | None) -> list[str]:
    """The paths that are programs, without duplicates."""
    found = [shutil.which(path) for path in paths if path]
    return list(dict.fromkeys(path for path in found if path))


def pythons() -> list[str]:
    environments = [pathlib.Path(os.environ[name], "bin", "python") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
                    if os.environ.get(name)]
    return candidates(os.environ.get("COPUS_PYTHON"), *environments, ROOT / ".venv/bin/python", "python3", "python")


def probe(python: str) -> dict | str:
    """Describes its PyTorch, or says why there is none."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"importing torch takes longer than {PROBE_SECONDS} s"
    except (IndexError, ValueError):
        return "no module torch" if "No module named 'torch'" in done.stderr else \
            (done.stderr.strip().splitlines() or ["import torch fails"])[-1]


def find_torch() -> dict | Missing:
    looked = []
    for python in pythons():
        torch = probe(python)
        if isinstance(torch, str):
            looked.append(f"{python}: {torch}")
        elif not torch["cuda"]:
            looked.append(f"{python}: torch {torch['version']} is for CPUs or another platform")
        elif tuple(int(part) for part in re.findall(r"\d+", torch["version"])[:2]) < OLDEST_TORCH:
            looked.append(f"{python}: torch {torch['version']} is too old")
        else:
            return torch
    return Missing("PyTorch for CUDA, {}.{} or newer".format(*OLDEST_TORCH), looked,
                   "pip install torch, in a virtual environment that is active; or name its Python: "
                   "export COPUS_PYTHON=/path/to/python3")


def find_nvcc(major: str | None) -> tuple[str, str] | Missing:
    """(nvcc, the toolkit's folder), of this major version of CUDA if given."""
    looked = []
    folders = [pathlib.Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH")
               if os.environ.get(name)]
    for nvcc in candidates(os.environ.get("CUDACXX"), *folders, "nvcc", "/usr/local/cuda/bin/nvcc"):
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
        release = re.search(r"release (\d+)\.(\d+)", done.stdout)
        # A wrapper or link on the PATH prints where its toolkit is: "#$ TOP=/usr/local/cuda-13.0/bin/..".
        dry_run = subprocess.run([nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True)
        top = re.search(r"#\$ TOP=(\S+)", dry_run.stderr)
        folder = pathlib.Path(top[1] if top else pathlib.Path(nvcc).resolve().parent.parent).resolve()
        libraries = [*folder.glob("lib*/libcudart.so"), *folder.glob("targets/*/lib/libcudart.so"),
                     *folder.glob("lib/*-linux-gnu/libcudart.so")]
        if not release:
            looked.append(f"{nvcc}: does not say its version")
        elif major and release[1] != major:
            looked.append(f"{nvcc}: of CUDA {release[1]}.{release[2]}")
        elif not libraries:
            looked.append(f"{nvcc}: no libcudart.so in {folder}")
        else:
            return nvcc, str(folder)
    looked = looked or ["$CUDACXX", "$CUDA_HOME/bin", "the PATH", "/usr/local/cuda/bin"]
    version = f" {major}" if major else ""
    return Missing(f"nvcc and the runtime library of CUDA{version}", looked,
                   f"a CUDA toolkit{version}.x (developer.nvidia.com/cuda-downloads, your cluster's `module load "
                   "cuda`, or a container whose name ends in -devel); name it: export CUDA_HOME=/path/to/cuda")


def missing_cudnn_headers(torch: dict, toolkit: str) -> list[str]:
    """Lines about missing headers that a build can do without."""
    packages = pathlib.Path(torch["cmake"]).parents[2]  # .../site-packages/torch/share/cmake
    major = torch["cuda"].split(".")[0]
    places = {
        "cudnn_graph_v9.h": ([packages / "nvidia/cudnn/include", pathlib.Path("/usr/include"),
                              pathlib.Path("/usr/include/x86_64-linux-gnu")], f"nvidia-cudnn-cu{major}"),
        "cudnn_frontend.h": ([packages / "include", pathlib.Path("/usr/include")], "'nvidia-cudnn-frontend==1.32.*'"),
        "nvrtc.h": ([pathlib.Path(toolkit, "include"), *pathlib.Path(toolkit).glob("targets/*/include"),
                     packages / f"nvidia/cu{major}/include"], "nvidia-cuda-nvrtc"),
    }
    return [f"{header} (looked in {', '.join(map(str, folders))}): pip install {package}"
            for header, (folders, package) in places.items()
            if not any((folder / header).is_file() for folder in folders)]


def main() -> int:
    torch = find_torch()
    has_torch = not isinstance(torch, Missing)
    nvcc = find_nvcc(torch["cuda"].split(".")[0] if has_torch else None)
    missing = [each for each in (torch, nvcc) if isinstance(each, Missing)]
    if not has_torch and not any(map(glob.glob, DEVICES)):
        missing.insert(0, Missing("an NVIDIA GPU with its driver", DEVICES,
                                  "NVIDIA's driver; in a container, docker run --gpus all; without a card nothing below "
                                  "helps, and `make quickstart` trains on CPUs"))
    elif has_torch and not torch["gpus"]:
        missing.append(Missing("a GPU that PyTorch can use",
                               [f"torch {torch['version']}: torch.cuda.is_available() is False"], "a driver for CUDA " +
                               torch["cuda"] + " (nvidia-smi shows its version); in a container, "
                               "docker run --gpus all; unset CUDA_VISIBLE_DEVICES"))
    elif has_torch and tuple(torch["capability"]) < LEAST_CAPABILITY:
        missing.append(Missing("a GPU of compute capability {}.{} or newer".format(*LEAST_CAPABILITY),
                               ["the first one has {}.{}".format(*torch["capability"])],
                               "build by hand for it: -DCMAKE_CUDA_ARCHITECTURES=native (docs/gpu.md, Building)"))
    if missing:
        print("error: this machine lacks what training on a GPU needs:", file=sys.stderr)
        for what, looked, remedy in missing:
            print(f"  {what}", *(f"    looked at   {place}" for place in looked), f"    install     {remedy}", sep="\n",
                  file=sys.stderr)
        return 2
    print(f"    PyTorch {torch['version']} for CUDA {torch['cuda']}, {nvcc[0]}, {torch['gpus']} GPU(s)",
          file=sys.stderr)
    for line in missing_cudnn_headers(torch, nvcc[1]):
        print(f"    attention will be ATen's, which is slower on Hopper, because there is no {line}", file=sys.stderr)
    print(f"COPUS_TORCH_DIR={shlex.quote(torch['cmake'] + '/Torch')}\nCUDAToolkit_ROOT={shlex.quote(nvcc[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
