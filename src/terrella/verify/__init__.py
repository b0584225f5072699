"""Verifiers: how a reply is compared with the truth, by kind of thing compared."""
