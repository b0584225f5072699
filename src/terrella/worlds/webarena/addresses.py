"""The addresses of sites of one's own: what the browser may reach there.

allowed({"__SHOPPING__": "http://shop.local:7770"})
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from terrella.browser.guard import Allow, resolve
from terrella.core.errors import ConfigError, WorldError
from terrella.worlds.webarena.tasks import SOURCES


def require_addresses(tasks: str, addresses: Mapping[str, str]) -> None:
    """Refuse a public collection on the mini-arena: its tasks are about other sites' data."""
    if tasks in SOURCES and not addresses:
        raise WorldError(
            "webarena",
            f"no addresses, and the tasks of {tasks} are not for the mini-arena's sites",
            'name your sites, such as addresses={"__SHOPPING__": "http://shop.local"} or '
            "--set world.addresses.__SHOPPING__=http://shop.local, or set tasks=mini",
        )


def allowed(addresses: Mapping[str, str]) -> tuple[Allow, ...]:
    """The allow-list for your own sites; you named them, so they may be in your own network."""
    sites = [_host_and_port(address) for address in addresses.values()]
    return tuple(
        Allow(host=host, port=port, at=_pinned(host, port)) for host, port in dict.fromkeys(sites)
    )


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        url = urlsplit(address)
        host = str(url.hostname or "").rstrip(".")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (ValueError, KeyError):
        host, port = "", 0
    if not host:
        raise ConfigError(
            "webarena.addresses",
            f"{address[:200]!r} is not the address of a site",
            "write http://HOST or http://HOST:PORT",
        )
    return host, port


def _pinned(host: str, port: int) -> str:
    """`address:port` of a host in your own network; empty for a public one.

    Link-local addresses are never pinned: clouds serve credentials there, and nobody serves sites.
    """
    try:
        found = [ipaddress.ip_address(address) for address in resolve(host, port)]
    except (OSError, ValueError) as error:
        raise WorldError(
            "webarena.addresses", f"{host}:{port} cannot be resolved: {error}", "correct its name"
        ) from error
    private = [address for address in found if not (address.is_global or address.is_link_local)]
    # In a fixed order, so that worlds of the same sites share a browser. Sites in containers
    # often listen on IPv4 only.
    first = min(private, key=lambda address: (address.version, str(address)), default=None)
    return f"{first}:{port}" if first else ""
