"""The readable source of function_calls.parquet: `python resources/prompts/build_function_calls.py` writes it anew.

A row has `id`, `messages` and `tools` (JSON text, as such columns are commonly kept). Each desk below is one assistant
with its functions, what people ask of it, and one question with the call, the result and the answer that followed.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TARGET = Path(__file__).with_name("function_calls.parquet")
IN_A_TALK = 2  # questions of each desk that follow on another


def function(name: str, description: str, /, **parameters: str) -> dict:
    """A function's schema; a parameter is "type: what it is", required unless the type ends in `?`."""
    properties, required = {}, []
    for parameter, told in parameters.items():
        kind, _, meaning = told.partition(": ")
        properties[parameter] = {"type": kind.removesuffix("?"), "description": meaning}
        if not kind.endswith("?"):
            required.append(parameter)
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


DESKS = {
    "weather": {
        "tools": [
            function("get_forecast", "Weather forecast for a place", place="string: town", days="integer: days ahead"),
            function("get_air_quality", "Air quality index measured now", place="string: town"),
        ],
        "asked": [
            "Do I need an umbrella in Bergen tomorrow?",
            "My son has asthma. How is the air in Kraków right now?",
            "We get married in a garden near Siena in four days. What will the weather be like?",
            "Is it going to freeze in Winnipeg this week?",
            "Can I dry the laundry outside in Porto today?",
            "Compare the air in Delhi and in Shimla before I decide where to spend the weekend.",
        ],
        "answered": (
            "How warm does it get in Seville over the next two days?",
            ("get_forecast", {"place": "Seville", "days": 2}),
            {"days": [{"high": 39, "low": 24, "sky": "clear"}, {"high": 41, "low": 25, "sky": "clear"}]},
            "Seville gets 39 degrees tomorrow and 41 the day after, under a clear sky.",
        ),
    },
    "calendar": {
        "tools": [
            function(
                *("create_event", "Put an event into the calendar"),
                title="string: what it is",
                start="string: ISO date and time",
                minutes="integer: how long it takes",
            ),
            function("find_free_time", "Free slots on a day", date="string: ISO date", minutes="integer: length"),
            function("cancel_event", "Take an event out of the calendar", event_id="string: the event's id"),
        ],
        "asked": [
            "Put a dentist's appointment on 12 March 2026 at half past nine, it takes 45 minutes.",
            "When could I fit in a two-hour workshop on 3 June 2026?",
            "Please delete the event ev-4471, the client called off.",
            "Block the whole morning of 2026-02-16 from eight to noon for my tax papers.",
            "I want to call my grandmother on her birthday, 29 August 2026, at six in the evening for half an hour.",
            "Is there any gap of 20 minutes on 7 April 2026 for a quick talk with Ines?",
        ],
        "answered": (
            "Find me an hour for the gym on 9 May 2026.",
            ("find_free_time", {"date": "2026-05-09", "minutes": 60}),
            {"free": ["07:00-08:30", "18:15-20:00"]},
            "On 9 May you could go at seven in the morning or at a quarter past six in the evening.",
        ),
    },
    "shop": {
        "tools": [
            function("find_order", "Status of an order", order="string: order number"),
            function("start_return", "Open a return", order="string: order number", reason="string: why"),
            function("search_products", "Products by words", words="string: what", most="number?: highest price"),
        ],
        "asked": [
            "Where is my parcel? The order number is 88-20417.",
            "The kettle from order 88-19933 leaks at the lid. I would like to send it back.",
            "Have you got hiking socks made of merino wool for under 20 euros?",
            "I ordered two lamps, number 88-21050, and only one came.",
            "The jacket I got with order 88-20788 is too small, how do I return it?",
            "I look for a quiet keyboard for the office, 60 at most.",
        ],
        "answered": (
            "Has order 88-20001 left the warehouse?",
            ("find_order", {"order": "88-20001"}),
            {"status": "shipped", "carrier": "post", "expected": "2026-01-14"},
            "Yes, it was shipped by post and should be with you on 14 January.",
        ),
    },
    "home": {
        "tools": [
            function("set_temperature", "Heat a room", room="string: room", celsius="number: wanted temperature"),
            function("switch_light", "Switch a light", room="string: room", on="boolean: on or off"),
            function("start_appliance", "Start a machine", machine="string: which", minutes_later="integer?: delay"),
        ],
        "asked": [
            "It is cold in the nursery, make it 21 degrees.",
            "Turn off the lamp in the hallway, please.",
            "Run the dishwasher in two hours, when the power is cheap.",
            "I am going to bed, so no light in the living room any more.",
            "Bring the study down to 17 while I am away.",
            "Start the washing machine now.",
        ],
        "answered": (
            "Warm up the bathroom to 23 degrees.",
            ("set_temperature", {"room": "bathroom", "celsius": 23}),
            {"ok": True, "now": 18.5, "reached_in_minutes": 25},
            "The bathroom is at 18.5 degrees now and will reach 23 in about 25 minutes.",
        ),
    },
    "travel": {
        "tools": [
            function(
                *("search_trains", "Trains between two stations"),
                origin="string: from",
                destination="string: to",
                date="string: ISO date",
            ),
            function("search_hotels", "Hotels in a town", town="string: town", nights="integer: how many"),
            function(
                "convert_currency", "Money at today's rate", amount="number: how much", to="string: currency code"
            ),
        ],
        "asked": [
            "How do I get from Vienna to Ljubljana by rail on 2 May 2026?",
            "I need a bed for three nights in Ghent.",
            "What are 250 euros in Japanese yen?",
            "Any early train from Leeds to Edinburgh on 18 July 2026?",
            "We stay one night in Oaxaca before the bus leaves, where could we sleep?",
            "The guide wants 900 for the tour. How much is that in Norwegian kroner?",
        ],
        "answered": (
            "Which trains go from Lyon to Turin on 20 February 2026?",
            ("search_trains", {"origin": "Lyon", "destination": "Turin", "date": "2026-02-20"}),
            {"trains": [{"leaves": "08:32", "arrives": "12:28"}, {"leaves": "15:02", "arrives": "18:55"}]},
            "There are two trains, at 08:32 and at 15:02; the first arrives at 12:28.",
        ),
    },
    "music": {
        "tools": [
            function("play", "Play a song, album or artist", what="string: name", shuffle="boolean?: mixed order"),
            function(
                "make_playlist",
                "A list of songs",
                name="string: its name",
                mood="string: mood",
                songs="integer: how many",
            ),
            function("set_volume", "Loudness", percent="integer: 0 to 100"),
        ],
        "asked": [
            "Play something by Nina Simone.",
            "That is far too loud, go down to a third.",
            "Make me a list of fifteen calm songs for cooking, call it Sunday kitchen.",
            "Put on the album Graceland, but mixed up.",
            "I go running and want twenty fast songs, name the list Hill repeats.",
            "Full volume, this is my favourite part!",
        ],
        "answered": (
            "Play the Goldberg Variations.",
            ("play", {"what": "Goldberg Variations"}),
            {"playing": "Goldberg Variations, BWV 988: Aria", "artist": "Glenn Gould", "year": 1981},
            "Here is the Aria of the Goldberg Variations, played by Glenn Gould in 1981.",
        ),
    },
    "bank": {
        "tools": [
            function("get_balance", "Money on an account", account="string: its name"),
            function("list_payments", "Payments since a day", account="string: its name", since="string: ISO date"),
            function(
                "block_card", "Block a card at once", last_digits="string: last four digits", reason="string: why"
            ),
        ],
        "asked": [
            "How much is left on my savings account?",
            "My card ending in 7718 was stolen on the tram!",
            "What did I spend from the household account since the first of November 2026?",
            "Please show me everything that went out of checking since 2026-10-15.",
            "I cannot find the card with 0023 at the end, better block it.",
            "Is there enough on checking to pay the rent of 1,150?",
        ],
        "answered": (
            "What is the balance of my holiday account?",
            ("get_balance", {"account": "holiday"}),
            {"account": "holiday", "balance": 1284.5, "currency": "EUR"},
            "Your holiday account holds 1,284.50 euros.",
        ),
    },
    "code": {
        "tools": [
            function("search_code", "Find text in a repository", text="string: what", path="string?: folder"),
            function("open_issue", "Report a defect", title="string: short", body="string: what happens"),
            function("run_tests", "Run tests", path="string?: file or folder"),
        ],
        "asked": [
            "Where do we call parse_date?",
            "Run only the tests in tests/unit/billing.",
            "The login page shows a blank screen in Firefox. Please file that.",
            "Look for TODO in the folder src/export.",
            "Does everything still pass?",
            "Write a report: the CSV export drops the last row when the file has no final newline.",
        ],
        "answered": (
            "Run the tests of the mailer.",
            ("run_tests", {"path": "tests/mailer"}),
            {"passed": 41, "failed": 1, "first_failure": "test_reply_to_is_kept: AssertionError"},
            "41 tests passed and one failed: test_reply_to_is_kept.",
        ),
    },
    "kitchen": {
        "tools": [
            function(
                "find_recipe", "Recipes with ingredients", ingredients="string: list", minutes="integer?: at most"
            ),
            function("set_timer", "Kitchen timer", minutes="number: how long", label="string: what for"),
            function("add_to_list", "Shopping list", item="string: what", amount="string?: how much"),
        ],
        "asked": [
            "What can I make from leeks, potatoes and a bit of cream in half an hour?",
            "Tell me when seven minutes are over, for the eggs.",
            "We are out of flour, put two kilos on the list.",
            "Remind me in an hour and a half to take the bread out.",
            "I have chickpeas and spinach. Any idea for dinner?",
            "Add oat milk to the shopping.",
        ],
        "answered": (
            "Find something quick with tomatoes and feta.",
            ("find_recipe", {"ingredients": "tomatoes, feta", "minutes": 20}),
            {"recipes": ["Baked feta with tomatoes (20 min)", "Greek salad (10 min)"]},
            "You could bake feta with tomatoes in 20 minutes, or make a Greek salad in 10.",
        ),
    },
    "clinic": {
        "tools": [
            function(
                "book_visit", "An appointment", doctor="string: name", date="string: ISO date", reason="string: why"
            ),
            function("opening_hours", "When the clinic is open", weekday="string: day of the week"),
            function("request_refill", "Repeat a prescription", medicine="string: name", patient="string: full name"),
        ],
        "asked": [
            "Are you open on Saturdays?",
            "I would like to see Dr Okafor on 11 February 2026 about my knee.",
            "My mother, Rosa Lindqvist, needs her metoprolol again.",
            "Until when can I come on a Wednesday?",
            "Please book me with Dr Banerjee on 24 March 2026, it is the yearly check-up.",
            "I am nearly out of levothyroxine. My name is Tom Achterberg.",
        ],
        "answered": (
            "When are you open on Fridays?",
            ("opening_hours", {"weekday": "Friday"}),
            {"weekday": "Friday", "open": "08:00", "close": "13:00"},
            "On Fridays we are open from eight to one.",
        ),
    },
    "library": {
        "tools": [
            function("search_books", "The catalogue", words="string: title, author or topic"),
            function("reserve_book", "Reserve a copy", book_id="string: catalogue id", card="string: library card"),
            function("renew_loan", "Keep a book longer", book_id="string: catalogue id", card="string: library card"),
        ],
        "asked": [
            "Do you have anything by Stanisław Lem?",
            "Reserve B-30912 for me, my card is 551-20.",
            "Can I keep B-11840 for another two weeks? Card 774-03.",
            "I need books on beekeeping for beginners.",
            "Please hold the catalogue number B-27755, card 610-88.",
            "Which books about the history of Zanzibar are there?",
        ],
        "answered": (
            "Is The Left Hand of Darkness in?",
            ("search_books", {"words": "The Left Hand of Darkness"}),
            {"found": [{"book_id": "B-20417", "title": "The Left Hand of Darkness", "copies_in": 2}]},
            "Yes, two copies of The Left Hand of Darkness are in.",
        ),
    },
    "geometry": {
        "tools": [
            function("circle_area", "Area of a circle", radius="number: in metres"),
            function("triangle_area", "Area of a triangle", base="number: in metres", height="number: in metres"),
            function("cylinder_volume", "Volume of a cylinder", radius="number: metres", height="number: metres"),
        ],
        "asked": [
            "How much water fits into a round tank that is 2 m high and has a radius of 0.8 m?",
            "What area does a sprinkler with a reach of 6 metres water?",
            "The gable of our barn is 9 m wide and 3.5 m high. How much wood do I need to cover it?",
            "A round table has a radius of 75 centimetres. How large is its top?",
            "I dig a well shaft, 12 m deep and half a metre in radius. How much earth comes out?",
            "What is the area of a sail with a foot of 4.2 m and a height of 10 m?",
        ],
        "answered": (
            "Tell me the area of a circle with a radius of 3 metres.",
            ("circle_area", {"radius": 3}),
            {"square_metres": 28.274},
            "The area is about 28.27 square metres.",
        ),
    },
}


