"""Many instances of measured rates: each search takes a moment. The prices pay for a part of the demand."""

from __future__ import annotations

FLEET = """\
name: fleet
model: llama-3.1-8b
workload: {request_rate_per_s: 40, prompt_tokens: 2048, output_tokens: 256, prefix_hit_rate: 0.5}
sites:
  - name: here
    roles: [prefill, main_decode]
    chips:
      - chip: h100
        max: 400
        usd_per_hour: 2
        measured:
          prefill: {chips_per_instance: 8, tokens_per_s: 20000}
          main_decode: {chips_per_instance: 8, tokens_per_s: 3000}
"""
PRICES = "prices: {input_usd_per_mtok: 0.2, cached_input_usd_per_mtok: 0.02, output_usd_per_mtok: 2.4}\n"
