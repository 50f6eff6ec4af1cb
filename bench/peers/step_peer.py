# SPDX-License-Identifier: Apache-2.0
"""One peer of the step comparison: what a PyTorch user pays between "the gradients are there" and
"every rank has the new weights", on CPUs over gloo.

Full variants overlap or fuse parts of that with the backward pass, so their cost is taken as a whole
iteration less the same iteration without synchronisation and step, in pairs one after the other:
what a peer hides behind its backward pass is not held against it. A small case is compared with a
plain loop before anything is timed. Rank 0 prints one line of JSON.
"""
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist

import ranks

CLIP, BETAS, EPSILON = 1.0, (0.9, 0.999), 1e-8
SCALE = 1024.0  # small enough that no gradient here overflows: every timed step is a full one


def linear_stack(layers, width, last, seed=0):
    """`layers` linear layers whose activations and gradients keep their size through the depth."""
    generator = torch.Generator().manual_seed(seed)
    outputs = [width] * (layers - 1) + [last]
    net = torch.nn.Sequential(*[torch.nn.Linear(width, out) for out in outputs])
    with torch.no_grad():
        for layer in net:
            layer.weight.normal_(0.0, width ** -0.5, generator=generator)
            layer.bias.normal_(0.0, 0.1, generator=generator)
    return net


def sample(width, rank, step):
    """The input of one rank in one step; all ranks can make that of any other."""
    return torch.randn(1, width, generator=torch.Generator().manual_seed(1000 * step + rank + 1))


def loss_of(output):
    return output.float().pow(2).mean()


class DdpFp32:
    """DistributedDataParallel in FP32, gradients clipped, fused Adam on every rank."""
    tolerance = 1e-4
    replica_dtype = torch.float32
    zero = False

    def __init__(self, net, rank, world, lr):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        from torch.distributed.optim import ZeroRedundancyOptimizer
        self.net = net
        self.ddp = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        adam = dict(lr=lr, betas=BETAS, eps=EPSILON, fused=True)
        if self.zero:
            self.ddp.register_comm_hook(None, fp16_compress_hook)
            self.optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, **adam)
        else:
            self.optimizer = torch.optim.Adam(net.parameters(), **adam)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=self.zero)

    def full(self, x):
        self.optimizer.zero_grad(set_to_none=False)
        self.scaler.scale(loss_of(self.ddp(x))).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def bare(self, x):
        with self.ddp.no_sync():
            self.optimizer.zero_grad(set_to_none=False)
            self.scaler.scale(loss_of(self.ddp(x))).backward()

    def weights(self):
        return [p.detach().float() for p in self.net.parameters()]


class DdpZero(DdpFp32):
    """DDP with the FP16 compression hook, GradScaler, clipping, ZeroRedundancyOptimizer."""
    tolerance = 2e-2
    zero = True


class DeepSpeedZero1:
    """DeepSpeed ZeRO stage 1 in BF16 (it refuses FP16 on CPUs), gradients clipped, fused Adam."""
    tolerance = 0.1
    replica_dtype = torch.bfloat16

    def __init__(self, net, rank, world, lr):
        import deepspeed
        self.version = deepspeed.__version__
        deepspeed.init_distributed("gloo")
        self.plain = linear_stack_like(net).bfloat16()
        config = dict(train_micro_batch_size_per_gpu=1, gradient_clipping=CLIP,
                      bf16=dict(enabled=True), zero_optimization=dict(stage=1),
                      zero_allow_untested_optimizer=True)
        optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=BETAS, eps=EPSILON, fused=True)
        self.engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]
        self.step_only_ms = []

    def full(self, x):
        self.engine.backward(loss_of(self.engine(x.bfloat16())))
        start = time.perf_counter()
        self.engine.step()
        self.step_only_ms.append(1e3 * (time.perf_counter() - start))

    def bare(self, x):
        self.plain.zero_grad(set_to_none=True)
        loss_of(self.plain(x.bfloat16())).backward()

    def weights(self):
        return [p.detach().float() for p in self.engine.module.parameters()]


class FullMasters:
    """FP16 replicas, all FP32 masters on every rank, one flat FP16 all-reduce, loss scale, clipping,
    fused Adam, copied back: the classic mixed-precision optimizer."""
    tolerance = 2e-2
    replica_dtype = torch.float16

    def __init__(self, net, rank, world, lr):
        self.world = world
        masters = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
        self.masters = torch.nn.Parameter(masters)
        self.masters.grad = torch.zeros_like(masters)
        self.net = net.half()
        self.replicas = [p.detach() for p in self.net.parameters()]
        self.optimizer = torch.optim.Adam([self.masters], lr=lr, betas=BETAS, eps=EPSILON,
                                          fused=True)

    def backward(self, x):
        self.net.zero_grad(set_to_none=True)
        (loss_of(self.net(x.half())) * SCALE).backward()

    def step(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.net.parameters()])
        flat.div_(self.world)
        dist.all_reduce(flat)
        overflow = torch.tensor([0.0 if torch.isfinite(flat).all() else 1.0])
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        if overflow.item():
            return
        self.masters.grad.copy_(flat).div_(SCALE)
        torch.nn.utils.clip_grad_norm_([self.masters], CLIP)
        self.optimizer.step()
        sizes = [p.numel() for p in self.replicas]
        for replica, master in zip(self.replicas, self.masters.detach().split(sizes)):
            replica.copy_(master.view_as(replica))

    def full(self, x):
        self.backward(x)
        self.step()

    def weights(self):
        sizes = [p.numel() for p in self.replicas]
        parts = self.masters.detach().split(sizes)
        return [part.view_as(replica) for part, replica in zip(parts, self.replicas)]