def rows() -> list[dict]:
    """Of each desk: its questions, the last ones at the end of a talk, and the talk itself up to a call's result."""
    made = []
    for desk, content in DESKS.items():
        tools = json.dumps(content["tools"], ensure_ascii=False)
        talk, asked = _talk(*content["answered"]), [_message("user", question) for question in content["asked"]]
        prompts = [[message] for message in asked[:-IN_A_TALK]]
        prompts += [[*talk, message] for message in asked[-IN_A_TALK:]]
        prompts += [talk]  # its last message is the recorded answer, which is not part of a prompt
        made += [
            {"id": f"{desk}-{number}", "messages": messages, "tools": tools}
            for number, messages in enumerate(prompts, start=1)
        ]
    return made


def _talk(asked: str, call: tuple[str, dict], result: dict, told: str) -> list[dict]:
    name, arguments = call
    spelled = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return [
        _message("user", asked),
        _message("assistant", "", tool_calls=[{"type": "function", "function": spelled}]),
        _message("tool", json.dumps(result, ensure_ascii=False)),
        _message("assistant", told),
    ]


def _message(role: str, content: str, tool_calls: list | None = None) -> dict:
    return {"role": role, "content": content, "tool_calls": tool_calls}


def table() -> pa.Table:
    """The rows as the columns `id`, `messages` and `tools`."""
    call = pa.struct({"type": pa.string(), "function": pa.struct({"name": pa.string(), "arguments": pa.string()})})
    message = pa.struct({"role": pa.string(), "content": pa.string(), "tool_calls": pa.list_(call)})
    schema = pa.schema({"id": pa.string(), "messages": pa.list_(message), "tools": pa.string()})
    return pa.Table.from_pylist(rows(), schema)


if __name__ == "__main__":
    pq.write_table(table(), TARGET, compression="zstd")
    print(f"{TARGET}: {len(rows())} rows")
