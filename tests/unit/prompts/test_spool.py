"""The order of prompts, and the ids of rows that share one."""

import hashlib

import numpy as np
import pytest
from tokenfill.prompts import spool as spooling
from tokenfill.prompts.spool import Spool, other_id


def filled(tmp_path, rows, seed=0) -> Spool:
    """A spool of (id, content) rows whose payload is "id content"."""
    spool = Spool(tmp_path, seed)
    for row_id, content in rows:
        spool.add(row_id, hashlib.sha256(content.encode()).hexdigest(), f"{row_id} {content}".encode())
    return spool


def arranged(spool) -> list[str]:
    return [payload.decode() for payload in spool.payloads(spool.arrange()[0])]


def rows(count):
    return [(f"row-{number}", f"text {number}") for number in range(count)]


def test_the_order_is_a_shuffle_that_does_not_depend_on_the_source(tmp_path):
    forward, backward = (arranged(filled(tmp_path, some)) for some in (rows(200), rows(200)[::-1]))
    assert forward == backward
    assert sorted(forward) == sorted(f"{name} {text}" for name, text in rows(200))
    ranks = [int(payload.split()[0].removeprefix("row-")) for payload in forward]
    assert abs(np.corrcoef(ranks, range(200))[0, 1]) < 0.25


def test_another_seed_is_another_order(tmp_path):
    assert arranged(filled(tmp_path, rows(50), seed=0)) != arranged(filled(tmp_path, rows(50), seed=1))


def test_added_and_removed_rows_leave_the_others_in_place(tmp_path):
    before = arranged(filled(tmp_path, rows(100)))
    after = arranged(filled(tmp_path, rows(150)))
    assert [payload for payload in after if payload in before] == before


def test_without_a_seed_the_source_order_is_kept(tmp_path):
    assert arranged(filled(tmp_path, rows(30), seed=None)) == [f"{name} {text}" for name, text in rows(30)]


def test_rows_that_share_an_id(tmp_path):
    spool = filled(tmp_path, [("7", "a"), ("7", "b"), ("7", "a"), ("8", "a")], seed=None)
    order, repeated, renamed = spool.arrange()
    assert order.tolist() == [0, 1, 3]
    assert repeated.tolist() == [2]
    assert renamed.tolist() == [False, True, False, False]


def test_a_renamed_row_has_the_place_of_its_new_id(tmp_path):
    digest = hashlib.sha256(b"b").hexdigest()
    others = rows(40)
    shared = arranged(filled(tmp_path, [*others, ("7", "a"), ("7", "b")]))
    alone = arranged(filled(tmp_path, [*others, ("7", "a"), (other_id("7", digest), "b")]))
    assert shared.index("7 b") == alone.index(f"{other_id('7', digest)} b")


@pytest.mark.parametrize("bucket", [1, 100, 1 << 20])
def test_large_spools_are_ordered_in_buckets(tmp_path, monkeypatch, bucket):
    expected = arranged(filled(tmp_path, rows(300)))
    monkeypatch.setattr(spooling, "_BUCKET", bucket)
    spool = filled(tmp_path, rows(300))
    order, _, _ = spool.arrange()
    assert [payload.decode() for payload in spool.payloads(order)] == expected
    assert [payload.decode() for payload in spool.payloads(order[:17])] == expected[:17]


def test_nothing_is_left_on_disk(tmp_path):
    with filled(tmp_path, rows(3)) as spool:
        assert len(spool) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_empty_spool(tmp_path):
    assert arranged(filled(tmp_path, [])) == []
