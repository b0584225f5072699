"""A small engine for policies that choose among offered actions; exactly repeatable on one core."""
