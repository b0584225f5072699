"""The languages in which a web agent writes actions: all of them parse to one type, `Action`.

    click 7 | type 7 some text | scroll down | back | stop 4        plain, elements by id
    click button "No" [7] | type textbox "" [7] some text           named: an element with its name
    do(action="Click", element="7") | exit(message="4") | go_backward()   WebRL's
A reply in WebRL's language may have comments (`# Element: ...`) before the call and further text
after it; the first call counts. Replies are untrusted: one scan of bounded text, no `eval`.
    parse_action('do(action="Type", argument="kai", element="7")')  # Action("type", 7, "kai")
    write_action(Action("click", 7), "webrl")  # 'do(action="Click", element="7")'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Language = Literal["plain", "named", "webrl"]
MAX_TEXT_LENGTH = 2000
MAX_NAME = 60
"""Characters of an element's name in the named language."""
_ELEMENT_VERBS = "click|right_click|hover|type|search|select"
_GRAMMAR = re.compile(
    rf"(?P<verb>{_ELEMENT_VERBS}) "
    r'(?:(?P<id>\d{1,9})|[a-z]{1,40} "[^"\n]{0,200}" \[(?P<named>\d{1,9})\])(?: (?P<text>.*))?'
    r"|scroll (?:(?P<scrolled>\d{1,9}) )?(?P<direction>up|down)"
    r"|press (?P<key>\S{1,40})"
    r"|goto (?P<url>\S{1,1500})"
    r"|(?P<alone>back|forward|wait)\s*"
    r"|stop(?: (?P<answer>.*))?",
    re.DOTALL,
)
TEXT_VERBS = ("type", "search", "select")
"""Verbs that need a text, which may be empty."""


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed action."""

    verb: str
    id: int = 0
    text: str = ""


def parse_action(text: str) -> Action | None:
    """Parse an action in any of the languages; None for any other text."""
    if len(text) > MAX_TEXT_LENGTH:
        return None
    match = _GRAMMAR.fullmatch(text.lstrip().rstrip("\r\n"))
    if match is None:
        return _parse_webrl(text)
    if match["verb"]:
        return _element_action(match["verb"], int(match["id"] or match["named"]), match["text"])
    if match["direction"]:
        return Action("scroll", int(match["scrolled"] or 0), match["direction"])
    if match["key"]:
        return Action("press", 0, match["key"])
    if match["url"]:
        return Action("goto", 0, match["url"])
    if match["alone"]:
        return Action(match["alone"])
    return Action("stop", 0, match["answer"] or "")


def _element_action(verb: str, element: int, text: str | None) -> Action | None:
    """A click takes no text; `type`, `search` and `select` need one, which may be empty."""
    if verb in TEXT_VERBS:
        return None if text is None else Action(verb, element, text)
    return None if (text or "").strip() else Action(verb, element)


# --- WebRL's language -----------------------------------------------------------------------------

_CALL = re.compile(r"^[ \t`]{0,8}(do|exit|go_backward|go_forward)[ \t]{0,8}\(", re.MULTILINE)
_NAME = re.compile(r"[ \t\n]*([a-z_]{1,20})[ \t]*=")
_STRING = re.compile(r'[ \t\n]*("(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')')
_NUMBER = re.compile(r"[ \t\n]*(\d{1,9}|None)")
_BETWEEN = re.compile(r"[ \t\n]*,")
_END = re.compile(r"[ \t\n]*,?[ \t\n]*\)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
PARAMETERS = {"do": ("action", "argument", "element"), "exit": ("message",)}
"""Names of positional arguments."""
DO_VERBS = {
    "click": "click",
    "right click": "right_click",
    "hover": "hover",
    "type": "type",
    "search": "search",
    "select dropdown option": "select",
}
"""`do(action=...)` of an element, without case; `Switch Tab` is not known: worlds have one tab."""
DO_ALONE = {
    "scroll up": Action("scroll", 0, "up"),
    "scroll down": Action("scroll", 0, "down"),
    "press enter": Action("press", 0, "Enter"),
    "go backward": Action("back"),
    "go forward": Action("forward"),
    "wait": Action("wait"),
}


def _parse_webrl(text: str) -> Action | None:
    call = _CALL.search(text)
    if call is None:
        return None
    values = _arguments(text, call.end(), PARAMETERS.get(call[1], ()))
    if values is None:
        return None
    if call[1] in ("go_backward", "go_forward"):
        return None if values else Action("back" if call[1] == "go_backward" else "forward")
    if call[1] == "exit":
        return Action("stop", 0, values.get("message", ""))
    return _do(values)


def _do(values: Mapping[str, str]) -> Action | None:
    name = values.get("action", "").lower()
    if name == "press" and values.get("argument"):
        key = values["argument"]
        return Action("press", 0, key) if re.fullmatch(r"\S{1,40}", key) else None
    if name in DO_ALONE:
        alone, element = DO_ALONE[name], values.get("element", "")
        if alone.verb == "scroll" and element.isdecimal() and len(element) < 10:
            return Action("scroll", int(element), alone.text)
        return alone
    element, verb = values.get("element", ""), DO_VERBS.get(name)
    if verb is None or re.fullmatch(r"\d{1,9}", element, re.ASCII) is None:
        return None
    return Action(verb, int(element), values.get("argument", "") if verb in TEXT_VERBS else "")


def _arguments(text: str, at: int, names: tuple[str, ...]) -> dict[str, str] | None:
    """The arguments of a call, by name; None if it is not a call with texts and numbers."""
    values: dict[str, str] = {}
    position = 0
    while _END.match(text, at) is None:
        if position:
            between = _BETWEEN.match(text, at)
            if between is None:
                return None
            at = between.end()
        named = _NAME.match(text, at)
        if named is None and position >= len(names):
            return None
        name = named[1] if named else names[position]
        found = _STRING.match(text, named.end() if named else at) or _NUMBER.match(
            text, named.end() if named else at
        )
        if found is None or name in values:
            return None
        if found[1] != "None":
            values[name] = _unquoted(found[1])
        at, position = found.end(), position + 1
    return values


def _unquoted(word: str) -> str:
    if word[0] not in "\"'":
        return word
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], word[1:-1])


# --- writing --------------------------------------------------------------------------------------

_LINE = re.compile(r'\s*\[(\d{1,9})\] ([a-z]{1,40})(?: "((?:[^"\\]|\\.)*)")?')


def write_action(action: Action, language: Language, page: str = "") -> str:
    """The action in a language. `page` is the text in which named elements are looked up."""
    if language == "webrl":
        return _write_webrl(action)
    element = str(action.id)
    if language == "named" and action.id:
        element = element_names(page).get(action.id, element)
    match action.verb:
        case "type" | "search" | "select":
            return f"{action.verb} {element} {action.text}"
        case "click" | "right_click" | "hover":
            return f"{action.verb} {element}"
        case "scroll":
            return f"scroll {action.id} {action.text}" if action.id else f"scroll {action.text}"
        case "press" | "goto":
            return f"{action.verb} {action.text}"
        case "stop":
            return f"stop {action.text}" if action.text else "stop"
        case _:
            return action.verb


def element_names(page: str) -> dict[int, str]:
    """How the named language calls the elements of a page: `button "No" [7]`."""
    names = {}
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is not None:
            name = re.sub(r'["\\]', "", match[3] or "")[:MAX_NAME].strip()
            names[int(match[1])] = f'{match[2]} "{name}" [{match[1]}]'
    return names


def _write_webrl(action: Action) -> str:
    if action.verb == "stop":
        return f"exit(message={_quoted(action.text)})" if action.text else "exit()"
    if action.verb in ("back", "forward"):
        return "go_backward()" if action.verb == "back" else "go_forward()"
    names = {verb: name.title() for name, verb in DO_VERBS.items()}
    if action.verb in names:
        argument = f", argument={_quoted(action.text)}" if action.verb in TEXT_VERBS else ""
        return f'do(action="{names[action.verb]}"{argument}, element="{action.id}")'
    if action.verb == "scroll":
        element = f', element="{action.id}"' if action.id else ""
        return f'do(action="Scroll {action.text.title()}"{element})'
    if action.verb == "press":
        if action.text == "Enter":
            return 'do(action="Press Enter")'
        return f'do(action="Press", argument={_quoted(action.text)})'
    if action.verb == "wait":
        return 'do(action="Wait")'
    return f"{action.verb} {action.text}".rstrip()  # goto: WebRL has none


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def translate(action: str, language: Language, page: str = "") -> str:
    """Translate an action into another language, for the past actions in a prompt.

    What is in that language already stays as it is, with its comments; so does text that is no web
    action.
    """
    parsed = parse_action(action)
    if parsed is None or language_of(action) == language:
        return action
    return write_action(parsed, language, page)


def language_of(action: str) -> Language:
    """The language of text that is an action; the named one differs only where it names."""
    match = _GRAMMAR.fullmatch(action.lstrip().rstrip("\r\n"))
    if match is None:
        return "webrl"
    return "named" if match["named"] else "plain"


# --- telling --------------------------------------------------------------------------------------

PLAIN_ACTIONS = "Actions: click "
"""So begins the line of an instruction that tells the plain actions of a web world."""
NAMED_NOTE = 'Name an element as the page does, with its number: click button "Ok" [3].'
WEBRL_ACTIONS = (
    'Write one call: do(action="Click", element="7"), do(action="Type"|"Search"|'
    '"Select Dropdown Option", argument="...", element="7"), do(action="Hover", element="7"), '
    'do(action="Scroll Down"|"Scroll Up"), do(action="Press Enter"), go_backward(), '
    'go_forward(), exit(message="the answer").'
)


def tell_actions(instruction: str, language: Language) -> str:
    """An instruction that tells the actions in one language: its plain line is told in another."""
    if language == "plain":
        return instruction
    lines = instruction.splitlines()
    plain = [line for line in lines if line.startswith(PLAIN_ACTIONS)]
    others = [line for line in lines if not line.startswith(PLAIN_ACTIONS)]
    if language == "webrl":
        return "\n".join([*others, WEBRL_ACTIONS])
    named = [re.sub(r" N\b", ' role "name" [N]', line) for line in plain]
    return "\n".join([*others, *named, NAMED_NOTE])
