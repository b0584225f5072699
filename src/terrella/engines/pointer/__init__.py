"""A small engine for policies that point at what is offered: play, critic, actor, judge; exact on one core."""
