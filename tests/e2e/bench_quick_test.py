# SPDX-License-Identifier: Apache-2.0
"""Runs each `bench/compare.sh NAME --quick` as a user does and checks the file it leaves."""
import json
import os
import subprocess
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = ["ddp_fp32", "ddp_zero", "deepspeed_zero1", "full_masters"]


def quick(test, name):
    """The file that the comparison leaves."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name + ".json")
        done = subprocess.run(["bash", os.path.join(SOURCE, "bench", "compare.sh"), name,
                               "--quick", "--out", path], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        print(done.stdout)
        test.assertEqual(done.returncode, 0)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


class CompareCheckpoint(unittest.TestCase):
    def test_quick(self):
        data = quick(self, "checkpoint")
        names = sorted(list(data["peers"]) + list(data["missing"]))
        self.assertEqual(names, ["disk", "disk_early", "torch_dcp"])
        self.assertIn("disk", data["peers"])
        for entry in [data["ours"]] + list(data["peers"].values()):
            self.assertTrue(entry["checked"])
            self.assertEqual(entry["parameters"], data["ours"]["parameters"])
            self.assertEqual(entry["count"], 2)  # 2 rounds of 1
        self.assertGreater(data["of_the_disk"], 0)
        self.assertGreaterEqual(data["ours"]["median_stall_ms"], data["ours"]["median_copy_ms"])
        self.assertGreaterEqual(data["ours"]["median_ms"], data["ours"]["median_stall_ms"])
        self.assertEqual(set(data["save_gb_per_s"]), {"ours"} | set(data["peers"]))
        self.assertFalse(os.path.exists(os.path.join(SOURCE, "build", "bench", "data")))


class CompareCollectives(unittest.TestCase):
    def test_quick(self):
        data = quick(self, "collectives")
        sides = {row["side"] for row in data["rows"]}
        self.assertLessEqual({"ours", "open_mpi"}, sides)
        self.assertEqual(sides | set(data["missing"]), {"ours", "open_mpi", "gloo"})
        names = {row["name"] for row in data["rows"] if row["side"] == "ours"}
        self.assertEqual(names, {"exact", "fast", "allreduce", "publish", "broadcast"})
        for row in data["rows"]:
            self.assertGreater(row["bus_gb_per_s"], 0)
            self.assertEqual(row["ranks"], 2)


class CompareStep(unittest.TestCase):
    def test_quick(self):
        data = quick(self, "step")
        for key in ("ours", "peers", "ratio", "limit", "machine", "versions"):
            self.assertIn(key, data)
        # Each peer is either measured or missing with a reason.
        self.assertEqual(sorted(list(data["peers"]) + list(data["missing"])), PEERS)
        self.assertEqual(sorted(data["ratio"]), sorted(data["peers"]))
        for name, reason in data["missing"].items():
            self.assertTrue(reason, name)
        for entry in [data["ours"]] + list(data["peers"].values()):
            self.assertTrue(entry["checked"])
            self.assertEqual(entry["ranks"], data["ours"]["ranks"])
            self.assertEqual(entry["threads"], data["ours"]["threads"])
            self.assertEqual(entry["pinned"], data["ours"]["pinned"])
            self.assertEqual(entry["parameters"], data["ours"]["parameters"])
            self.assertEqual(entry["count"], 10)  # 2 rounds of 5
        parts = dict(data["ours"]["breakdown_ms"])
        self.assertAlmostEqual(parts.pop("step"), sum(parts.values()), places=6)
        self.assertGreater(data["limit"], 0)
        for key in ("commit", "mpi", "libtorch", "compiler"):
            self.assertIn(key, data["versions"])


if __name__ == "__main__":
    unittest.main()
