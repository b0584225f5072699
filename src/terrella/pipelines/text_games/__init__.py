"""World models of recorded text games."""
