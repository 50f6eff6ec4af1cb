# SPDX-License-Identifier: Apache-2.0
"""Weights between PyTorch and `vsr checkpoint`: what torch.save writes arrives with the same bits, and
what we export is read by a few lines of Python."""
import collections
import json
import os
import pathlib
import shlex
import struct
import subprocess
import tempfile
import unittest

import torch

BIN = pathlib.Path(os.environ["VSR_BIN"])
DTYPES = {"F32": torch.float32, "F16": torch.float16}


def run(*command, code=0):
    """What a program of ours prints, with the libraries it was built with."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.environ["VSR_OUTER_LIBRARY_PATH"]}
    done = subprocess.run([str(part) for part in command], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != code:
        raise AssertionError(f"{command} returned {done.returncode}: {done.stdout}")
    return done.stdout


def read_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    table = json.loads(data[8:8 + size])
    table.pop("__metadata__")
    tensors = {}
    for name, entry in table.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def bits(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


class Weights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.work.cleanup)
        cls.folder = pathlib.Path(cls.work.name)
        clip = cls.folder / "clip.mp4"
        run(BIN / "vsr", "testclip", clip, "--frames", "12", "--height", "72", "--width", "80")
        run(*shlex.split(os.environ["VSR_MPIRUN"]), "-np", "2", BIN / "vsr_dist_train", "--train", clip,
            "--out", cls.folder / "run", "--gt-size", "32", "--batch", "1", "--leaves", "2", "--channels",
            "8", "--blocks", "1", "--total-iter", "2", "--val-freq", "0")
        run(BIN / "vsr", "checkpoint", "export", cls.folder / "run", cls.folder / "trained.safetensors")
        cls.trained = read_safetensors(cls.folder / "trained.safetensors")

    def random_weights(self, seed):
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(value.shape, generator=generator) for name, value in self.trained.items()}

    def through(self, saved, *options, **how):
        """`saved` by torch.save, imported, exported again."""
        base = self.folder / self.id().rsplit(".", 1)[-1]
        path = base.with_suffix(".pth")
        torch.save(saved, path, **how)
        run(BIN / "vsr", "checkpoint", "import", path, base, "--like", self.folder / "run", *options)
        run(BIN / "vsr", "checkpoint", "export", base, base.with_suffix(".safetensors"))
        return read_safetensors(base.with_suffix(".safetensors"))

    def assert_same(self, got, expected):
        self.assertEqual(sorted(got), sorted(expected))
        for name, value in expected.items():
            self.assertEqual(bits(got[name]), bits(value.float()), name)

    def test_state_dict_of_wrapped_module(self):
        weights = self.random_weights(1)
        saved = collections.OrderedDict((f"module.{name}", value) for name, value in weights.items())
        saved._metadata = collections.OrderedDict({"": {"version": 1}})
        self.assert_same(self.through(saved), weights)

    def test_average_is_preferred(self):
        average = self.random_weights(2)
        self.assert_same(self.through({"params": self.random_weights(3), "params_ema": average}), average)

    def test_entry_by_name(self):
        weights = self.random_weights(4)
        self.assert_same(
            self.through({"params": weights, "params_ema": self.random_weights(5)}, "--key", "params"), weights)

    def test_dtypes_and_views(self):
        weights = self.random_weights(6)
        kinds = [torch.float16, torch.bfloat16, torch.float64, torch.float32]
        shown = {}
        for i, (name, value) in enumerate(weights.items()):
            if value.dim() == 4 and i % 2 == 0:
                value = value.to(memory_format=torch.channels_last)
            elif value.dim() == 1:
                value = torch.cat([torch.ones(3), value, torch.ones(2)])[3:-2]
            shown[name] = value.to(kinds[i % len(kinds)])
        self.assert_same(self.through({"params": shown}), shown)

    def test_hdf5(self):
        path = self.folder / "trained.h5"
        run(BIN / "vsr", "checkpoint", "export", self.folder / "run", path)
        for name, value in self.trained.items():
            out = self.folder / "values.bin"
            subprocess.run(["h5dump", "-d", f"/{name}", "-b", "LE", "-o", out, path], check=True,
                           stdout=subprocess.DEVNULL)
            self.assertEqual(out.read_bytes(), bits(value), name)

    def test_other_pickles_are_refused(self):
        path = self.folder / "other.pth"
        for saved, how, reason in [
                (self.trained, {"_use_new_zipfile_serialization": False}, "save it anew"),
                (torch.nn.Linear(1, 1), {}, "asks for torch.nn.modules.linear.Linear, which is not allowed"),
                ({"params": {"x": [1.0]}}, {}, "entry 'x' is no tensor"),
                (self.trained, {"pickle_protocol": 4}, "no pickle of protocol 2")]:
            torch.save(saved, path, **how)
            text = run(BIN / "vsr", "checkpoint", "import", path, self.folder / "none", "--like",
                       self.folder / "run", code=65)
            self.assertIn(reason, text)
        self.assertFalse((self.folder / "none").exists())


if __name__ == "__main__":
    unittest.main()
