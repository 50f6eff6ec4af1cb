# SPDX-License-Identifier: Apache-2.0
"""Overflows at random through torch.amp.GradScaler and through ours with its rules.

Scales must be equal to the last bit wherever they are powers of two; that is also asked of a whole
optimizer whose gradients overflow at random, with the steps that each side skips.
"""
import math
import random
import tempfile
import unittest

import torch
from recording import Case, Driver, flat, record_training

SMALLEST_FP32 = 2.0 ** -149


def constants(init_scale, growth_factor, backoff_factor, growth_interval) -> dict:
    return {"init_scale": init_scale, "growth_factor": growth_factor,
            "backoff_factor": backoff_factor, "growth_interval": growth_interval}


def overflows_at_random(seed, steps, share) -> list:
    generator = random.Random(seed)
    return [generator.random() < share for _ in range(steps)]


# Constants, steps, share of overflows.
SEQUENCES = [
    (constants(2.0 ** 16, 2.0, 0.5, 2000), 7000, 0.0004),  # what GradScaler does by default
    (constants(1024.0, 2.0, 0.5, 3), 600, 0.2),
    (constants(1.0, 4.0, 0.25, 5), 600, 0.15),
    (constants(2.0 ** 20, 8.0, 0.5, 20), 600, 0.05),
    (constants(2.0 ** 126, 2.0, 0.5, 1), 600, 0.1),  # runs against the end of FP32
    (constants(2.0 ** -100, 2.0, 0.5, 50), 600, 0.02),
]


def scales_of_torch(numbers, overflows) -> list:
    """The scale after each step of a GradScaler whose only gradient is infinite where asked."""
    scaler = torch.amp.GradScaler("cpu", **numbers)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler.scale(torch.zeros(1))  # makes the scale
    scales = []
    for overflow in overflows:
        parameter.grad = torch.full((1,), float("inf") if overflow else 0.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def scales_of_ours(sequences, powers_of_two=True) -> list:
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(folder)
        jobs = [driver.add_scaler({**numbers, "powers_of_two": powers_of_two}, overflows)
                for numbers, overflows in sequences]
        driver.run()
        return [job["report"]["scales"] for job in jobs]


class Scales(unittest.TestCase):
    def test_powers_of_two(self):
        sequences = [(numbers, overflows_at_random(seed, steps, share))
                     for seed, (numbers, steps, share) in enumerate(SEQUENCES, 1)]
        for (numbers, overflows), ours in zip(sequences, scales_of_ours(sequences)):
            with self.subTest(numbers):
                self.assertEqual(ours, scales_of_torch(numbers, overflows))
            print(f"{numbers}: {len(ours)} steps, {sum(overflows)} overflows, scales "
                  f"2^{math.log2(min(ours)):.0f} to 2^{math.log2(max(ours)):.0f}, "
                  f"{count_changes(ours)} changes")
            # Else the sequence shows nothing.
            self.assertGreaterEqual(sum(overflows), 2)
            self.assertGreaterEqual(count_changes(ours), 5)

    def test_other_factors(self):
        """GradScaler rounds each new scale to FP32, ours is an FP64 number: they differ by at most
        half an FP32 step, 2^-24, for each change up to there."""
        numbers = constants(65536.0, 1.3, 0.7, 4)
        overflows = overflows_at_random(4, 1000, 0.1)
        ours = scales_of_ours([(numbers, overflows)], powers_of_two=False)[0]
        theirs = scales_of_torch(numbers, overflows)
        changes = 0
        for step, (mine, other) in enumerate(zip(ours, theirs)):
            changes += step > 0 and other != theirs[step - 1]
            self.assertLessEqual(abs(mine - other), (changes + 1) * 2.0 ** -24 * other, step)
        self.assertGreater(changes, 100)

    def test_where_they_part(self):
        """At both ends of FP32, where no training goes. Nothing but overflows brings GradScaler to
        0, from which no growth leads away, and ours to the smallest number that FP32 holds. A growth
        beyond FP32 leaves GradScaler's scale as it is; ours goes to the ceiling, 2^127."""
        falling = (constants(65536.0, 2.0, 0.5, 2000), [True] * 170)
        rising = (constants(2.0 ** 125, 8.0, 0.5, 1), [False] * 3)
        fallen, risen = scales_of_ours([falling, rising])
        theirs = scales_of_torch(*falling)
        self.assertEqual(theirs.index(0.0), 165)  # the 166th halving of 2^16
        self.assertEqual(fallen[:165], theirs[:165])
        self.assertEqual(fallen[165:], [SMALLEST_FP32] * 5)
        self.assertEqual(scales_of_torch(*rising), [2.0 ** 125] * 3)
        self.assertEqual(risen, [2.0 ** 127] * 3)


def count_changes(scales) -> int:
    return sum(before != after for before, after in zip(scales, scales[1:]))


class WholeOptimizer(unittest.TestCase):
    STEPS = 400
    NUMBERS = constants(1024.0, 2.0, 0.5, 20)

    def setUp(self):
        self.recording = record_training(self.STEPS)
        self.overflows = overflows_at_random(5, self.STEPS, 0.03)
        for step, overflow in enumerate(self.overflows):
            if overflow:
                self.recording.gradients[step, 7 * step % self.recording.initial.numel()] = \
                    float("inf" if step % 2 else "nan")
        options = {"lr": 1e-2, "momentum": 0.9}
        self.case = Case("SGD", torch.optim.SGD, "sgd", options, options)

    def step_torch(self, dtype):
        """Masters after each step, the scale after each step, whether each was applied."""
        parameters = self.recording.parameters(dtype)
        optimizer = self.case.torch_optimizer(self.recording, parameters)
        scaler = torch.amp.GradScaler("cpu", **self.NUMBERS)
        masters, scales = [], []
        for row in self.recording.gradients:
            optimizer.zero_grad()
            loss = sum((parameter * gradient).sum() for parameter, gradient
                       in zip(parameters, self.recording.split(row.to(dtype))))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            masters.append(flat(parameters))
            scales.append(scaler.get_scale())
        start = self.recording.initial.to(dtype)
        applied = [not torch.equal(before, after)
                   for before, after in zip([start] + masters, masters)]
        return torch.stack(masters).double(), scales, applied

    def test_scales_skips_and_masters(self):
        reference, scales, applied = self.step_torch(torch.float64)
        fp32, _, _ = self.step_torch(torch.float32)
        for ranks in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                driver = Driver(folder)
                job = driver.add_training(self.case, self.recording, 1,
                                          scaler={**self.NUMBERS, "powers_of_two": True})
                driver.run(ranks)
                ours = driver.masters(job)
            self.assertEqual(job["report"]["scales"], scales)
            self.assertEqual(job["report"]["applied"], applied)
            self.assertEqual(applied, [not overflow for overflow in self.overflows])
            # As in optimizers_test.py; a wrong skip or a wrong scale would be far outside.
            errors = [(masters.double() - reference)[-1].square().mean().sqrt().item()
                      for masters in (ours, fp32)]
            self.assertLessEqual(errors[0], 1.5 * errors[1])
            print(f"{ranks} ranks: {self.STEPS} steps, {applied.count(False)} skipped, last scale "
                  f"{scales[-1]:.0f}, error {errors[0] / errors[1]:.3f} times PyTorch's in FP32")


if __name__ == "__main__":
    unittest.main(verbosity=2)
