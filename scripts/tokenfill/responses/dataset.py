"""One dataset while it is being filled: its settings, prompts, journal and counts, and the sentinel at the end."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.files import replace
from tokenfill.responses import budget
from tokenfill.responses.answers import Answer, Counting, Key, fold, tally
from tokenfill.responses.failures import Ledger
from tokenfill.responses.journal import NAME, Journal, read_lines
from tokenfill.responses.prompt_table import PromptTable
from tokenfill.settings import differences, digest

META = "raw_responses.meta.json"
IN_FLIGHT = "in_flight.json"


class Dataset:
    """The state of one dataset, held for writing by this process.

    Raises UserError where another process holds it, or where its answers were made with other settings.
    """

    def __init__(self, settings: Path, prompts: Path, complete: Path, say: Callable[[str], None]):
        self._settings_path = settings
        self._complete = complete
        self._folder = complete.parent
        self.say = say
        self.settings = json.loads(settings.read_text())
        self.name = self.settings["dataset"]
        self.prompts = PromptTable(prompts)
        self.journal = Journal(self._folder, say)
        self.settings_digest = digest(self.identity)  # stays the same as long as a run goes on
        self.meta = self._read_meta()
        self.answers: dict[Key, Answer] = {}
        self.stale = 0
        self._load_answers()
        self.counting = self._counting()
        self.tally = tally(self.answers.values(), self.counting)

    # -- settings and identity -------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        return self.settings["budget"]

    @property
    def identity(self) -> dict:
        """What makes other answers when it changes: the settings' identity half and the tokenizer's content."""
        return {"identity": self.settings["identity"], "content": self.prompts.facts["content"]}

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids that end an answer: the model's own and the config's."""
        own = self.prompts.facts["stop_token_ids"]
        return sorted({*own, *self.settings["identity"]["sampling"]["stop_token_ids"]})

    @property
    def known_model(self) -> str | None:
        """The model that the answers so far are of, as a server called it."""
        names = (facts.get("model") for facts in self.meta.get("servers", {}).values())
        return next(filter(None, names), None) if self.answers else None

    def _read_meta(self) -> dict:
        path = self._folder / META
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UserError(
                f"{path} cannot be read ({error}); delete it: what it says is in the journal too."
            ) from error

    def note_servers(self, context_length: int | None, servers: dict[str, dict]) -> None:
        """Keep what the journal is made with; a context length that is new changes which answers have ended."""
        meta = {
            "v": 1,
            **self.identity,
            "settings": self.settings_digest,
            "context_length": context_length,
            "servers": {**self.meta.get("servers", {}), **servers},
        }
        if meta != self.meta:
            self.meta = meta
            write_json(self._folder / META, meta)
        self.recount()

    def _refuse_other_identity(self, line: dict) -> None:
        """Answers of other settings must not mix with today's."""
        if line.get("settings") == self.settings_digest:
            return
        then = {key: self.meta.get(key) for key in ("identity", "content")}
        changed = (
            "; ".join(differences(then, self.identity)) if self.meta else f"see {line.get('settings')} in its lines"
        )
        raise UserError(
            f"{self.journal.path} holds answers made with other settings ({changed}). Put the old value back, or "
            f"move the answers aside: mv {self._folder} {self._folder}.old"
        )

    # -- answers ---------------------------------------------------------------------------------------------

    def _load_answers(self) -> None:
        """Read the journal; keep apart what answers today's prompts. Lines of other prompts are stale."""
        doubled = 0
        for place, line in self.journal.load():
            self._refuse_other_identity(line)
            doubled += not fold(self.answers, line, place)
        if doubled:
            self.say(f"{self.journal.path}: {doubled} lines stand twice; the first of each counts.")
        stale, samples = (
            set(self.answers),
            range(1 + max((answer.sample for answer in self.answers.values()), default=0)),
        )
        for id_, prompt_hash, turn in self.prompts.keys_among({key[1] for key in self.answers}):
            stale.difference_update((id_, prompt_hash, sample, turn) for sample in samples)
        for key in stale:
            self.stale += len(self.answers.pop(key).places)
        if self.stale:
            self.say(
                f"{self.name}: {self.stale} responses answer prompts that are not among today's; kept, not counted."
            )

    def _counting(self) -> Counting:
        return Counting.of(self.settings, self.meta.get("context_length"))

    def recount(self) -> None:
        """Count again, by today's settings and context length."""
        self.counting = self._counting()
        self.tally = tally(self.answers.values(), self.counting)

    def generated_ids(self, answer: Answer) -> list[int]:
        """All ids of an answer so far, joined from its parts on disk."""
        lines = read_lines(self.journal.path, answer.places)
        return [token for line in lines for token in line["output_ids"]]

    def keep(self, key: Key, line: dict) -> Answer:
        """Write a line to the journal and count it. Raises TemporaryFailure where it cannot be written."""
        place = self.journal.append(line)
        self.tally.unfinished -= key in self.answers
        fold(self.answers, line, place)
        answer = self.answers[key]
        self.tally.add(answer, self.counting)
        return answer

    @property
    def asked_with(self) -> str:
        """Digest of what a prompt is asked with. What was given up for good stays so while this stays the same."""
        return digest(
            {
                "settings": self.settings_digest,
                "min_new_tokens": self.settings["min_new_tokens"],
                "max_new_tokens": self.settings["max_new_tokens"],
                "context_length": self.counting.context_length,
            }
        )

    def ledger(self) -> Ledger:
        """The prompts given up, as the runs before left them."""
        ledger = Ledger(self._folder / "failures.jsonl", self.asked_with)
        ledger.load()
        return ledger

    def read_in_flight(self) -> dict[str, int]:
        """How far the answers in flight had come when a run before was killed; {} where nothing tells."""
        try:
            told = json.loads((self._folder / IN_FLIGHT).read_bytes())
            return {name: int(tokens) for name, tokens in told.items() if name.partition("/")[2].isdecimal()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # it only makes the forecast better

    def write_in_flight(self, reached: Mapping[str, int]) -> None:
        """Leave `reached` for a run after a kill: only with what was thrown back is the mean of all answers known."""
        write_json(self._folder / IN_FLIGHT, dict(reached), is_durable=False)

    # -- done ------------------------------------------------------------------------------------------------

    def is_met(self) -> bool:
        """Whether the budget is met."""
        return budget.is_met(self.tally.tokens, self.budget)

    def reread_settings(self) -> bool:
        """Take up settings changed while the run went on; True if there are any. The old ones counted so far.

        Raises TemporaryFailure where they are not today's answers' any more: the next run refuses them by name.
        """
        settings = json.loads(self._settings_path.read_text())
        if settings == self.settings:
            return False
        changed = differences(self.settings["identity"], settings["identity"])
        if changed:
            raise TemporaryFailure(
                f"{self.name}: {changed[0]}, changed while this run went on; put it back and run again."
            )
        self.settings = settings
        self.recount()
        return True

    def certify(self, failed: dict[str, int]) -> dict:
        """Write `complete`, the last act. `failed`: prompts given up for good, by class."""
        self.journal.sync()
        complete = {
            "dataset": self.name,
            "reason": "budget_met" if self.is_met() else "prompts_exhausted",
            "budget": self.budget,
            "tokens": self.tally.tokens,
            "responses": self.tally.responses,
            "truncated": self.tally.truncated,
            "flagged": self.tally.flagged,
            "dropped": self.tally.dropped,
            "stale": self.stale,
            "failed": failed,
            "settings": self.settings_digest,
            "journal": {NAME: self.journal.size},
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.tally.last_ended_at)),
        }
        write_json(self._complete, complete)
        (self._folder / IN_FLIGHT).unlink(missing_ok=True)
        return complete

    def close(self) -> None:
        """Sync the journal and let the next writer in."""
        self.journal.close()


def write_json(path: Path, content: dict, is_durable: bool = True) -> None:
    """Replace a file in one step. Raises TemporaryFailure where it cannot."""
    try:
        replace(path, json.dumps(content, indent=1) + "\n", is_durable)
    except OSError as error:
        raise TemporaryFailure(f"{path} cannot be written: {error.strerror}.") from error
