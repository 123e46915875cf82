"""Places on a server are shared between processes, oldest worker first, and outlive no holder."""

import os
import signal

import pytest
from other_worker import OtherWorker
from tokenfill.responses.servers.places import Places, PrivatePlaces, places_file


@pytest.fixture
def worker(tmp_path):
    made = []

    def make(rank):
        made.append(OtherWorker(tmp_path / "places", rank))
        return made[-1]

    yield make
    for other in made:
        other.kill()


@pytest.fixture
def places(tmp_path):
    mine = Places(tmp_path / "places", 1)
    yield mine
    mine.close()


def test_no_more_than_the_limit_are_taken_and_given_back_ones_are_free_again(places):
    assert [places.take(3) for _ in range(4)] == [0, 1, 2, None]
    places.give_back(1)
    assert places.held == 2
    assert places.has_free(3)
    assert places.take(3) == 1
    assert not places.has_free(3)
    assert places.take(5) == 3


def test_a_lower_limit_waits_until_enough_have_ended(places):
    held = [places.take(4) for _ in range(4)]
    for place in held[:2]:
        places.give_back(place)
    assert places.take(2) is None
    places.give_back(held[2])
    assert places.take(2) == 0


def test_the_limit_holds_over_all_workers_together(places, worker):
    other = worker(rank=2)
    assert other("[places.take(10) for _ in range(6)]") == [0, 1, 2, 3, 4, 5]
    assert [places.take(10) for _ in range(5)] == [6, 7, 8, 9, None]
    assert places.held_by_others(10) == 6
    assert other("places.held_by_others(10)") == 4
    other("[places.give_back(n) for n in (1, 4)]")
    assert places.has_free(10)
    assert [places.take(10) for _ in range(3)] == [1, 4, None]
    assert places.held_by_others(10) == 4


def test_a_killed_worker_leaves_its_places_free(places, worker):
    other = worker(rank=0)
    assert other("[places.take(4) for _ in range(4)]") == [0, 1, 2, 3]
    other("places.wait()")
    assert places.take(4) is None
    os.kill(other.process.pid, signal.SIGKILL)
    other.process.wait()
    assert places.has_free(4)
    assert [places.take(4) for _ in range(5)] == [0, 1, 2, 3, None]


def test_while_an_older_worker_waits_a_younger_one_takes_none(places, worker):
    older, younger = worker(rank=0), worker(rank=7)
    assert [places.take(2) for _ in range(2)] == [0, 1]
    older("places.wait()")
    places.give_back(0)
    assert not places.has_free(2)
    assert places.take(2) is None
    assert younger("places.take(2)") is None
    assert older("places.take(2)") == 0
    older("places.stop_waiting()")
    places.give_back(1)
    assert younger("places.take(2)") == 1


def test_a_younger_worker_that_waits_holds_nobody_up(places, worker):
    younger = worker(rank=2)
    younger("places.wait()")
    assert places.take(1) == 0


def test_closing_gives_everything_back(tmp_path, worker):
    mine, other = Places(tmp_path / "places", 1), worker(rank=3)
    mine.take(1)
    assert other("places.take(1)") is None
    mine.close()
    assert other("[places.has_free(1), places.take(1)]") == [True, 0]


def test_a_subprocess_of_the_holder_keeps_nothing(tmp_path, worker):
    holder = worker(rank=1)
    holder("places.take(1)")
    child = holder("__import__('subprocess').Popen(['sleep', '60']).pid")
    holder.kill()
    try:
        mine = Places(tmp_path / "places", 0)
        assert mine.take(1) == 0
        mine.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_private_places_keep_the_same_promises():
    places = PrivatePlaces()
    held = [places.take(2) for _ in range(3)]
    assert held[2] is None and places.held == 2 and not places.has_free(2)
    places.give_back(held[0])
    assert places.has_free(2) and places.take(2) is not None
    assert places.held_by_others(2) == 0


def test_each_server_has_its_file_without_secrets(tmp_path):
    urls = ["http://gpu1:30000", "http://gpu1:30001", "http://gpu1:30000/a", "https://me:secret@gpu1"]
    files = [places_file(tmp_path, url).name for url in urls]
    assert len(set(files)) == 4
    assert not any("secret" in name for name in files)
    assert places_file(tmp_path, "http://gpu1:30000/") == places_file(tmp_path, "http://gpu1:30000")
