"""WebShop as a text world; see env.py."""

from terrella.worlds.webshop.env import WebShop

__all__ = ["WebShop"]
