"""Keys as events of the DevTools protocol (`Input.dispatchKeyEvent`), in the order to send them.

character_events("a")  # what typing one character sends
key_press("Control+a")  # a named key or a combination; [] if there is no such key
"""

from __future__ import annotations

from typing import Any

MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
EDIT_COMMANDS = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut"}
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    "Space": ("Space", 32, " "),
}
"""Key name -> (DevTools code, virtual key code, text that it enters)."""


def character_events(character: str) -> list[dict[str, Any]]:
    """One character typed: its key goes down, which enters it, and up."""
    down: dict[str, Any] = {
        "type": "keyDown",
        "text": character,
        "key": character,
        "unmodifiedText": character,
    }
    if character.isalnum() and character.isascii():
        down["windowsVirtualKeyCode"] = ord(character.upper())
    return [down, {**down, "type": "keyUp", "text": ""}]


def key_press(key: str) -> list[dict[str, Any]]:
    """A named key, or a combination such as Control+a, pressed and released."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    bits = sum(MODIFIERS.get(name, 0) for name in modifiers)
    event: dict[str, Any]
    if last in KEYS:
        code, virtual_code, text = KEYS[last]
        event = {
            "key": " " if last == "Space" else last,
            "code": code,
            "windowsVirtualKeyCode": virtual_code,
        }
    elif len(last) == len(last.upper()) == 1:  # ß has no key of its own: in capitals it is SS
        text = "" if bits & 7 else last
        event = {"key": last, "windowsVirtualKeyCode": ord(last.upper())}
    else:
        return []
    down: dict[str, Any]
    down = {"type": "keyDown" if text else "rawKeyDown", "text": text, "modifiers": bits}
    if bits == MODIFIERS["Control"] and last.lower() in EDIT_COMMANDS:
        down["commands"] = [EDIT_COMMANDS[last.lower()]]
    return [{**down, **event}, {"type": "keyUp", "modifiers": bits, **event}]
