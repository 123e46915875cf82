"""How an error ends a job: one sentence on stderr and as the last line of the log."""

import logging

import pytest
from tokenfill.adapter import last_sentence, one_sentence
from tokenfill.errors import TemporaryFailure, UserError


@pytest.fixture(autouse=True)
def no_handler_left():
    """The job's log is the root logger's; a job has a process of its own."""
    yield
    for handler in logging.getLogger().handlers[:]:
        logging.getLogger().removeHandler(handler)
        handler.close()


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("fix it"), 1), (TemporaryFailure("later"), 75), (ValueError("odd"), 1)]
)
def test_an_error_ends_the_job_with_one_sentence(tmp_path, capsys, error, status):
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit) as ended, one_sentence(str(log)):
        logging.info("a detail")
        raise error
    assert ended.value.code == status
    assert str(error) in last_sentence(log)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert str(error) in printed
    assert "a detail" in log.read_text()
    assert ("Traceback" in log.read_text()) == isinstance(error, ValueError)


def test_ctrl_c_is_no_fault(tmp_path, capsys):
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit) as ended, one_sentence(str(log)):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert last_sentence(log) == "stopped; the same command does this step again"


def test_a_job_that_ends_well_leaves_no_sentence(tmp_path, capsys):
    log = tmp_path / "job.log"
    with one_sentence(str(log)):
        logging.info("a detail")
    assert last_sentence(log) is None
    assert capsys.readouterr().err == ""


def test_a_sentence_of_many_lines_is_one(tmp_path, capsys):
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit), one_sentence(str(log)):
        raise UserError("first\n  second")
    assert last_sentence(log) == "first second"


def test_no_log_no_sentence(tmp_path):
    assert last_sentence(tmp_path / "none.log") is None
