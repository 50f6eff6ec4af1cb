# SPDX-License-Identifier: Apache-2.0
"""clip_fp32_grads against torch.nn.utils.clip_grad_norm_ in FP64: total norms and gradients."""
import math
import tempfile
import unittest

import torch
from recording import Case, Driver, Recording, flat, read_floats, record_training

# Both sides add nearly 2000 FP64 numbers, of which each addition may lose 2^-53, in other orders;
# powers and roots lose a few times that.
NORM_TOLERANCE = 2000 * 2.0 ** -53
# Ours are rounded to FP32 once, which loses up to 2^-24 of a normal number; the little more is what
# the factors, FP64 on both sides, may differ by.
GRADIENT_TOLERANCE = 2.0 ** -24 * (1 + 1e-6)
SMALLEST_NORMAL_FP32 = 2.0 ** -126
FP16_SCALE = 1024.0


class Clip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        recording = record_training(200)
        rows = recording.gradients[[0, 1, 5, 20, 60, 199]]
        # Gradients that FP16 holds exactly once they are scaled, so that both types can be asked for.
        rows = (rows * FP16_SCALE).half().float() / FP16_SCALE
        cls.recording = Recording(recording.shapes, recording.initial, rows)

    def clipped_by_torch(self, row, max_norm, norm):
        parameters = self.recording.parameters(torch.float64)
        for parameter, gradient in zip(parameters, self.recording.split(row)):
            parameter.grad = gradient.double()
        total = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm)
        return total.item(), flat([parameter.grad for parameter in parameters])

    def check(self, job, inspected, max_norm, norm):
        """Compare each row; the largest relative differences of norms and of gradients."""
        norm_difference = gradient_difference = 0.0
        clipped = 0
        for row, ours, found in zip(self.recording.gradients, inspected, job["report"]["norms"]):
            total, expected = self.clipped_by_torch(row, max_norm, norm)
            norm_difference = max(norm_difference, abs(found / total - 1))
            if total + 1e-6 <= max_norm:
                self.assertTrue(torch.equal(ours, row), "changed although within the norm")
                continue
            clipped += 1
            difference = (ours.double() - expected).abs()
            bound = expected.abs().clamp(min=SMALLEST_NORMAL_FP32)
            gradient_difference = max(gradient_difference, (difference / bound).max().item())
        return norm_difference, gradient_difference, clipped

    def norm_of(self, row, norm):
        return torch.linalg.vector_norm(row.double(), norm).item()

    def test_norms_and_gradients(self):
        settings = []
        for norm in (1.0, 2.0, math.inf, 3.0):
            norms = sorted(self.norm_of(row, norm) for row in self.recording.gradients)
            # All rows clipped, half of them, none.
            for max_norm in (norms[0] / 7, (norms[2] + norms[3]) / 2, norms[-1] * 2):
                settings.append((norm, max_norm))
        options = {"lr": 1e-3}
        case = Case("SGD", torch.optim.SGD, "sgd", options, options)
        for dtype, scale, ranks in (("fp32", 1.0, 1), ("fp16", FP16_SCALE, 1),
                                    ("fp16", FP16_SCALE, 2)):
            with tempfile.TemporaryDirectory() as folder:
                driver = Driver(folder)
                jobs = [driver.add_training(
                    case, self.recording, 1, dtype=dtype, loss_scale=scale,
                    inspect=f"inspected_{number}.bin",
                    clip={"norm": "inf" if math.isinf(norm) else norm, "max_norm": max_norm})
                        for number, (norm, max_norm) in enumerate(settings)]
                driver.run(ranks)
                columns = self.recording.initial.numel()
                rows = [read_floats(driver.folder / job["inspect"], columns) for job in jobs]
            print(f"\n{dtype}, {ranks} ranks: largest relative difference of norms, of gradients")
            for number, ((norm, max_norm), job, inspected) in enumerate(zip(settings, jobs, rows)):
                by_norm, by_gradient, clipped = self.check(job, inspected, max_norm, norm)
                print(f"norm {norm:3g}  max_norm {max_norm:9.3g}  {clipped} clipped: "
                      f"{by_norm:.2e}  {by_gradient:.2e}")
                with self.subTest(dtype=dtype, ranks=ranks, norm=norm, max_norm=max_norm):
                    self.assertEqual(clipped, (6, 3, 0)[number % 3])
                    self.assertLessEqual(by_norm, NORM_TOLERANCE)
                    self.assertLessEqual(by_gradient, GRADIENT_TOLERANCE)
                    if math.isinf(norm):
                        self.assertEqual(by_norm, 0.0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
