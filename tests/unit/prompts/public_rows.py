"""A row in the shape of each dataset in docs/datasets.md, of our own making, and what it asks."""

import json

RIVERS = {"name": "rivers_of", "description": "Rivers of a country", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": RIVERS}]
ASK = {"role": "user", "content": "Which rivers cross Poland?"}
CALL = {"type": "function", "function": {"name": "rivers_of", "arguments": {"country": "Poland"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '["Oder", "Vistula"]'}
ANSWER = "The Oder and the Vistula."
SHARED = [{"from": "human", "value": ASK["content"]}, {"from": "gpt", "value": ANSWER}]
CHAT = [ASK, {"role": "assistant", "content": ANSWER}]
STEPS = [
    {"role": "system", "content": "You mend code."},
    {"role": "user", "content": "The build is red."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command": "make"}'}}
        ],
    },
    {"role": "tool", "content": "make: ok", "name": "run", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is green."},
]
STEPS_ASKED = [
    STEPS[0],
    STEPS[1],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "run", "arguments": {"command": "make"}}}],
    },
    STEPS[3],
]
RUN = [{"type": "function", "function": {"name": "run", "description": "Runs a command", "parameters": {}}}]

# dataset: (row, messages of its last prompt, tools or None)
EXAMPLES = {
    "glaive": (
        {
            "system": "SYSTEM: You are a helpful assistant with access to the following functions. "
            f"Use them if required -\n{json.dumps(RIVERS, indent=4)}\n",
            "chat": f"USER: {ASK['content']}\n\n\nASSISTANT: <functioncall> "
            '{"name": "rivers_of", "arguments": \'{"country": "Poland"}\'} <|endoftext|>\n\n\n'
            f"FUNCTION RESPONSE: {RESULT['content']}\n\n\nASSISTANT: {ANSWER} <|endoftext|>\n\n\n",
        },
        [ASK, CALLED, RESULT],
        TOOLS,
    ),
    "opencodeinstruct": (
        {"id": "c1", "input": "Sort a list.", "output": "sorted(x)", "average_test_score": "0.9"},
        [{"role": "user", "content": "Sort a list."}],
        None,
    ),
    "mixture_of_thoughts": ({"messages": CHAT, "num_tokens": 9, "source": "own"}, [ASK], None),
    "ultrachat": ({"prompt": "another text", "prompt_id": "p1", "messages": [*CHAT, *CHAT]}, [*CHAT, ASK], None),
    "sharegpt": (
        {
            "id": "s_0",
            "conversations": [{"from": "system", "value": "Be brief."}, *SHARED, {"from": "bing", "value": "?"}],
        },
        [{"role": "system", "content": "Be brief."}, ASK],
        None,
    ),
    "perfectblend": ({"conversations": SHARED, "source": "own"}, [ASK], None),
    "magpie": (
        {
            "uuid": "u1",
            "instruction": ASK["content"],
            "response": ANSWER,
            "conversations": SHARED,
            "gen_input_configs": {},
        },
        [ASK],
        None,
    ),
    "hermes_fc": (
        {
            "id": "h1",
            "conversations": [
                {"from": "system", "value": f"You call functions. <tools>{json.dumps(TOOLS)}</tools> Answer in JSON."},
                {"from": "human", "value": ASK["content"]},
                {"from": "gpt", "value": "<tool_call>\n{}\n</tool_call>"},
                {"from": "tool", "value": "<tool_response>\n{}\n</tool_response>"},
                {"from": "gpt", "value": ANSWER},
            ],
            "tools": json.dumps(TOOLS),
            "category": "own",
        },
        [
            {"role": "system", "content": "You call functions.  Answer in JSON."},
            ASK,
            {"role": "assistant", "content": "<tool_call>\n{}\n</tool_call>"},
            {"role": "tool", "content": "<tool_response>\n{}\n</tool_response>"},
        ],
        TOOLS,
    ),
    "swe_rebench": ({"trajectory_id": "t1", "instance_id": "i", "trajectory": STEPS, "tools": RUN}, STEPS_ASKED, RUN),
    "swe_zero": ({"instance_id": "i", "trajectory_id": "t1", "trajectory": STEPS, "dataset": "own"}, STEPS_ASKED, None),
    "swe_hero": ({"instance_id": "i", "trajectory_id": "t2", "trajectory": STEPS, "dataset": "own"}, STEPS_ASKED, None),
    "swe_agent": (
        {
            "instance_id": "i",
            "trajectory": [
                {"role": "system", "text": None, "system_prompt": "You mend code.", "mask": False},
                {"role": "user", "text": "The build is red.", "system_prompt": None, "mask": False},
                {"role": "ai", "text": "make", "mask": True},
                {"role": "user", "text": "make: ok", "mask": False},
                {"role": "ai", "text": "submit", "mask": True},
            ],
        },
        [
            {"role": "system", "content": "You mend code."},
            {"role": "user", "content": "The build is red."},
            {"role": "assistant", "content": "make"},
            {"role": "user", "content": "make: ok"},
        ],
        None,
    ),
    "toucan": (
        {
            "uuid": "u1",
            "messages": json.dumps(
                [
                    {
                        "role": "system",
                        "content": f"<|im_system|>tool_declare<|im_middle|>{json.dumps(TOOLS)}<|im_end|>",
                    },
                    ASK,
                    {
                        "role": "assistant",
                        "content": "",
                        "function_call": {"name": "rivers_of", "arguments": '{"country": "Poland"}'},
                    },
                    {"role": "function", "content": RESULT["content"], "name": "rivers_of"},
                    {"role": "assistant", "content": ANSWER},
                ]
            ),
            "available_tools": json.dumps(TOOLS),
            "question": "another text",
        },
        [ASK, CALLED, RESULT | {"name": "rivers_of"}],
        TOOLS,
    ),
    "toolace": (
        {
            "system": "You are an expert in composing functions.\nHere is a list of functions in JSON format:\n"
            f"{json.dumps([RIVERS])}\n\nPut them in the format [f(a=1)].",
            "conversations": [
                {"from": "user", "value": ASK["content"]},
                {"from": "assistant", "value": "[rivers_of()]"},
            ],
        },
        [
            {
                "role": "system",
                "content": "You are an expert in composing functions.\nPut them in the format [f(a=1)].",
            },
            ASK,
        ],
        TOOLS,
    ),
    "xlam": ({"id": 7, "query": ASK["content"], "answers": "[]", "tools": json.dumps([RIVERS])}, [ASK], TOOLS),
    "nemotron_v1": (
        {
            "uuid": "u1",
            "messages": [
                {"role": "system", "content": ""},
                ASK,
                {"role": "assistant", "content": ANSWER, "tool_calls": []},
            ],
            "metadata": json.dumps({"tools": TOOLS}),
        },
        [{"role": "system", "content": ""}, ASK],
        TOOLS,
    ),
    "nemotron_v2": ({"uuid": "u1", "messages": CHAT, "reasoning": "off", "metadata": "{}"}, [ASK], None),
    "llama_nemotron": (
        {"input": [ASK], "output": ANSWER, "system_prompt": "detailed thinking off", "category": "chat"},
        [{"role": "system", "content": "detailed thinking off"}, ASK],
        None,
    ),
    "opc_sft": (
        {"instruction": "Sort a list.", "output": "sorted(x)"},
        [{"role": "user", "content": "Sort a list."}],
        None,
    ),
    "evol_instruct": (
        {"instruction": "Sort a list.", "response": "sorted(x)"},
        [{"role": "user", "content": "Sort a list."}],
        None,
    ),
    "code_alpaca": (
        {"instruction": "Sort this list.", "input": "3, 1, 2", "output": "1, 2, 3"},
        [{"role": "user", "content": "Sort this list.\n\n3, 1, 2"}],
        None,
    ),
    "gsm8k": (
        {"question": "What is 6 times 7?", "answer": "#### 42"},
        [{"role": "user", "content": "What is 6 times 7?"}],
        None,
    ),
    "infinity_instruct": ({"id": 3, "conversation": SHARED, "generated_message": {"role": "assistant"}}, [ASK], None),
}
TOKENIZED = {"seta": ({"input_ids": [9, 8, 7, 6, 5], "loss_mask": [0, 0, 0, 1, 1]}, [9, 8, 7])}
