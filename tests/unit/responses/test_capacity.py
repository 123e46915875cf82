"""The limit on requests in flight finds what a server takes, in virtual time."""

import heapq
import random

import pytest
from tokenfill.responses.servers.capacity import UNTOLD_CAPACITY, Limit


class FakeServer:
    """`throughput(n)` tokens/s with n requests, which all run at one speed; more than `room` are refused."""

    def __init__(self, limit, throughput, room=None, mean=1000, noise=0.0, seed=1):
        self.limit, self.throughput, self.room, self.mean, self.noise = limit, throughput, room, mean, noise
        self.dice = random.Random(seed)
        self.now = self.made = 0.0
        self.running = []  # (virtual tokens at its end, began, tokens)
        self.tokens = self.refusals = 0
        self.seen = []

    def admit(self):
        while len(self.running) < self.limit.value:
            if self.room is not None and len(self.running) >= self.room:
                self.refusals += 1
                self.limit.refused(self.now, self.now, len(self.running))
                continue
            tokens = 1 + round(self.mean * self.dice.lognormvariate(-0.4, 0.9))
            heapq.heappush(self.running, (self.made + tokens, self.now, tokens))
        self.limit.binds()

    def run(self, answers):
        for _ in range(answers):
            self.admit()
            end, began, tokens = heapq.heappop(self.running)
            n = len(self.running) + 1
            self.now += (end - self.made) * n / self.throughput(n)
            self.made = end
            self.tokens += tokens
            seconds = (self.now - began) * self.dice.uniform(1 - self.noise, 1 + self.noise)
            self.limit.ended(self.now, began, tokens, seconds)
            self.seen.append(self.limit.value)
        return self


def rising(n):
    return 10_000 * n / (n + 239)


def flat_from_64(n):
    return 100 * min(n, 64)


def falling_from_300(n):
    return 50 * n if n <= 300 else max(1000, 50 * 300 - 30 * (n - 300))


def test_a_fixed_limit_is_the_ceiling_whatever_happens():
    limit = Limit(100, told=8, is_fixed=True)
    FakeServer(limit, flat_from_64, room=1000).run(2000)
    limit.refused(1e9, 0.0, 3)
    assert limit.value == 100


@pytest.mark.parametrize(("told", "start"), [(8, 8), (None, UNTOLD_CAPACITY), (4096, 1024)])
def test_it_starts_from_what_the_server_says(told, start):
    assert Limit(1024, told).value == start


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ceiling", [256, 2048])
def test_it_grows_to_the_ceiling_while_throughput_grows(ceiling, seed):
    server = FakeServer(Limit(ceiling, told=32), rising, noise=0.1, seed=seed).run(ceiling * 4)
    assert server.limit.value == ceiling


@pytest.mark.parametrize("seed", range(2))
def test_it_stays_near_where_throughput_stops_growing(seed):
    server = FakeServer(Limit(2048, told=32), flat_from_64, noise=0.1, seed=seed).run(5000)
    tail = server.seen[-2000:]
    assert 64 <= sum(tail) / len(tail) < 160


@pytest.mark.parametrize("seed", range(2))
def test_it_goes_back_where_throughput_falls(seed):
    server = FakeServer(Limit(2048), falling_from_300, noise=0.1, seed=seed).run(12_000)
    assert server.tokens / server.now > 0.8 * falling_from_300(256)
    assert server.limit.value < 520


def test_a_burst_of_refusals_leaves_what_the_server_took():
    limit = Limit(256, told=256)
    for left in range(255, 89, -1):
        limit.refused(now=2.0, began=1.0, in_flight=left)
    assert limit.value == 128
    for left in range(127, 89, -1):
        limit.refused(now=4.0, began=3.0, in_flight=left)
    assert limit.value == 90


def test_refusals_now_and_then_cost_little():
    server = FakeServer(Limit(64, told=64), rising)
    for _ in range(1000):
        server.run(20)
        server.limit.refused(server.now, server.running[0][1], len(server.running) - 1)
    assert sum(server.seen) / len(server.seen) > 55


def test_under_a_server_that_refuses_it_stays_close_below_and_refusals_are_few():
    server = FakeServer(Limit(1000, told=1000), rising, room=90).run(10_000)
    tail = server.seen[-5000:]
    assert 75 <= sum(tail) / len(tail) <= 92
    assert server.refusals < 0.02 * 10_000


def test_after_a_passing_shortage_it_is_back_soon():
    server = FakeServer(Limit(256, told=256), rising, room=10).run(200)
    assert server.limit.value <= 14
    server.room = None
    server.run(1500)
    assert server.limit.value > 200


def test_a_lowered_ceiling_holds_at_once():
    limit = Limit(256, told=256)
    limit.set_ceiling(64, is_fixed=False)
    assert limit.value == 64
    limit.set_ceiling(128, is_fixed=True)
    assert limit.value == 128


def test_nothing_is_concluded_while_the_limit_does_not_bind():
    limit = Limit(256, told=16)
    for n in range(1000):
        limit.ended(float(n), n - 0.5, 100, 0.5)
    assert limit.value == 16
