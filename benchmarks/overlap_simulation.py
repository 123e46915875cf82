"""How full the servers stay over ten datasets: one after another, and several at once, the oldest first."""

import argparse
from statistics import fmean

from virtual_time import Client, Server, lognormal_lengths, saturating

CAP = 16_384
MEANS = [1500, 2000, 8000, 3000, 2500, 6000, 4000, 1800, 5000, 3500]  # before the cut at CAP
NEARLY = 0.99  # of a budget: from here on a dataset only waits for what it has sent


class Run:
    """Datasets filled in their order, `at_once` of them at a time; the oldest takes a free place first."""

    def __init__(self, clients: list[Client], server: Server, places: int, at_once: int):
        self.clients, self.server, self.places, self.at_once = clients, server, places, at_once
        self.place_seconds = 0.0  # places taken, over time
        self.busy: float | None = None  # share of the places taken while prompts were left

    def to_the_end(self) -> "Run":
        queue = list(self.clients)
        while queue:
            active = queue[: self.at_once]
            for client in active:
                while len(self.server) < self.places and client.send(self.server):
                    pass
            if any(client.is_done for client in active):
                queue = [client for client in queue if client not in active or not client.is_done]
                continue
            if self.busy is None and all(client.sent_tokens >= NEARLY * client.budget for client in queue):
                self.busy = self.place_seconds / self.server.now / self.places
            before, taken = self.server.now, len(self.server)
            client, prompt = self.server.next_end()
            self.place_seconds += taken * (self.server.now - before)
            client.ended(prompt)
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=10_000_000, help="tokens per dataset")
    parser.add_argument("--places", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 3, 4, 6, 10])
    parser.add_argument("--seeds", type=int, default=6, help="runs whose figures are averaged")
    args = parser.parse_args()
    print(f"{len(MEANS)} datasets of {args.budget:,} tokens; a server whose rate goes as n / (n + 239)")
    print("ideal: all places taken from the first request to the last token of the budgets")
    print(f"busy: places taken until what is sent brings every dataset to {NEARLY:.0%} of its budget")
    print(f"{'places':>6} {'at once':>8} {'of the ideal':>13} {'worst':>7} {'busy':>7} {'worst overshoot, %':>19}")
    for places in args.places:
        for at_once in args.at_once:
            print(f"{places:6,} {at_once:8} {figures(args.budget, places, at_once, args.seeds)}", flush=True)


def figures(budget: int, places: int, at_once: int, seeds: int) -> str:
    speed = saturating(12_000)
    ideal = len(MEANS) * budget / (places * speed(places))
    shares, busy, overshoots = [], [], []
    for seed in range(seeds):
        clients = [
            Client(lognormal_lengths(mean, 0.9, CAP, 3 * budget // mean + 100, number), budget, CAP, seed=number)
            for number, mean in enumerate(MEANS, 100 * seed)
        ]
        run = Run(clients, Server(speed), places, at_once).to_the_end()
        shares.append(ideal / run.server.now)
        busy.append(run.busy)
        overshoots += [client.accepted / budget - 1 for client in clients]
    return f"{fmean(shares):13.3f} {min(shares):7.3f} {fmean(busy):7.3f} {100 * max(overshoots):19.2f}"


if __name__ == "__main__":
    main()
