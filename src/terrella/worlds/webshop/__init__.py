"""WebShop as a world."""

from terrella.worlds.webshop.env import WebShop

__all__ = ["WebShop"]
