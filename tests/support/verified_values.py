"""Pairs of a WebArena-Verified reference and an answer, judged by the benchmark's own evaluator.

The table that the tests read is written again where the package `webarena-verified` is installed:
    python tests/support/verified_values.py
"""

import itertools
import json
import random
from pathlib import Path

from terrella.worlds.webarena.network import answer_fits

TABLE = Path(__file__).parents[1] / "unit" / "worlds" / "verified_values.json"
SCHEMAS = {
    "number": {"type": "number"},
    "currency": {"type": "number", "format": "currency"},
    "boolean": {"type": "boolean"},
    "duration": {"type": "string", "format": "duration"},
    "distance": {"type": "string", "format": "distance"},
    "date": {"type": "string", "format": "date"},
    "month": {"type": "string", "format": "month"},
    "location-name": {"type": "string", "format": "location-name"},
    "coordinates": {"format": "coordinates"},
    "string": {"type": "string"},
    "object": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "number"}},
    },
}
BY_HAND = {
    "number": [
        (12, ["not 12", "12 or 13 or 14", "12", "12.0", "1 2", "twelve", "about 12", "12 items"]),
        (12, [[12, 13], ["12", "13"], True, "", None, "-12", "1e1", "0012", "12."]),
        (1234, ["1,234", "1234", "1.234", "1 234", "one thousand two hundred thirty-four"]),
        (0, [0, "0", "zero", None, "", False, "none"]),
        (1, [True, "one", "1", "a"]),
    ],
    "currency": [
        (12.5, ["$12.50", "12.5", "12.50 USD", "12.55", "12.61", "not 12.50", "12.5 or 13", 12.5]),
        (12, ["12 or 13 or 14", "not 12", "$12", "€12", "-12", "12 dollars", "$12.00", "12,00"]),
        (1234.5, ["$1,234.50", "1.234,50", "1234.5", "1,234.5", "$ 1234.50"]),
        (1234, ["$1,234", "1,234.00", "1234"]),
        (0, [0, "$0", "0.05", None, "free"]),
    ],
    "boolean": [
        (False, ["banana", "false", "no", "0", 0, False, None, "", "maybe", [], "n", "off"]),
        (True, ["banana", "true", "Yes", "1", 1, True, "y", "on", "not true", "yes or no"]),
    ],
    "duration": [
        ("5h", ["2h 3h", "5 hours", "300 min", "5:00:00", "5", 5, "4h 45min", "3h 2h", "5h or 6h"]),
        ("1h 30min", ["90 min", "1:30:00", "1:30 hours", "1.5 hours", "1hr 30min", "90", "1h35m"]),
        ("2min", ["2 minutes", "5 min", "0min", "6 min", "120 s", "2:00", "10min"]),
        ("01:33:00", ["1h 33min", "93 minutes", "1:33:00", "01:33"]),
    ],
    "distance": [
        ("2km", ["2 km", "2000 m", "2,000 m", "2", "1.98km", "1.9km", "1.24 miles", "2k", "20 km"]),
        ("653m", ["653 m", "0.65 km", "660 m", "700 m", "653 meters", "653m or 700m"]),
    ],
    "date": [
        (
            "March 2, 2022",
            ["2022-03-02", "03/02/2022", "2 March 2022", "Mar 2nd, 2022", "March 2022"],
        ),
        ("March 2, 2022", ["2022-02-03", "Wednesday, March 2, 2022", "yesterday", "3/2/22"]),
    ],
    "month": [
        (
            "May",
            ["May", "may", "5", "05", 5, "May 2023", "June", "13", "Mayday", "", "May or June"],
        ),
        ("Jan", ["January", "Jan", "1", 1, "Jan.", "Feb"]),
    ],
    "location-name": [
        ("Carnegie Mellon University", ["Carnegie Mellon Univ", "Mellon Carnegie University"]),
        ("Carnegie Mellon University", ["University", "Carnegie", "carnegie-mellon university"]),
        ("Giant Eagle", ["giant eagle", "Giant Eagles", "Eagle", "ALDI"]),
    ],
    "coordinates": [
        (
            {"latitude": "40.4424191", "longitude": "-79.9397388"},
            [
                {"latitude": 40.4424191, "longitude": -79.9397388},
                {"lat": "40.44242", "lon": "-79.93974"},
                {"lat": "40.4425", "lon": "-79.9397"},
                "40.4424191, -79.9397388",
                {"latitude": "40.4424191"},
            ],
        )
    ],
    "string": [
        (
            "Quest Lumaflex™ Band",
            ["quest lumaflex band", "Quest  Lumaflex Band.", "Lumaflex", "^.*$"],
        ),
        (
            "Quest Lumaflex™ Band",
            [["Sprite", "Quest Lumaflex Band"], "Quest-Lumaflex Band", "^Q.*$"],
        ),
        (["Digital Watch", "Band"], ["Band", "digital watch", "Watch", ["Band", "Strap"]]),
        ("^.*@example\\.com$", ["a@example.com", "A@EXAMPLE.COM", "a@example.org", "^.*$"]),
        ("café", ["cafe", "CAFÉ", "caf"]),
        ("C, D", ["C D", "c, d", '"C, D"', "D, C"]),
    ],
    "object": [
        (
            {"name": "a", "count": 2},
            [
                {"name": "A", "count": "2"},
                {"name": "a"},
                {"name": "a", "count": 2, "more": 1},
                {"name": "a", "count": "not 2"},
                "a 2",
                {"name": "a", "count": [1, 2, 3]},
            ],
        )
    ],
}


