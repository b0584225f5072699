"""Page world models and web agents from recorded episodes."""
