"""Settings that make other answers are refused while there are answers."""

import json
import subprocess


def everything(project) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in project.path("results").rglob("*") if path.is_file()}


def test_changed_sampling_is_refused_before_anything_is_written(finished, server):
    before = everything(finished)
    finished.configure(sampling={"temperature": 0.1}, budget=300)
    for arguments in (("-n",), ()):
        output = finished.run(*arguments, status=1)
        sentence = output.strip().splitlines()[-1]
        assert sentence.startswith("config.yaml: sampling.temperature was 0.8 and is 0.1")
        assert "put it back" in sentence
        assert "mv results/chat/raw_responses" in sentence
        assert "Traceback" not in output
    assert everything(finished) == before
    finished.configure(sampling=None, budget=200)
    assert finished.is_finished()
    assert server.log == []


def test_the_command_it_names_starts_over(finished, server):
    finished.configure(sampling={"temperature": 0.1})
    output = finished.run("-n", status=1)
    command = output.strip().splitlines()[-1].partition("start over: ")[2]
    subprocess.run(command, shell=True, check=True, cwd=finished.folder)
    finished.run()
    assert len(server.log) == 15
    assert {request["asked"]["sampling_params"]["temperature"] for request in server.log} == {0.1}
    assert finished.path("results/chat/answers.1/raw_responses.jsonl").exists()


def test_a_changed_chat_template_is_refused(finished, server):
    before = everything(finished)
    template = finished.path("model/chat_template.jinja")
    text = template.read_text()
    template.write_text(text.replace("assistant", "model"))
    assert "content.template was" in finished.run(status=1)
    assert everything(finished) == before
    template.write_text(text)
    assert finished.is_finished()


def test_one_datasets_own_change_names_that_dataset(finished):
    finished.configure(datasets={"code": {"source": "code.jsonl", "budget": 100, "sampling": {"top_k": 5}}})
    sentence = finished.run("-n", status=1).strip().splitlines()[-1]
    assert "sampling.top_k was -1 and is 5" in sentence
    assert "results/code" in sentence
    assert "results/chat" not in sentence


def test_a_lost_account_of_the_settings_does_not_open_the_door(finished):
    finished.path("results/chat/raw_responses.meta.json").unlink()
    finished.configure(sampling={"temperature": 0.1})
    finished.run("-n", status=1)
    finished.configure(sampling=None)
    assert finished.is_finished()


def test_no_secret_reaches_a_file(new, server):
    """The key stands in the environment alone; the config names the variable."""
    server.update(api_key="s3cret-key")
    new.configure(engine={"api_key_env": "MY_SERVER_KEY"})
    new.environment["MY_SERVER_KEY"] = "s3cret-key"
    output = new.run()
    assert "s3cret-key" not in output
    for path in new.folder.rglob("*"):
        if path.is_file():
            assert b"s3cret-key" not in path.read_bytes(), path
    assert json.loads(new.path("results/engine.json").read_bytes())["engine"]["api_key_env"] == "MY_SERVER_KEY"
