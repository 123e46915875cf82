"""What kills do to the lengths of the answers kept: answers asked for whole, and in parts that survive."""

import argparse
from itertools import islice
from math import inf
from statistics import mean

from virtual_time import Client, Server, fill, lognormal_lengths, saturating

CAP = 16_384
PLACES = 1024
LONGEST = 3600.0  # seconds for an answer of CAP tokens while all places are taken
SPEED = saturating((PLACES + 239) * CAP / LONGEST)
GIVE_UP = 40  # kills

WAYS = {
    "undisturbed": (inf, {}),
    "naive, whole": (0.5, {"care": None, "part_tokens": 0, "remembers": False}),
    "ours, whole": (0.5, {"part_tokens": 0}),
    "ours, parts of 4,096": (0.5, {}),
    "ours, parts of 1,024": (0.5, {"part_tokens": 1024}),
    "ours, 4,096, forgetful": (0.5, {"remembers": False}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=10_000_000)
    args = parser.parse_args()
    print(f"{PLACES:,} in flight, killed whenever half the time of the longest answer has gone by")
    print(f"{'':24} {'mean length':>11} {'undisturbed = 1':>16} {'overshoot, %':>13} {'lost, %':>8} {'hours':>6} ended")
    undisturbed = 0.0
    for name, (period, how) in WAYS.items():
        runs = [run(args.budget, period * LONGEST, seed, how) for seed in range(args.seeds)]
        length = mean(client.mean_length for client, _ in runs)
        undisturbed = undisturbed or length
        print(
            f"{name:24} {length:11,.0f} {length / undisturbed:16.3f} "
            f"{100 * mean(c.accepted / c.budget - 1 for c, _ in runs):13.2f} "
            f"{100 * mean(c.lost / (c.accepted + c.lost) for c, _ in runs):8.1f} "
            f"{mean(s for _, s in runs) / 3600:6.2f} {sum(c.is_done for c, _ in runs)}/{len(runs)}",
            flush=True,
        )


def run(budget: int, period: float, seed: int, how: dict) -> tuple[Client, float]:
    """The client when it is done, or when it has been killed `GIVE_UP` times."""
    client = Client(lognormal_lengths(3800, 0.9, CAP, 8000, seed), budget, CAP, seed=seed, **how)
    kills = (period * n for n in range(1, GIVE_UP + 1)) if period < inf else ()
    return client, fill(client, Server(SPEED), PLACES, islice(kills, GIVE_UP))


if __name__ == "__main__":
    main()
