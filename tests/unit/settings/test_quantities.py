"""How counts, numbers, durations, dates and URLs may be written."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.quantities import parse_count, parse_date, parse_duration, parse_real, parse_url, shown_count


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (12, 12),
        ("12", 12),
        ("2M", 2_000_000),
        ("2m", 2_000_000),
        ("1.5M", 1_500_000),
        ("3G", 3_000_000_000),
        ("3B", 3_000_000_000),
        ("12k", 12_000),
        ("2e6", 2_000_000),
        ("1.25e2", 125),
        (2e6, 2_000_000),
        ("2_000_000", 2_000_000),
        (" 7 ", 7),
    ],
)
def test_the_same_count_in_many_forms(written, meant):
    count = parse_count(written)
    assert count == meant
    assert type(count) is int


@pytest.mark.parametrize(
    "written",
    [
        *(-5, 0, True, False, None, "ten", "", "M", "-5", "1.5", 1.5, float("nan"), float("inf"), "inf", "1e999"),
        *("9" * 40, "1,000", "0x10", "1e-3", [], {}, "1M M", "٣"),
    ],
)
def test_what_is_no_count_is_refused_with_the_way_to_write_one(written):
    with pytest.raises(ValueError, match="write it like 10000000"):
        parse_count(written)


@given(st.integers(1, 10**15))
def test_a_count_reads_its_own_writing(number):
    assert parse_count(number) == parse_count(str(number)) == parse_count(f"{number:_}") == number


@given(st.integers(0, 10**13))
def test_a_shown_count_never_says_more_than_there_is(number):
    """A budget that is almost met must not look met."""
    shown = shown_count(number)
    assert len(shown) <= 8
    if number >= 10:
        assert parse_count(shown) <= number < parse_count(shown) * 1.1


def test_shown_counts():
    assert [shown_count(n) for n in (0, 812, 999, 1000, 4_120, 1_240_000, 9_999_999, 10_000_000)] == [
        *("0", "812", "999", "1k", "4.12k", "1.24M", "9.99M", "10M")
    ]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90), (0.5, 0.5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1d", 86400)],
)
def test_durations(written, seconds):
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", [-1, "soon", "5 parsecs", True, None, float("nan"), float("inf"), "m", "-5s"])
def test_what_is_no_duration_is_refused(written):
    with pytest.raises(ValueError, match="write it like 90s"):
        parse_duration(written)


def test_reals_come_from_text_too():
    assert parse_real("2e-1") == 0.2
    assert type(parse_real(1)) is float
    for written in (True, None, "warm", float("inf"), "nan", []):
        with pytest.raises(ValueError, match="not a number"):
            parse_real(written)


def test_dates_are_days():
    assert parse_date(datetime.date(2026, 3, 1)) == parse_date("2026-03-01") == "2026-03-01"
    for written in ("tomorrow", 20260301, None, "2026-13-01"):
        with pytest.raises(ValueError, match="2026-01-01"):
            parse_date(written)


def test_urls_lose_the_slash_at_their_end():
    assert parse_url("http://gpu7:30000/") == "http://gpu7:30000"
    assert parse_url("https://gpu7/v2/") == "https://gpu7/v2"
    for written in ("gpu7:30000", "ftp://gpu7", "http:///x", 30000, None, "http://a b"):
        with pytest.raises(ValueError, match="must be a URL"):
            parse_url(written)
