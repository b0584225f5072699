"""Malformed requests of many kinds, drawn from a seed."""

import json

GOOD = {
    "/predict": {
        "questions": [
            {"observation": "P_G\nO__\n___", "action": "Right", "depth": 1, "history": []}
        ]
    },
    "/reset": {"seed": 1, "split": "train", "noise_seed": 0},
    "/step": {"session_id": "x", "action": {"action": "Up"}},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "temperature": 1.0,
    },
}
PATHS = [
    *GOOD,
    "/schema",
    "/state",
    "/metadata",
    "/metrics",
    "/v1/models",
    "/health",
    "/nowhere",
    "/predict/",
    "//predict",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    -1e308,
    2**63,
    -(2**70),
    10**400,
    "",
    "x" * 5000,
    "\ud800",
    "\x00",
    "é" * 100,
    "../../etc/passwd",
    "<script>",
    "{{7*7}}",
    [],
    [[]],
    {},
    {"": {}},
    [None] * 300,
    {"kind": "frames"},
    "NaN",
    {"kind": "frames", "shape": [1, 1, 1, 10**9], "data": "AA=="},
    {"kind": "frames", "shape": [1, 1, 1, 1], "data": "!"},
    {"kind": "state", "text": "{" * 1000},
    {"kind": "nothing", "text": "x"},
    [{"observation": {}, "action": []}] * 3,
]
RAW = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{'a': 1}",
    b'{"a": NaN}',
    b'{"a": 1, "a": 2}',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"\x00" * 100,
    b'{"questions": ' + b"9" * 5000 + b"}",
    b'{"a": "\\ud800"}',
    b"\xed\xa0\x80",
    b'{"questions": [' + b"{}," * 1000 + b"{}]}",
    b"<xml/>",
    b"a=b&c=d",
]
HEADERS = [
    (b"content-type", b"text/plain"),
    (b"content-length", b"-1"),
    (b"content-length", b"abc"),
    (b"transfer-encoding", b"x"),
    (b"content-encoding", b"gzip"),
    (b"x-long", b"y" * 8000),
    (b"accept", b"\xff\xff"),
    (b"cookie", b";;;==="),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"range", b"bytes=5-1"),
]


def spoil(rng, value):
    """Replace, remove or add one entry somewhere in a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        chance = rng.random()
        if chance < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if chance < 0.25:
            return {
                **value,
                rng.choice(["", "é", "__class__", "seed", "stream", "n"]): rng.choice(VALUES),
            }
        return {**value, key: spoil(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = rng.randrange(len(value))
        return [*value[:index], spoil(rng, value[index]), *value[index + 1 :]]
    return rng.choice(VALUES)


def malformed(rng):
    """A malformed request: method, path, headers and body."""
    path = rng.choice(list(GOOD) if rng.random() < 0.8 else PATHS)
    method = (
        "POST"
        if rng.random() < 0.9
        else rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"])
    )
    headers = [rng.choice(HEADERS)] if rng.random() < 0.2 else []
    chance = rng.random()
    if chance < 0.25:
        return method, path, headers, rng.choice(RAW)
    if chance < 0.35:
        return method, path, headers, rng.randbytes(rng.randrange(200))
    good = GOOD.get(path, GOOD["/predict"])
    for _ in range(rng.randint(1, 3)):
        good = spoil(rng, good)
    body = json.dumps(good).encode()
    if rng.random() < 0.1:  # cut off in the middle
        body = body[: rng.randrange(len(body))]
    return method, path, headers, body
