"""`python -m terrella`: the same as `terrella`."""

from terrella.cli import main

main()
