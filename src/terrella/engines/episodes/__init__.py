"""Episodes at the level of tokens: the driver, and where their worlds live."""
