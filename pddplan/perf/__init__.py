"""Time of a prefill pass and of a decode step: roofline, efficiency curves, collectives, memory."""
