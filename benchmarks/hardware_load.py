"""Loads the GPUs of a host for `make hardware`: `python -m benchmarks.hardware_load KIND --seconds N [--cpu]`.

`train` runs a training loop and prints percentiles of its step time as JSON. `allocate` allocates and frees GPU memory
without pause.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator

import torch

WARM_UP_STEPS = 20
WIDTH, CPU_WIDTH = 8192, 64
"""Size of the square layers. On an H100 a step of the wide ones takes about 20 ms, as a step of a small model does."""
LAYERS = 4
BLOCK_BYTES, CPU_BLOCK_BYTES = 1 << 30, 1 << 20
"""Size of each allocation: large blocks are allocated by the driver, not taken from torch's pool."""


def devices(*, cpu: bool) -> list[torch.device]:
    """Return all GPUs, or the CPU. Raises RuntimeError if torch cannot use the GPUs."""
    if cpu:
        return [torch.device("cpu")]
    if not torch.cuda.is_available():
        raise RuntimeError("torch cannot use a GPU: see `python -c 'import torch; torch.cuda.init()'`")
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def training(device: torch.device, *, wait: bool) -> Callable[[], float]:
    """Return a function that runs one training step on this device, and returns its duration in seconds.

    `wait`: whether it waits for the end of the step on a GPU.
    """
    cpu = device.type == "cpu"
    width, kind = (CPU_WIDTH, torch.float32) if cpu else (WIDTH, torch.bfloat16)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, device=device, dtype=kind) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(width, width, device=device, dtype=kind)

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()
        if wait and not cpu:
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    return step


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def train(places: list[torch.device], seconds: float) -> None:
    """Train on all devices at once, and print the step times of the first."""
    first, *others = [training(place, wait=place == places[0]) for place in places]
    for _ in range(WARM_UP_STEPS):
        first()
    times = []
    for _ in until(seconds):
        for step in others:  # only started: they run while the first is waited for
            step()
        times.append(first())
    print(json.dumps({"steps": len(times), **percentiles(times)}))


def percentiles(times: list[float]) -> dict[str, float]:
    """Return p50, p99 and p99.9 of durations in milliseconds."""
    ordered = sorted(times)
    return {f"p{share:g}": round(1e3 * ordered[int(len(ordered) * share / 100)], 3) for share in (50, 99, 99.9)}


def allocate(places: list[torch.device], seconds: float) -> None:
    """Allocate and free one block on each device by turns, past torch's pool."""
    for _ in until(seconds):
        for place in places:
            size = CPU_BLOCK_BYTES if place.type == "cpu" else BLOCK_BYTES
            block = torch.empty(size, dtype=torch.uint8, device=place)
            del block
            if place.type == "cuda":
                torch.cuda.empty_cache()


KINDS = {"train": train, "allocate": allocate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cpu", action="store_true", help="load the CPU in place of the GPUs")
    args = parser.parse_args()
    KINDS[args.kind](devices(cpu=args.cpu), args.seconds)


if __name__ == "__main__":
    main()
