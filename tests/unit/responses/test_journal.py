"""The journal on disk: torn tails, bad lines, locks, full disks."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses import journal as journal_module
from tokenfill.responses.journal import NAME, Journal, read, read_lines

SCRIPTS = Path(__file__).parents[3] / "scripts"


def line(number):
    return {
        "id": f"p{number}",
        "prompt_hash": "h",
        "sample": 0,
        "turn": 0,
        "part": 0,
        "prompt_tokens": 3,
        "output_ids": [number, 2],
        "text": "naïve \u2028 日本",
        "finish_reason": "stop",
    }


def raw(number):
    return json.dumps(line(number), ensure_ascii=False).encode()


def reopened(folder):
    said = []
    journal = Journal(folder, said.append)
    lines = [each["id"] for _, each in journal.load()]
    return journal, lines, said


def whole_lines(folder):
    return [each["id"] for _, each, _ in read(folder / NAME) if each]


def test_what_is_appended_is_read_back(tmp_path):
    journal, lines, _ = reopened(tmp_path)
    assert lines == []
    places = [journal.append(line(number)) for number in range(3)]
    journal.close()
    assert whole_lines(tmp_path) == ["p0", "p1", "p2"]
    assert [each["id"] for each in read_lines(tmp_path / NAME, (places[2], places[0]))] == ["p2", "p0"]


@pytest.mark.parametrize(
    "tail",
    [
        raw(3)[:25],
        raw(3)[:25] + b"\n\n",
        raw(3)[: raw(3).index("日".encode()) + 1],
        bytes(4096),
        b"{}\n",
        b'[1, 2]\n"x"\n',
    ],
    ids=["cut", "cut and blank", "cut in a character", "nul bytes", "other json", "several"],
)
def test_a_torn_tail_is_cut_off_and_kept_aside(tmp_path, tail):
    whole = b"".join(raw(number) + b"\n" for number in range(3))
    (tmp_path / NAME).write_bytes(whole + tail)
    journal, lines, said = reopened(tmp_path)
    assert lines == ["p0", "p1", "p2"]
    journal.append(line(3))
    journal.close()
    assert (tmp_path / NAME).read_bytes().startswith(whole + b'{"id":"p3"')
    assert whole_lines(tmp_path) == ["p0", "p1", "p2", "p3"]
    assert "bytes are no whole line" in said[0]
    assert journal.unreadable.exists()


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
    (tmp_path / NAME).write_bytes(raw(0) + b"\n" + raw(1))
    journal, lines, _ = reopened(tmp_path)
    journal.append(line(2))
    journal.close()
    assert lines == ["p0", "p1"]
    assert whole_lines(tmp_path) == ["p0", "p1", "p2"]


def test_bad_lines_in_the_middle_are_named_copied_aside_once_and_passed_over(tmp_path):
    content = raw(0) + b"\n" + b'{"id": "p1", "resp\n\xff\xfe\n' + raw(2) + b"\n"
    (tmp_path / NAME).write_bytes(content)
    for _ in range(2):
        journal, lines, said = reopened(tmp_path)
        journal.close()
        assert lines == ["p0", "p2"]
        assert "2 lines cannot be read" in said[0]
        assert "line 2, 3" in said[0]
    assert (tmp_path / NAME).read_bytes() == content
    assert len(journal.unreadable.read_text().splitlines()) == 2


@given(st.integers(1, 4), st.data())
def test_cutting_anywhere_loses_at_most_the_line_that_was_cut(tmp_path_factory, count, data):
    """Whatever byte a kill leaves the file at, every line before it stays and the next one stands by itself."""
    folder = tmp_path_factory.mktemp("journal")
    whole = b"".join(raw(number) + b"\n" for number in range(count))
    cut = data.draw(st.integers(0, len(whole)))
    (folder / NAME).write_bytes(whole[:cut])
    journal, lines, _ = reopened(folder)
    journal.append(line(9))
    journal.close()
    expected = [f"p{number}" for number in range(whole[:cut].count(b"\n"))]
    if cut and not whole[:cut].endswith(b"\n") and whole[cut : cut + 1] == b"\n":
        expected.append(f"p{len(expected)}")  # only its newline was missing
    assert lines == expected
    assert whole_lines(folder) == [*expected, "p9"]
    assert (folder / NAME).read_bytes().count(b"\n") == len(expected) + 1


def test_a_torn_file_of_unreadable_lines_stops_nobody(tmp_path):
    (tmp_path / NAME).write_bytes(raw(0) + b"\nhalf a li")
    journal, _, _ = reopened(tmp_path)
    journal.unreadable.write_bytes(journal.unreadable.read_bytes()[:-9])
    journal.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"half a li")
    journal, lines, said = reopened(tmp_path)
    assert lines == ["p0"]
    assert "9 bytes are no whole line" in said[0]
    *_, torn, whole, end = journal.unreadable.read_bytes().split(b"\n")
    assert (json.loads(whole)["offset"], end) == (len(raw(0)) + 1, b"")
    assert whole.startswith(torn)
    journal.close()


def test_a_journal_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(UserError, match=r"raw_responses\.jsonl cannot be written: Is a directory"):
        Journal(tmp_path, print)


def test_a_second_writer_is_refused_by_host_and_pid(tmp_path):
    journal, _, _ = reopened(tmp_path)
    code = (
        "import sys; from pathlib import Path; from tokenfill.responses.journal import Journal\n"
        "try: Journal(Path(sys.argv[1]), print)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={"PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True
    )
    assert done.stdout.startswith("UserError")
    assert f"process {os.getpid()} on {os.uname().nodename}" in done.stdout
    journal.close()
    reopened(tmp_path)[0].close()


def test_a_full_disk_leaves_no_half_line_and_names_the_file(tmp_path, monkeypatch):
    journal, _, _ = reopened(tmp_path)
    journal.append(line(0))
    write = os.write

    def half_then_full(descriptor, content):
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[: len(content) - 10])

    monkeypatch.setattr(journal_module.os, "write", half_then_full)
    with pytest.raises(TemporaryFailure, match=r"raw_responses\.jsonl cannot be written: No space left"):
        journal.append(line(1))
    monkeypatch.undo()
    journal.append(line(2))
    journal.close()
    assert whole_lines(tmp_path) == ["p0", "p2"]


def test_a_real_full_disk_is_told_as_such(tmp_path):
    (tmp_path / NAME).symlink_to("/dev/full")
    journal = Journal(tmp_path, print)
    with pytest.raises(TemporaryFailure, match="No space left on device"):
        journal.append(line(0))


def test_an_unreadable_lock_file_still_refuses(tmp_path):
    journal, _, _ = reopened(tmp_path)
    (tmp_path / "raw_responses.lock").write_text("")
    with pytest.raises(UserError, match="another process"):
        Journal(tmp_path, print)
    journal.close()
