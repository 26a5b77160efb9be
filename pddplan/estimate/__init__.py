"""One instance, or one deployment of prefill and decode workers, at one operating point: times, rates, memory, ops."""
