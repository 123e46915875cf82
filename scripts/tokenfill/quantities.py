"""How counts, durations, dates and URLs may be written, and how counts are shown. No key is known here."""

import math
import re
from datetime import date
from decimal import Decimal

LARGEST_COUNT = 10**15
COUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,3})?)\s*([kKmMgGbBtT]?)")
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_count(value) -> int:
    """A positive whole number from 10000000, 1e7, "1.5M", "10_000_000" or a whole float.

    ValueError: half a sentence that says what is wrong and how to write it. So with all that follow.
    """
    number = None
    if isinstance(value, str) and (match := COUNT.fullmatch(value.strip())):
        number = Decimal(match[1].replace("_", "")) * SUFFIXES[match[2].lower()]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        number = Decimal(value)
    if number is None or not 0 < number <= LARGEST_COUNT or number != number.to_integral_value():
        raise ValueError(f"{value!r} is not a positive whole number; write it like 10000000, 10_000_000, 1e7 or 10M")
    return int(number)


def parse_real(value) -> float:
    """A finite number, also from text, since YAML reads 1e-1 as text."""
    if not isinstance(value, bool):
        try:
            if math.isfinite(number := float(value)):
                return number
        except (TypeError, ValueError):
            pass
    raise ValueError(f"{value!r} is not a number; write it like 0.8")


def parse_duration(value) -> float | int:
    """Seconds from 90, "90s", "30m", "2h" or "1h30m"."""
    seconds = None
    if isinstance(value, str) and re.fullmatch(f"(?:{DURATION.pattern})+", value.strip()):
        seconds = sum(float(number) * SECONDS[unit] for number, unit in DURATION.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    if seconds is None or not 0 <= seconds < math.inf:
        raise ValueError(f"{value!r} is not a duration; write it like 90s, 30m or 2h")
    return int(seconds) if seconds == int(seconds) else seconds


def parse_date(value) -> str:
    """A day as YYYY-MM-DD, from text or from the date that YAML makes of it."""
    try:
        return (value if isinstance(value, date) else date.fromisoformat(value)).strftime("%Y-%m-%d")
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a day; write it like 2026-01-01") from None


def parse_url(value) -> str:
    """A server's base URL without the slash at its end."""
    if isinstance(value, str) and re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        return value.rstrip("/")
    raise ValueError("must be a URL such as http://127.0.0.1:30000")


def shown_count(number: int) -> str:
    """A count for people, never rounded up: 812, 4.1k, 1.24M, 10M."""
    for size, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number * 100 // size / 100:.2f}".rstrip("0").rstrip(".") + suffix
    return str(number)


def shown_duration(seconds: float) -> str:
    """A time span for people: 45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def parse_model(value) -> str:
    """A model's folder or hub id, without the slash that a shell's completion leaves at a folder's end."""
    if isinstance(value, str) and value.strip("/"):
        return value.rstrip("/")
    raise ValueError("must be a folder or a hub id such as owner/name; put it in quotes if it looks like a number")


FORMS = {
    "count": parse_count,
    "real": parse_real,
    "duration": parse_duration,
    "date": parse_date,
    "url": parse_url,
    "model": parse_model,
}
