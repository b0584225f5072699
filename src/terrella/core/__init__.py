"""The words everything else is written in; imports nothing above it, and no torch."""
