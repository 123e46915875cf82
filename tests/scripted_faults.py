"""Which requests go wrong, and how an answer is spoilt. Connections are broken in scripted_server.py.

A script's `faults` is a list of rules {"when": {...}, "do": {...}, "times": n}; the first that holds is
applied.

`when`, all of which must hold: nth [arrivals, from 1], from_nth, every, attempt [...] and attempt_at_most
(arrivals of these very ids), after and before (seconds since the start), has_id, length_at_least, path, and
chance (decided by the arrival number and the script's seed).

`do`: either a status (with body, retry_after) or a fault: hang, reset, cut, empty, html, abort, null_finish,
no_ids, empty_ids, wrong_count (by), prompt_at_head (by), out_of_vocabulary, nan, cycle, early_length (at),
die. Beside or without one of them: delay, length, ids, finish, text, content_type.
"""

import math
import random

from scripted_protocols import Answer


def pick_fault(rules: list[dict], used: dict[int, int], request: dict) -> dict:
    """The `do` of the first rule that holds for `request` (ids, n, attempt, age, path, seed), else {}."""
    for i, rule in enumerate(rules):
        if used.get(i, 0) < rule.get("times", math.inf) and _holds(rule.get("when", {}), request, i):
            used[i] = used.get(i, 0) + 1
            return rule["do"]
    return {}


def _holds(when: dict, request: dict, rule: int) -> bool:
    tests = {
        "nth": lambda v: request["n"] in v,
        "from_nth": lambda v: request["n"] >= v,
        "every": lambda v: request["n"] % v == 0,
        "attempt": lambda v: request["attempt"] in v,
        "attempt_at_most": lambda v: request["attempt"] <= v,
        "after": lambda v: request["age"] >= v,
        "before": lambda v: request["age"] < v,
        "has_id": lambda v: v in request["ids"],
        "length_at_least": lambda v: len(request["ids"]) >= v,
        "path": lambda v: request["path"] == v,
        "chance": lambda v: random.Random(f"{request['seed']}/{rule}/{request['n']}").random() < v,
    }
    return all(tests[key](value) for key, value in when.items())


def spoil(answer: Answer, do: dict, prompt_ids: list[int], vocab_size: int) -> None:
    """Make of a good answer the bad one that the rule asks for."""
    match do.get("fault"):
        case "null_finish":
            answer.finish = None
        case "no_ids":
            answer.ids = None
        case "empty_ids":
            answer.ids, answer.text, answer.completion_tokens = [], "", 0
        case "wrong_count":
            answer.completion_tokens += do.get("by", 1)
        case "prompt_at_head":
            answer.ids = prompt_ids[-do.get("by", 5) :] + answer.ids
        case "out_of_vocabulary":
            answer.ids = [*answer.ids[:-1], vocab_size + 7]
        case "nan":
            answer.ids, answer.text, answer.finish = [0] * len(answer.ids), "!" * len(answer.ids), "nan"
        case "early_length":
            answer.ids = answer.ids[: do.get("at", max(1, len(answer.ids) // 2))]
            answer.finish, answer.completion_tokens = "length", len(answer.ids)
    answer.finish = do.get("finish", answer.finish)
    answer.text = do.get("text", answer.text)