def generated(seed: int = 0) -> list[tuple[str, object, object]]:
    """A few hundred further pairs: values in several notations, right and a little wrong."""
    rng = random.Random(seed)
    rows: list[tuple[str, object, object]] = []
    for _ in range(45):
        number = rng.randrange(2000)
        other = number + rng.choice([0, 0, 0, 1, -1, 100])
        rows.append(
            ("number", number, rng.choice([other, f"{other:,}", f"{other}.0", f" {other} "]))
        )
        rows.append(("number", number, f"{rng.choice(['not', 'over', '~', 'no.'])} {number}"))
        money, off = number / 7, rng.choice([0, 0, 0.04, 0.2, 5])
        text = f"{money + off:,.2f}"
        forms = [f"${text}", f"{text} USD", f"USD {text}", text, f"between {text} and 9"]
        rows.append(("currency", round(money, 2), rng.choice(forms)))
        minutes = rng.randrange(1, 700)
        about = max(1, minutes + rng.choice([0, 0, 2, 5, 60, -30]))
        hours, rest = divmod(about, 60)
        times = [f"{about} min", f"{hours}h {rest}m", f"{hours}:{rest:02d}:00", f"{about * 60} s"]
        times += [f"{hours} hours, {rest} minutes", f"{rest}m {hours}h", f"{about}"]
        rows.append(("duration", f"{minutes}min", rng.choice(times)))
        metres = rng.randrange(20, 90_000)
        near = round(metres * rng.choice([1, 1, 1.01, 1.05, 0.5]))
        lengths = [f"{near} m", f"{near / 1000} km", f"{near / 1609.344:.3f} miles", f"{near}"]
        rows.append(("distance", f"{metres}m", rng.choice([*lengths, f"{near}m {near}m"])))
        day, month, year = rng.randrange(1, 29), rng.randrange(1, 13), rng.randrange(2020, 2024)
        shown = day + rng.choice([0, 0, 0, 1])
        name = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][
            month - 1
        ]
        dates = [f"{name} {shown}, {year}", f"{shown} {name} {year}", f"{month}/{shown}/{year}"]
        dates += [f"{year}-{month:02d}-{shown:02d}", f"{year}-{month:02d}-{shown:02d} 10:30:00"]
        rows.append(("date", f"{year}-{month:02d}-{day:02d}", rng.choice(dates)))
        words = [rng.choice(["Alpha", "Beta", "Gamma", "Delta", "Bar", "Café"]) for _ in range(3)]
        phrase = " ".join(words)
        forms = [phrase, phrase.upper(), f'"{phrase}"', "-".join(words), f"{phrase}!", words[0]]
        rows.append(("string", phrase, rng.choice([*forms, f"not {phrase}", f" {phrase}\n"])))
        rows.append(("location-name", phrase, rng.choice([*forms, phrase[:-2], phrase[3:]])))
    return rows


def pairs() -> list[tuple[str, object, object]]:
    by_hand = [
        (kind, expected, answer)
        for kind, cases in BY_HAND.items()
        for expected, answers in cases
        for answer in answers
    ]
    unique = {json.dumps(row): row for row in itertools.chain(by_hand, generated())}
    return list(unique.values())


def upstream_judges(kind: str, expected: object, answer: object) -> bool:
    """The verdict of the package `webarena-verified`, by the calls of its evaluator."""
    from webarena_verified.core.evaluation.value_comparator import ValueComparator
    from webarena_verified.core.evaluation.value_normalizer import ValueNormalizer

    if answer is None or answer == "" or answer == []:
        return False  # its evaluator treats these as a missing answer
    schema = {"type": "array", "items": SCHEMAS[kind]}
    normalizer = ValueNormalizer()
    wanted = normalizer.normalize_array([expected], schema, strict=True)
    given = normalizer.normalize_array([answer], schema, strict=False)
    return not ValueComparator().compare(expected=wanted, actual=given)


def we_judge(kind: str, expected: object, answer: object) -> bool:
    evaluator = {
        "results_schema": {"type": "array", "items": SCHEMAS[kind]},
        "expected": {"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": [expected]},
    }
    reply = {"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": [answer]}
    return answer_fits(evaluator, json.dumps(reply))


def main() -> None:
    rows = [[*row, upstream_judges(*row), we_judge(*row)] for row in pairs()]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    TABLE.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
