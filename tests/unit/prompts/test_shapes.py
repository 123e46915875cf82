"""Rows to conversations: where the prompt ends, what a message may look like, and the reasons to put a row aside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.errors import UserError
from tokenfill.prompts import glaive, tools
from tokenfill.prompts.gather import own_id, whole
from tokenfill.prompts.messages import normalise
from tokenfill.prompts.problem import RowProblem
from tokenfill.prompts.shapes import check_columns, conversation, prompt_ends, renamed

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "?": None}


def ends(roles, turns):
    return prompt_ends([ROLES[role] for role in roles], turns)


@pytest.mark.parametrize(
    ("roles", "last", "each"),
    [
        ("u", 1, [1]),
        ("ua", 1, [1]),
        ("sua", 2, [2]),
        ("uaua", 3, [1, 3]),
        ("uu", 2, [2]),
        ("uauu", 4, [1, 4]),
        ("au", 2, [2]),
        ("uatta", 4, [1, 4]),
        ("uatatata", 7, [1, 3, 5, 7]),
        ("uataaa", 3, [1, 3]),
        ("uas", 1, [1]),
        ("u?ua", 3, [1, 3]),
    ],
)
def test_where_prompts_end(roles, last, each):
    assert ends(roles, "last") == [last]
    assert ends(roles, "each") == each
    assert ends(roles, "first") == each[:1]


@pytest.mark.parametrize(
    ("roles", "reason"), [("", "no_messages"), ("s", "no_user_message"), ("sa", "no_user_message")]
)
def test_conversations_that_ask_nothing(roles, reason):
    with pytest.raises(RowProblem) as problem:
        ends(roles, "last")
    assert problem.value.reason == reason


@given(st.text("suat?", min_size=1, max_size=12))
def test_no_prompt_ends_with_an_answer(roles):
    try:
        found = ends(roles, "each")
    except RowProblem:
        assert not set(roles) & {"u", "t"}
        return
    assert all(roles[end - 1] in "ut" for end in found)
    assert ends(roles, "last") == found[-1:]


def message(**fields):
    return normalise(fields)


@pytest.mark.parametrize("tag", ["human", "user", "User", " HUMAN "])
def test_tags_of_people(tag):
    assert message(**{"from": tag, "value": "q"}) == {"role": "user", "content": "q"}


@pytest.mark.parametrize("tag", ["gpt", "chatgpt", "bing", "bard", "assistant", "ai"])
def test_tags_of_assistants(tag):
    assert message(**{"from": tag, "value": "a"}) == {"role": "assistant", "content": "a"}


def test_a_developer_is_a_system():
    assert message(role="developer", content="d")["role"] == "system"


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_no_text(content):
    assert message(role="assistant", content=content) == {"role": "assistant", "content": ""}
    assert message(role="assistant") == {"role": "assistant", "content": ""}


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "see "}, {"type": "text", "text": "this"}]
    assert message(role="user", content=parts)["content"] == "see this"


@pytest.mark.parametrize("content", [5, True, [{"type": "image_url", "image_url": {}}], [7]])
def test_content_that_is_no_text(content):
    with pytest.raises(RowProblem, match="content_not_text"):
        message(role="user", content=content)


def call_with(arguments):
    made = message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": arguments}}])
    return made["tool_calls"][0]["function"]["arguments"]


def test_arguments_as_text_and_as_mapping_are_the_same():
    assert call_with('{"a": [1, null]}') == call_with({"a": [1, None]}) == {"a": [1, None]}


@pytest.mark.parametrize("arguments", ["null", "", None, "{}", {}])
def test_no_arguments(arguments):
    assert call_with(arguments) == {}


@pytest.mark.parametrize("arguments", ["{bad", "[1]", [1], 5])
def test_arguments_that_are_none(arguments):
    with pytest.raises(RowProblem, match="bad_arguments"):
        call_with(arguments)


def test_calls_spelled_out_in_the_text():
    spelled = message(**{"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'})
    assert spelled["content"] == "" and spelled["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert message(**{"from": "function_call", "value": "{}"}) == {"role": "assistant", "content": "{}"}
    assert message(**{"from": "observation", "value": "r"})["role"] == "tool"


def test_old_function_calls_and_reasoning():
    made = message(role="assistant", content=None, function_call={"name": "f", "arguments": "{}"}, reasoning="why")
    assert made["tool_calls"][0]["function"]["name"] == "f"
    assert made["reasoning_content"] == "why"


def test_a_bad_answer_behind_the_prompt_costs_nothing():
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": 5}]}
    assert conversation(row).messages == [{"role": "user", "content": "q"}]


def test_a_bad_message_before_its_end_costs_the_row():
    row = {
        "conversations": [{"from": "human", "value": "q"}, {"from": "x", "value": "a"}, {"from": "human", "value": "z"}]
    }
    with pytest.raises(RowProblem) as problem:
        conversation(row)
    assert (problem.value.reason, problem.value.detail) == ("unknown_role", "x")
    assert conversation(row, turns="first").messages == [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "p"}, "p"),
        ({"question": "p", "answer": "no"}, "p"),
        ({"instruction": "do", "input": ""}, "do"),
        ({"instruction": "do", "input": "this"}, "do\n\nthis"),
        ({"input": "p", "output": "no"}, "p"),
        ({"input": [{"role": "user", "content": "p"}]}, "p"),
        ({"prompt": [{"role": "user", "content": "p"}]}, "p"),
        ({"turns": ["p", "later"]}, "p"),
        ({"question": [[{"role": "user", "content": "p"}], [{"role": "user", "content": "later"}]]}, "p"),
        ({"messages": '[{"role": "user", "content": "p"}]'}, "p"),
        ({"prompt": "[not json"}, "[not json"),
        ({"messages": {"role": ["user", "assistant"], "content": ["p", "no"]}}, "p"),
        ({"messages": None, "prompt": "p"}, "p"),
    ],
)
def test_shapes_of_one_question(row, text):
    assert conversation(row).messages == [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"items": [1]}, "no_prompt_column"),
        ({"messages": "[broken"}, "bad_messages"),
        ({"messages": 7}, "bad_messages"),
        ({"messages": []}, "no_messages"),
        ({"prompt": " \n"}, "empty_prompt"),
        ({"input_ids": []}, "empty_prompt"),
        ({"input_ids": [1, 2.5]}, "bad_input_ids"),
        ({"input_ids": [1, True]}, "bad_input_ids"),
        ({"prompt": "p", "tools": "{broken"}, "bad_tools"),
        ({"prompt": "p", "tools": [{"description": "no name"}]}, "bad_tools"),
    ],
)
def test_rows_put_aside(row, reason):
    with pytest.raises(RowProblem) as problem:
        conversation(row)
    assert problem.value.reason == reason


def test_a_system_column_goes_before_the_chat_unless_it_has_one():
    own = {"role": "system", "content": "own"}
    asked = {"role": "user", "content": "q"}
    assert conversation({"system": "given", "messages": [asked]}).messages[0]["content"] == "given"
    assert conversation({"system": "given", "messages": [own, asked]}).messages == [own, asked]


def test_format_and_columns_say_it_outright():
    row = {"messages": [{"role": "user", "content": "chat"}], "prompt": "text", "meta": '{"q": {"text": "deep"}}'}
    assert conversation(row).messages[0]["content"] == "chat"
    assert conversation(row, "prompt").messages[0]["content"] == "text"
    assert conversation(renamed(row, {"prompt": "meta.q.text"}), "prompt").messages[0]["content"] == "deep"
    assert conversation(renamed(row, {"messages": None})).messages[0]["content"] == "text"
    with pytest.raises(UserError, match="columns: promt is not one of"):
        check_columns({"promt": "text"})


def test_only_the_last_answer_is_cut_off_tokenized_rows():
    row = {"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 1, 0, 0, 1, 0]}
    assert conversation(row, "tokenized").input_ids == [1, 2, 3, 4]


def test_glaive_keeps_what_it_cannot_read_as_text():
    chat = 'USER: a\n\n\nASSISTANT: <functioncall> {"name": broken} <|endoftext|>\n\n\nUSER: b'
    assert glaive.messages(chat) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": '<functioncall> {"name": broken}'},
        {"role": "user", "content": "b"},
    ]
    assert glaive.messages("no marks") == []


def test_glaive_arguments_with_quotes_inside():
    chat = """ASSISTANT: <functioncall> {"name": "f", "arguments": '{"q": "it\\'s \\"so\\""}'}"""
    assert glaive.messages(chat)[0]["tool_calls"][0]["function"]["arguments"] == {"q": 'it\'s "so"'}


def test_system_texts_without_tools_stay_as_they_are():
    for text in ('Answer in JSON like {"name": "x"}.', "Use [brackets] and {braces}.", "[" * 5000 + '"name"', ""):
        assert tools.lift(text) == (text, None)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": 1}, "1"),
        ({"id": "1"}, "1"),
        ({"id": "01"}, "01"),
        ({"id": 1.0}, "1.0"),
        ({"id": True}, "true"),
        ({"id": 0}, "0"),
        ({"id": 9007199254740993}, "9007199254740993"),
        ({"id": 10**30}, "1" + "0" * 30),
        ({"id": ""}, None),
        ({"id": None}, None),
        ({"id": "", "uuid": "u"}, "u"),
        ({"id": ["a"]}, None),
        ({}, None),
    ],
)
def test_ids_as_text(row, expected):
    assert own_id(row) == expected


def test_lone_surrogates_are_replaced_and_pairs_are_joined():
    assert whole({"\ud800k": ["a\udc00", "\ud83d\ude00", 1, None]}) == {"\ufffdk": ["a\ufffd", "\U0001f600", 1, None]}
