"""How near to the budget the end lands, and what that costs in time, against a client that admits until it is met."""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

from virtual_time import CARE, Admission, Client, Expectation, Server, fill, lognormal_lengths, saturating

CAP = 16_384


@dataclass
class Scenario:
    name: str
    lengths: Callable[[int], list[int]]  # of the seed
    budget: int
    places: int
    speed: Callable[[int], float]
    kills: int = 0
    cap: int = CAP

    def run(self, seed: int, **how) -> tuple[Client, float]:
        """The client at the end, and the seconds it took."""
        rng = random.Random(f"kills {seed}")
        at_best = self.budget / (self.places * self.speed(self.places))
        kills = sorted(rng.uniform(0.05, 0.95) * at_best for _ in range(self.kills))
        client = Client(self.lengths(seed), self.budget, self.cap, seed=seed, **how)
        return client, fill(client, Server(self.speed), self.places, kills)


def steady(n: int) -> float:
    """Tokens per second of each request, whatever their number."""
    return 50.0


def lognormal(average: float, sigma: float = 0.9, cap: int = CAP, count: int = 8000) -> Callable[[int], list[int]]:
    return lambda seed: lognormal_lengths(average, sigma, cap, count, seed)


def two_kinds(seed: int) -> list[int]:
    rng = random.Random(f"kinds {seed}")
    return [rng.choice((100, 100, 100, 12_000)) for _ in range(8000)]


SCENARIOS = [
    Scenario("256 in flight", lognormal(3800), 10_000_000, 256, steady),
    Scenario("1,024 in flight, 3 kills", lognormal(3800), 10_000_000, 1024, saturating(12_000), kills=3),
]
OTHERS = [
    Scenario("2,048 in flight", lognormal(3800), 10_000_000, 2048, saturating(12_000)),
    Scenario("all of one length", lambda seed: [5000] * 8000, 10_000_000, 256, steady),
    Scenario("all cut at the cap", lambda seed: [CAP] * 8000, 10_000_000, 1024, steady),
    Scenario("short ones and long ones", two_kinds, 10_000_000, 256, steady),
    Scenario("20 answers, 8 in flight", lognormal(3800), 72_000, 8, steady),
    Scenario("20 answers, 64 in flight", lognormal(3800), 72_000, 64, steady),
    Scenario("4,000 tokens of 60 each", lognormal(60, 0.5, 256), 4000, 8, steady, cap=256),
    Scenario("longest first", lambda seed: sorted(lognormal(3800, count=3500)(seed))[::-1], 10_000_000, 256, steady),
    Scenario("shortest first", lambda seed: sorted(lognormal(3800, count=3500)(seed)), 10_000_000, 256, steady),
]


def compare(scenario: Scenario, seeds: range, ways: dict[str, dict]) -> None:
    """Print a line per way of admitting, against the naive client on the same answers and kills."""
    naive = [scenario.run(seed, care=None, remembers=False) for seed in seeds]
    show(scenario.name, "naive", naive, naive)
    for way, how in ways.items():
        show("", way, [scenario.run(seed, **how) for seed in seeds], naive)


def show(name: str, way: str, runs: list[tuple[Client, float]], naive: list[tuple[Client, float]]) -> None:
    overshoot = [100 * (client.accepted / client.budget - 1) for client, _ in runs]
    wall = [seconds / theirs for (_, seconds), (_, theirs) in zip(runs, naive, strict=True)]
    print(
        f"{name:26} {way:24} {median(overshoot):8.2f} {max(overshoot):8.2f} {min(overshoot):7.2f} "
        f"{median(wall):9.3f} {mean(wall):7.3f} {max(wall):7.3f} {sum(c.is_prefix for c, _ in runs):5}/{len(runs)}",
        flush=True,
    )


def mean_length(seeds: range) -> None:
    """Whether the answers kept are as long as those of the dataset, or the short ones came first."""
    scenario = SCENARIOS[0]
    kept, expected = [], []
    for seed in seeds:
        client, _ = scenario.run(seed)
        kept.append(client.mean_length)
        expected.append(mean(client.lengths[: len(client.answered)]))
    everything = mean(mean(scenario.lengths(seed)) for seed in seeds)
    print(f"\nMean length of the kept answers, {len(seeds)} seeds: {mean(kept):,.1f}")
    print(f"  of the same number of prompts from the head of the order: {mean(expected):,.1f}")
    print(f"  of all prompts: {everything:,.1f} ({100 * (mean(kept) / everything - 1):+.2f} %)")


def cost(in_flight: int, rounds: int = 4000) -> float:
    """Milliseconds of CPU per answer learned and prompt asked for, near the budget, where nothing is certain."""
    lengths = lognormal(3800)(0)
    expectation = Expectation(CAP)
    for length in lengths[:2000]:
        expectation.learn(length)
    generated = [length / 2 for length in lengths[:in_flight]]
    begun = time.process_time()
    for i in range(rounds):
        if i % in_flight == 0:  # a full house again, at its budget: from here it only drains
            admission = Admission(expectation, budget=10_000_000)
        left = in_flight - i % in_flight
        admission.admit(9_999_999 - 3600 * left, left, generated[:left].copy)
        expectation.learn(lengths[2000 + i])
    return 1000 * (time.process_time() - begun) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="runs per line of the table")
    parser.add_argument("--mean-seeds", type=int, default=200, help="runs for the mean length; 0 leaves it out")
    args = parser.parse_args()
    seeds = range(args.seeds)
    print(f"{'':51} {'overshoot, %':^25} {'time / naive time':^25}  first N")
    print(f"{'':51} {'median':>8} {'worst':>8} {'least':>7} {'median':>9} {'mean':>7} {'worst':>7} of order")
    for scenario in SCENARIOS:
        ways = {f"care {care:g}": {"care": care} for care in (0.0, CARE, 1.0)}
        if scenario.kills:
            ways |= {"forgets what was lost": {"remembers": False}, "no parts": {"part_tokens": 0}}
        compare(scenario, seeds, ways)
    for scenario in OTHERS:
        compare(scenario, seeds, {f"care {CARE:g}": {}})
    print()
    for in_flight in (64, 256, 2048):
        print(f"CPU of admission with {in_flight:,} in flight: {cost(in_flight):.3f} ms an answer")
    if args.mean_seeds:
        mean_length(range(args.mean_seeds))


if __name__ == "__main__":
    main()
