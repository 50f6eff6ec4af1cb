# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients, and the two sides that step with them: PyTorch and parity_driver.

Both sides get the same numbers to the last bit, so what is compared is the optimizers alone and
errors do not feed back through a network.
"""
import itertools
import json
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

torch.set_num_threads(1)


@dataclass
class Recording:
    """FP32 values of the parameters at the start, and one row of gradients per step."""
    shapes: list
    initial: torch.Tensor
    gradients: torch.Tensor

    def parameters(self, dtype) -> list:
        """Leaf tensors with the values at the start."""
        return [part.to(dtype, copy=True).requires_grad_() for part in self.split(self.initial)]

    def split(self, row) -> list:
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        return [part.reshape(shape) for part, shape in zip(row.split(sizes), self.shapes)]

    def groups(self) -> list:
        """Indices of the weights, then those of the biases."""
        return [[i for i, shape in enumerate(self.shapes) if (len(shape) > 1) == is_weight]
                for is_weight in (True, False)]


def record_training(steps) -> Recording:
    """Train a small network that doubles the size of images, in FP32, and keep every gradient."""
    torch.manual_seed(20240607)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 3, padding=1), torch.nn.PReLU(),
        torch.nn.Conv2d(12, 12, 3, padding=1), torch.nn.PReLU(),
        torch.nn.Conv2d(12, 4, 3, padding=1), torch.nn.PixelShuffle(2))
    parameters = list(network.parameters())
    recording = Recording([list(p.shape) for p in parameters], flat(parameters), None)
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    rows = []
    for _ in range(steps):
        large = torch.nn.functional.interpolate(torch.rand(4, 1, 6, 6), size=(16, 16),
                                                mode="bicubic", align_corners=False)
        optimizer.zero_grad()
        small = torch.nn.functional.avg_pool2d(large, 2)
        torch.nn.functional.mse_loss(network(small), large).backward()
        rows.append(flat([p.grad for p in parameters]))
        optimizer.step()
    recording.gradients = torch.stack(rows)
    return recording


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@dataclass
class Case:
    """An optimizer of PyTorch, its name in the driver, and the options of weights and biases."""
    name: str
    make: type
    kind: str
    weights: dict
    biases: dict
    extra: dict = field(default_factory=dict)  # for the driver: dtype, loss_scale, clip, scaler

    def torch_optimizer(self, recording, parameters):
        groups = [{"params": [parameters[i] for i in members], **options}
                  for members, options in zip(recording.groups(), (self.weights, self.biases))]
        return self.make(groups)

    def driver_groups(self, recording) -> list:
        return [{"parameters": members, "options": driver_options(options)}
                for members, options in zip(recording.groups(), (self.weights, self.biases))]


def driver_options(options) -> dict:
    numbers = {}
    for name, value in options.items():
        if name == "betas":
            numbers["beta1"], numbers["beta2"] = value
        else:
            numbers[name] = float(value)
    return numbers


def step_torch(case, recording, dtype, every) -> torch.Tensor:
    """Where PyTorch's parameters stand after each `every` steps, as FP64 rows."""
    parameters = recording.parameters(dtype)
    optimizer = case.torch_optimizer(recording, parameters)
    clip = case.extra.get("clip")
    rows = []
    for step, row in enumerate(recording.gradients, 1):
        for parameter, gradient in zip(parameters, recording.split(row)):
            parameter.grad = gradient.to(dtype, copy=True)
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip["max_norm"], clip["norm"])
        optimizer.step()
        if step % every == 0:
            rows.append(flat(parameters).double())
    return torch.stack(rows)


def write_floats(path, tensor):
    values = tensor.detach().to(torch.float32).contiguous().reshape(-1)
    buffer = bytearray(4 * values.numel())
    torch.frombuffer(buffer, dtype=torch.float32).copy_(values)
    Path(path).write_bytes(buffer)


def read_floats(path, columns) -> torch.Tensor:
    return torch.frombuffer(bytearray(Path(path).read_bytes()),
                            dtype=torch.float32).reshape(-1, columns)


class Driver:
    """Collects jobs, runs them in one go, and hands back what each left."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.jobs = []
        self.numbers = itertools.count()

    def add_training(self, case, recording, every, engine="ours", **more) -> dict:
        """The job of a case; its results are there after run()."""
        number = next(self.numbers)
        files = {name: f"{name}_{number}.bin" for name in ("initial", "gradients", "masters")}
        write_floats(self.folder / files["initial"], recording.initial)
        write_floats(self.folder / files["gradients"], recording.gradients)
        self.jobs.append({"kind": "training", "engine": engine, "optimizer": case.kind,
                          "parameters": recording.shapes, "groups": case.driver_groups(recording),
                          "steps": len(recording.gradients), "every": every, "dtype": "fp32",
                          "loss_scale": 1.0, **files, **case.extra, **more})
        return self.jobs[-1]

    def add_scaler(self, scaler, overflows) -> dict:
        self.jobs.append({"kind": "scaler", "scaler": scaler, "overflows": overflows})
        return self.jobs[-1]

    def run(self, ranks=1):
        """Run all jobs; each job's "report" is what the driver said of it."""
        jobs, reports = self.folder / "jobs.json", self.folder / "reports.json"
        jobs.write_text(json.dumps(self.jobs))
        command = [os.path.join(os.environ["VSR_BIN"], "parity_driver"), str(jobs), str(reports)]
        if ranks > 1:
            command = shlex.split(os.environ["VSR_MPIRUN"]) + ["-np", str(ranks)] + command
        variables = dict(os.environ, LD_LIBRARY_PATH=os.environ["VSR_OUTER_LIBRARY_PATH"])
        done = subprocess.run(command, env=variables, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
        for job, report in zip(self.jobs, json.loads(reports.read_text())):
            job["report"] = report
        return self

    def masters(self, job) -> torch.Tensor:
        """The FP32 masters of a job, a row per recorded step."""
        columns = sum(torch.Size(shape).numel() for shape in job["parameters"])
        return read_floats(self.folder / job["masters"], columns)