VARIANTS = dict(ddp_fp32=DdpFp32, ddp_zero=DdpZero, deepspeed_zero1=DeepSpeedZero1,
                full_masters=FullMasters)


def linear_stack_like(net):
    copy = torch.nn.Sequential(*[torch.nn.Linear(l.in_features, l.out_features) for l in net])
    copy.load_state_dict(net.state_dict())
    return copy


def plain_loop(net, replica_dtype, world, steps, lr):
    """What `steps` steps give, one rank's sample after the other, without any of the libraries under
    test: mean of gradients, clip by the 2-norm, Adam as in its paper."""
    replica = linear_stack_like(net).to(replica_dtype)
    masters = [p.detach().double() for p in net.parameters()]
    first = [torch.zeros_like(m) for m in masters]
    second = [torch.zeros_like(m) for m in masters]
    width = net[0].in_features
    for t in range(1, steps + 1):
        mean = [torch.zeros_like(m) for m in masters]
        for rank in range(world):
            loss = loss_of(replica(sample(width, rank, t).to(replica_dtype))) * SCALE
            grads = torch.autograd.grad(loss, list(replica.parameters()))
            mean = [a + g.double() / (SCALE * world) for a, g in zip(mean, grads)]
        norm = sum(g.pow(2).sum() for g in mean).sqrt()
        mean = [g * min(1.0, CLIP / (norm + 1e-6)) for g in mean]
        first = [BETAS[0] * m + (1 - BETAS[0]) * g for m, g in zip(first, mean)]
        second = [BETAS[1] * v + (1 - BETAS[1]) * g * g for v, g in zip(second, mean)]
        masters = [w - lr * (m / (1 - BETAS[0] ** t))
                   / ((v / (1 - BETAS[1] ** t)).sqrt() + EPSILON)
                   for w, m, v in zip(masters, first, second)]
        with torch.no_grad():
            for p, w in zip(replica.parameters(), masters):
                p.copy_(w)
    return masters


def check(variant, rank, world):
    """Two steps of a small network against the plain loop; the relative error of the movement."""
    lr, steps, width = 1e-2, 2, 48
    net = linear_stack(3, width, 16, seed=7)
    start = [p.detach().double().clone() for p in net.parameters()]
    expected = plain_loop(net, variant.replica_dtype, world, steps, lr)
    peer = variant(net, rank, world, lr)
    for t in range(1, steps + 1):
        peer.full(sample(width, rank, t))
    wrong = sum((a.double() - b).pow(2).sum() for a, b in zip(peer.weights(), expected)).sqrt()
    moved = sum((a - b).pow(2).sum() for a, b in zip(start, expected)).sqrt()
    error = (wrong / moved).item()
    worst = ranks.max_over_ranks([error])[0]
    if not worst <= variant.tolerance:
        raise SystemExit(f"{variant.__name__} differs from the plain loop: relative error of the "
                         f"movement {worst:.2e}, allowed {variant.tolerance:.0e}")
    return worst


def measure(peer, x, warmup, iterations):
    rows = []
    for _ in range(warmup + iterations):
        if isinstance(peer, FullMasters):  # nothing overlaps here: the step can be timed alone
            peer.backward(x)
            rows.append(dict(cost=ranks.timed_ms(peer.step)))
        else:
            bare = ranks.timed_ms(lambda: peer.bare(x))
            full = ranks.timed_ms(lambda: peer.full(x))
            rows.append(dict(cost=full - bare, full=full, bare=bare))
    return rows[warmup:]


def worker(rank, arguments, port):
    ranks.join(rank, arguments, port)
    world = arguments.ranks
    variant = VARIANTS[arguments.variant]
    with contextlib.ExitStack() as quiet:
        if rank != 0:  # what the libraries have to say, once
            silence = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(contextlib.redirect_stdout(silence))
        error = check(variant, rank, world)
        net = linear_stack(arguments.layers, arguments.width, arguments.last)
        parameters = sum(p.numel() for p in net.parameters())
        peer = variant(net, rank, world, lr=1e-6)
        rows = measure(peer, sample(arguments.width, rank, 0), arguments.warmup,
                       arguments.iterations)
    if rank == 0:
        record = dict(name=arguments.variant, checked=True, check_error=error, ranks=world,
                      threads=torch.get_num_threads(), pinned=arguments.pin,
                      parameters=parameters, warmup=arguments.warmup,
                      times_ms=[row["cost"] for row in rows], versions=dict(pytorch=torch.__version__))
        for part in ("full", "bare"):
            if part in rows[0]:
                record[f"{part}_ms"] = [row[part] for row in rows]
        if hasattr(peer, "step_only_ms"):
            record["step_only_ms"] = peer.step_only_ms[-len(rows):]
            record["versions"]["deepspeed"] = peer.version
        print("JSON " + json.dumps(record), flush=True)
    ranks.leave()


def main():
    parser = ranks.options(__doc__.splitlines()[0], layers=24, last=448, warmup=5, iterations=20)
    parser.add_argument("variant", choices=sorted(VARIANTS))
    ranks.start(worker, parser.parse_args())


if __name__ == "__main__":
    main()
