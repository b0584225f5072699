"""`python -m terrella.cli`."""

from terrella.cli import main

main()
