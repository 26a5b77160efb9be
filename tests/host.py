"""What lies between kernels and a token, for made-up scenarios: a new fit of the engine profiles doesn't move them."""

from __future__ import annotations

HOST = {
    "step_overhead_ms": 1.5,
    "launch_share": 1,
    "request_overhead_us": 0,
    "expert_layer_overhead_us": 0,
    "first_output_ms": 0,
    "first_output_steps": 0,
    "expert_first_output_us": 0,
    "prompt_factor": 1,
    "handoff_ms": 0,
    "handoff_steps": 0,
}
