"""One dataset fails, the others finish, and the last lines say which failed and why."""


def last_lines(output: str) -> list[str]:
    """What is printed at the end, before Snakemake's own farewell."""
    return output.partition("datasets are done")[2].splitlines()


def test_a_source_that_cannot_be_read(new):
    new.path("code.jsonl").write_text("this is no JSON\n")
    output = new.run(status=1)
    assert new.complete("chat")["reason"] == "budget_met"
    assert len(new.records("chat")) == 10
    assert "1 of 2 datasets are done" in output
    told = [line for line in last_lines(output) if line.startswith("code: ")]
    assert len(told) == 1
    assert "code.jsonl" in told[0]
    assert "Traceback" not in output


def test_an_engine_of_its_own_that_is_not_there(new, server):
    new.configure(
        engine={"outage_patience": 1},
        datasets={"code": {"source": "code.jsonl", "engine": {"servers": ["http://127.0.0.1:9"]}}},
    )
    output = new.run(status=1)
    assert new.complete("chat")["reason"] == "budget_met"
    told = [line for line in last_lines(output) if line.startswith("code: ")]
    assert len(told) == 1
    assert "127.0.0.1:9" in told[0]
    assert "Traceback" not in output
    assert not new.path("results/code/complete").exists()
    new.configure(datasets={"code": {"source": "code.jsonl"}})
    new.run()
    assert new.is_finished()


def test_a_refused_key_names_the_way_to_set_it(new, server):
    server.update(api_key="right")
    output = new.run(status=1)
    told = [line for line in last_lines(output) if line.startswith(("chat: ", "code: "))]
    assert len(told) == 2
    assert all("api_key_env" in line for line in told)
