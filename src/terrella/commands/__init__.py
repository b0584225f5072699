"""What each command of the CLI does, one module per command."""
