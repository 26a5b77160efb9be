"""Request logs: who asked for how many tokens when, and how many of them were cached."""
