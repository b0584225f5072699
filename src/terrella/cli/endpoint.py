"""The endpoint that a model's address names on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from terrella.core.errors import ConfigError

if TYPE_CHECKING:
    from terrella.policies.endpoint import Endpoint

TRIES = 5
"""Attempts of a request to an endpoint, the first one included."""


def endpoint_config(
    address: str, name: str, key_variable: str | None, *, option: str
) -> Endpoint.Config | None:
    """The settings of an address; None for a model that is loaded here.

    `option` gives the model's name. Without a key's variable the endpoint has its usual one.
    """
    from terrella.pipelines.evaluate.models import is_address

    if not is_address(address):
        if name:
            raise ConfigError(option, "is for endpoints", f"{address} is not an http(s) address")
        return None
    if not name:
        raise ConfigError(
            address,
            "which model of this endpoint?",
            f"add {option}; {address.rstrip('/')}/models lists them",
        )
    from terrella.policies.endpoint import Endpoint

    config = Endpoint.Config(url=address, model=name, retries=TRIES)
    return config if key_variable is None else config.replace(key_variable=key_variable)
