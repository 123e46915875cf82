"""The pool chooses servers, takes them out and back, and says when none is left. Fake clock, no network."""

import asyncio
from types import SimpleNamespace

import pytest
from other_worker import OtherWorker
from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.engines import ServerFacts, WrongProtocol
from tokenfill.responses.failures import Failure
from tokenfill.responses.servers import pool as pool_module
from tokenfill.responses.servers import probe, wish
from tokenfill.responses.servers.probe import NotReady

A, B = "http://a:1", "http://b:1"
ENGINE = {
    "servers": [A, B],
    "concurrency": 4,
    "adaptive": False,
    "part_tokens": 4096,
    "outage_patience": 1800.0,
    "served_model": None,
    "context_length": None,
}


class World:
    """The servers as a probe finds them, and the time."""

    def __init__(self):
        self.now = 1000.0
        self.pages = {A: ServerFacts(model="m", context_length=4096), B: ServerFacts(model="m", context_length=2048)}
        self.said = []
        self.hung = []
        self.changes = 0

    async def read_facts(self, session, protocol, url):
        page = self.pages[url]
        if isinstance(page, Exception):
            raise page
        return page


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(probe, "read_facts", world.read_facts)

    async def no_sleep(seconds, sleep=asyncio.sleep):
        world.now += seconds
        await sleep(0)

    monkeypatch.setattr(pool_module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": no_sleep}))
    return world


def with_pool(world, test, *, folder=None, rank=0, launched=None, known_model=None, urls=(A, B), **engine):
    async def run():
        pool = pool_module.Pool(
            None,
            None,
            urls,
            {**ENGINE, "servers": list(urls), **engine},
            folder=folder,
            rank=rank,
            longest_answer=16384,
            say=world.said.append,
            launched=launched,
            known_model=known_model,
            clock=lambda: world.now,
        )
        async with pool:
            pool.on_hung = world.hung.append

            def note():
                world.changes += 1

            pool.on_change = note
            return await test(pool)

    return asyncio.run(run())


async def tick(world, pool, seconds, step=0.5):
    for _ in range(int(seconds / step)):
        world.now += step
        pool.tick(world.now)
        for _ in range(3):
            await asyncio.sleep(0)


async def fail(pool, url, times=1, kind="connection", words="connection refused"):
    for _ in range(times):
        pool.release(pool.place(prefer=url), Failure(kind, words))
        for _ in range(3):
            await asyncio.sleep(0)


def counts(places):
    return {url: sum(place.url == url for place in places) for url in (A, B)}


def test_the_least_loaded_for_its_limit_gets_the_next_request(world):
    async def test(pool):
        world.pages[A] = ServerFacts(model="m", capacity=2)
        return [pool.place() for _ in range(9)], pool

    world.pages[A] = ServerFacts(model="m", capacity=2)
    world.pages[B] = ServerFacts(model="m", capacity=6)
    places, _ = with_pool(world, test, concurrency=100, adaptive=True)
    assert counts(places[:4]) == {A: 1, B: 3}
    assert counts(places[:8]) == {A: 2, B: 6}
    assert places[8] is None


def test_a_slow_server_does_not_hold_up_the_other(world):
    async def test(pool):
        slow = [pool.place() for _ in range(8)]
        quick = [place for place in slow if place.url == B]
        for _ in range(100):
            pool.release(quick.pop(), (10, 0.1))
            quick.append(pool.place())
        return quick

    assert counts(with_pool(world, test)) == {A: 0, B: 4}


def test_while_both_have_room_the_quicker_one_is_asked(world):
    async def test(pool):
        for url, seconds in ((A, 5.0), (B, 0.1)):
            for _ in range(10):
                pool.release(pool.place(prefer=url), (100, seconds))
        return [pool.place().url for _ in range(6)]

    assert with_pool(world, test) == [B, B, B, B, A, A]


def test_an_attempt_goes_to_another_server_while_there_is_one(world):
    async def test(pool):
        first = [pool.place(avoid={A}) for _ in range(5)]
        world.pages[B] = NotReady("connection refused")
        for place in first[:4]:
            pool.release(place, Failure("connection", "refused"))
        return first, pool.place(avoid={A})

    first, alone = with_pool(world, test)
    assert counts(first[:4]) == {A: 0, B: 4}
    assert first[4] is None, "the other is full, not gone"
    assert alone.url == A


def test_the_parts_of_an_answer_stay_while_there_is_room(world):
    async def test(pool):
        stay = [pool.place(prefer=B).url for _ in range(6)]
        return stay

    assert with_pool(world, test) == [B, B, B, B, A, A]


def test_a_server_that_fails_fast_is_taken_out_probed_and_comes_back(world):
    async def test(pool):
        await fail(pool, A, 3)
        world.pages[A] = NotReady("connection refused")
        out = [pool.place(prefer=A).url for _ in range(3)]
        await tick(world, pool, 20)
        still_out = pool.place(prefer=A).url
        world.pages[A] = ServerFacts(model="m")
        await tick(world, pool, 35)
        return out, still_out, pool.place(prefer=A).url

    assert with_pool(world, test) == ([B, B, B], B, A)
    assert world.said == [
        f"{A} is out (connection refused); it is tried again now and then",
        f"{A} is back",
    ]


def test_a_server_full_of_bad_answers_is_taken_out(world):
    async def test(pool):
        await fail(pool, A, 8, "nan", "the server met NaN while sampling")
        return pool.place(prefer=A).url

    assert with_pool(world, test) == B


def test_refused_prompts_are_no_fault_of_the_server(world):
    async def test(pool):
        for _ in range(50):
            pool.release(pool.place(prefer=A), Failure("rejected", "too long", 400))
        return pool.place(prefer=A).url

    assert with_pool(world, test) == A


def test_a_full_server_gets_less_and_an_absent_one_nothing(world):
    async def test(pool):
        many = [pool.place() for _ in range(20)]
        for place in many[6:]:
            pool.release(place, Failure("busy", "the queue is full", 503))
        refused_at_load = [pool.place() for _ in range(3)]
        for place in many[:6]:
            pool.release(place, (100, 1.0))
        held = [place for place in refused_at_load if place]
        for place in held:
            pool.release(place, (100, 1.0))
        pool.release(pool.place(), Failure("busy", "loading", 503))
        return refused_at_load, pool.place()

    at_load, absent = with_pool(world, test, urls=(A,), concurrency=20, adaptive=True)
    assert at_load == [None, None, None]
    assert absent is None


def test_retry_after_is_kept(world):
    async def test(pool):
        places = [pool.place() for _ in range(2)]
        pool.release(places[0], Failure("busy", "later", 429, retry_after=10.0))
        seen = []
        for _ in range(12):
            world.now += 1
            seen.append(pool.place() is not None)
        return seen

    seen = with_pool(world, test, urls=(A,), concurrency=20)
    assert seen[:9] == [False] * 9 and seen[11]


def test_silence_with_requests_in_flight_is_a_hang_and_waiting_for_a_place_is_none(world):
    async def test(pool):
        for _ in range(10):
            place = pool.place(prefer=A)
            world.now += 80.0
            pool.release(place, (4000, 80.0))
        await tick(world, pool, 5000, step=10)  # nothing in flight
        idle = list(world.hung)
        place = pool.place(prefer=A)
        await tick(world, pool, 240, step=10)
        patient = list(world.hung)
        await tick(world, pool, 10, step=10)
        pool.release(place, Failure("hung", "no answer"))
        await tick(world, pool, 10, step=10)
        return idle, patient, [pool.place(prefer=A).url for _ in range(3)]

    # its page says ready, so one request may find out
    assert with_pool(world, test) == ([], [], [A, B, B])
    assert world.hung == [A]


def test_all_down_is_counted_from_the_last_answer_until_one_answers_again(world):
    async def test(pool):
        pool.release(pool.place(), (10, 0.1))
        seen = [pool.all_down_for()]
        world.pages[A] = NotReady("connection refused")
        await fail(pool, A)
        seen.append(pool.place())
        await tick(world, pool, 100)
        seen.append(pool.all_down_for())
        world.pages[A] = ServerFacts(model="m")
        await tick(world, pool, 40)
        seen.append(pool.all_down_for())  # ready, says its page, but nothing has been answered
        place = pool.place()
        seen.append(pool.all_down_for())
        pool.release(place, (10, 0.1))
        seen.append(pool.all_down_for())
        return seen

    assert with_pool(world, test, urls=(A,)) == [0.0, None, 100.0, 140.0, 0.0, 0.0]
    assert "back" in world.said[-1]


def test_a_server_that_is_not_up_yet_is_waited_for(world, monkeypatch):
    async def test(pool):
        return pool.place().url, pool.model, pool.facts.context_length

    world.pages[A] = world.pages[B] = NotReady("connection refused")
    sleeps = iter(range(100))
    read = world.read_facts

    async def ready_later(*args):
        if next(sleeps) > 12:
            world.pages[B] = ServerFacts(model="m", context_length=2048)
        return await read(*args)

    monkeypatch.setattr(probe, "read_facts", ready_later)
    assert with_pool(world, test) == (B, "m", 2048)
    assert any("waiting for a server" in said and "connection refused" in said for said in world.said)


def test_no_server_for_longer_than_outage_patience_ends_the_run(world):
    world.pages[A] = world.pages[B] = NotReady("connection refused")
    with pytest.raises(TemporaryFailure, match=f"{A}: connection refused"):
        with_pool(world, None, outage_patience=5.0)


@pytest.mark.parametrize(
    ("page", "known", "match"),
    [
        (ServerFacts(model="other-7b"), None, r"http://b:1 serves the model other-7b, but http://a:1 serves m\b"),
        (ServerFacts(model="m"), "Qwen3-8B", "serves the model m, but the answers so far are of Qwen3-8B"),
        (WrongProtocol("speaks the protocol 'vllm'."), None, "http://b:1 speaks the protocol 'vllm'"),
    ],
)
def test_a_server_of_another_kind_is_refused_by_name(world, page, known, match):
    world.pages[B] = page
    with pytest.raises(UserError, match=match):
        with_pool(world, None, known_model=known)


def test_the_folder_a_model_lies_in_does_not_matter(world):
    async def test(pool):
        return True

    world.pages[B] = ServerFacts(model="/data/models/M/")
    assert with_pool(world, test, known_model="org/m")


def test_a_server_that_comes_back_with_another_model_gets_nothing(world):
    async def test(pool):
        world.pages[A] = ServerFacts(model="other-7b")
        before = pool.place(prefer=A).url
        await fail(pool, A)
        await tick(world, pool, 200)
        return [before] + [pool.place(prefer=A).url for _ in range(4)], pool.troubles()

    urls, troubles = with_pool(world, test)
    assert urls == [A, B, B, B, B]
    assert "other-7b" in troubles and any("other-7b" in said for said in world.said)


def test_another_model_behind_an_address_is_noticed_though_nothing_broke(world):
    async def test(pool):
        world.pages[A] = ServerFacts(model="other-7b")
        await tick(world, pool, 40)
        return pool.place(prefer=A).url

    assert with_pool(world, test) == B


def test_a_server_that_comes_back_with_less_context_gets_nothing(world):
    async def test(pool):
        world.pages[A] = ServerFacts(model="m", context_length=1024)
        await fail(pool, A)
        return pool.place(prefer=A).url, pool.troubles()

    url, troubles = with_pool(world, test)
    assert url == B
    assert "a context of 1024 tokens, but this run began with 2048" in troubles


def test_a_page_that_fails_while_answers_come_is_no_outage(world):
    async def test(pool):
        world.pages[A] = NotReady("no answer within 30 s")
        await tick(world, pool, 100)
        return pool.place(prefer=A).url

    assert with_pool(world, test) == A


def test_a_broken_connection_has_the_server_looked_at_before_it_is_asked_again(world):
    async def test(pool):
        pool.release(pool.place(prefer=A), Failure("connection", "reset"))
        at_once = pool.place(prefer=A).url
        await tick(world, pool, 0.5)
        return at_once, pool.place(prefer=A).url

    assert with_pool(world, test) == (B, A)


def test_servers_come_and_go_while_it_runs(world):
    async def test(pool):
        held = [pool.place(prefer=A), pool.place(prefer=B)]
        world.pages["http://c:1"] = ServerFacts(model="m")
        pool.update({**ENGINE, "servers": [B, "http://c:1"], "concurrency": 2})
        await tick(world, pool, 1)
        after = sorted(place.url for place in [pool.place(prefer=A) for _ in range(4)] if place)
        before = A in pool.described()
        pool.release(held[0], (10, 1.0))
        return after, before, A in pool.described()

    after, before, gone = with_pool(world, test)
    assert after == [B, "http://c:1", "http://c:1"]
    assert before and not gone


def test_a_launched_server_that_moves_is_followed(world):
    async def test(pool):
        launched.url, launched.crashes = B, 1
        await tick(world, pool, 2)
        return pool.place().url, pool.crashes

    world.pages[B] = world.pages[A]
    launched = SimpleNamespace(url=A, crashes=0)
    assert with_pool(world, test, launched=launched, urls=(A,)) == (B, 1)


def test_workers_share_the_places_of_a_server(world, tmp_path):
    async def test(pool):
        return other("[places.take(9) for _ in range(3)]"), [pool.place() is not None for _ in range(2)]

    (tmp_path / "places").mkdir()
    other = OtherWorker(pool_module.places_file(tmp_path / "places", A), rank=5)
    assert with_pool(world, test, folder=tmp_path, urls=(A,)) == ([0, 1, 2], [True, False])
    other.kill()


def test_a_place_that_another_worker_gives_back_is_found_and_a_lost_wish_frees_the_way(world, tmp_path, monkeypatch):
    monkeypatch.setattr(wish, "LOST_INTEREST", 0.15)

    async def until(condition):
        for _ in range(100):
            if condition():
                return True
            await real_sleep(0.01)
        return False

    async def test(pool):
        other("[places.take(2), places.take(2)]")
        assert pool.place() is None
        other("places.give_back(0)")
        assert other("places.take(2)") is None, "an older worker waits"
        before = world.changes
        assert await until(lambda: world.changes > before)
        assert pool.place() is not None
        assert pool.place() is None  # the wish that is lost
        other("places.give_back(1)")
        return await until(lambda: other("places.take(2)") == 1)

    real_sleep = asyncio.sleep
    (tmp_path / "places").mkdir()
    other = OtherWorker(pool_module.places_file(tmp_path / "places", A), rank=5)
    assert with_pool(world, test, folder=tmp_path, urls=(A,), concurrency=2)
    other.kill()


def test_each_release_wakes_whoever_waits(world):
    async def test(pool):
        place = pool.place()
        before = world.changes
        pool.release(place, None)
        return world.changes - before

    assert with_pool(world, test) == 1
