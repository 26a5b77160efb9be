"""A request's way: traffic, prefill queue, line, relay, hand-over, main decode, latency."""
