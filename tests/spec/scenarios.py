"""Scenario texts that the tests of the loader share."""

from __future__ import annotations

from pddplan.spec.types import Scenario

SMALL = """\
name: small
model: deepseek-v3.2
precision: {weights: fp8, kv_cache: fp8}
workload:
  request_rate_per_s: 10
  prompt_tokens: 64K
  output_tokens: 1K
  prefix_hit_rate: {mean: 0.90, share_above_95: 0.75}
sites:
  - name: north
    roles: [prefill, relay_decode]
    chips: [{chip: nvidia-h800-sxm, max: 96, usd_per_hour: 2.00}]
  - name: west
    roles: [main_decode]
    chips: [{chip: nvidia-h20-96g, max: 128, usd_per_hour: 1.20}]
links:
  - between: [north, west]
    rtt_ms: 8
    streams: 1
    tiers: [{gbit_per_s: 10, usd_per_hour: 2.3}, {gbit_per_s: 100, usd_per_hour: 23}]
slo:
  ttft_s: {p50: 3, p90: 8, p99: 20}
  tpot_ms: {p90: 50}
prices: {input_usd_per_mtok: 0.55, cached_input_usd_per_mtok: 0.055, output_usd_per_mtok: 2.19}
"""

# every key of the contract that this version serves
EVERYTHING = """\
name: everything
model: deepseek-v3.2
precision: {weights: fp8, kv_cache: fp8}
engine: {name: sglang, chunk_tokens: 8K, step_overhead_ms: 4, layer_overhead_us: 30, router_delay_ms: 2,
  memory_fraction: 0.88, reserve_gb: 3, max_batch: 256, mtp_accepted_tokens: 1.8, tail_merge: cut,
  memory_covers: static, exchange_gb: 1, sampler_bytes_per_logit: 10, workspace_gb: 0.1, equal_pages: true,
  decode_prefix_sharing: false, overlap_expert_communication: true, expert_imbalance: 1.2, context_sigma: 0.5,
  launch_share: 0.6, expert_layer_overhead_us: 11, request_overhead_us: 12, poll_steps: 10, batch_wait_steps: 4,
  first_output_ms: 30,
  first_output_steps: 2, expert_first_output_us: 900, prompt_factor: 1.1, handoff_ms: 70, handoff_steps: 3,
  expert_kernel: own}
exchange: {cny_per_usd: 7.3}
objective: {goodput: {max_cny_per_hour: 3650}}
spares: {prefill: 1}
max_utilization: {prefill: 0.9}
workload:
  name: agents
  request_rate_per_s: 10
  prompt_tokens: {p50: 32K, p95: 128K}
  output_tokens: {mean: 1000, cv: 0.5}
  prefix_hit_rate: {mean: 0.8, share_above_95: 0.5, zero_share: 0.05}
  decode_prefix_hit_rate: 0.85
  burstiness: 1.5
  prefix_cache: sticky
  first_token: on_prefill
  hourly_load: [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0.4]
  sessions: {turns: 12, seconds_between_turns: {p50: 10, p90: 100}}
  output_forecast: {precision: 0.9, recall: 0.8}
sites:
  - name: north
    roles: [prefill, relay_decode, main_decode, aggregated]
    chips:
      - chip: huawei-ascend-910c
        max: 384
        owned: 128
        cny_per_month: 7993.5
        buy_in: 16
        precision: {weights: int8}
        parallelism: {tp: [16, 8], ep: 32}
        instances: {prefill: 4}
        measured:
          prefill: {chips_per_instance: 8, tokens_per_s: 73700, cached_counted: true,
            ttft_s: {1K: 0.44, 8K: 0.72, 32K: 1.84, 128K: 7.4}}
          main_decode: {chips_per_instance: 8, tokens_per_s: 14800, batch: 256, tpot_ms: 47}
      - {chip: h20, max: 64, usd_per_hour: {capex_usd: 35040, years: 4, all_in_kw: 1.4}}
    cache: {host_gb_per_chip: 128, host_gb_per_s: 25, remote_tb: 10, remote_gb_per_s: 6, usd_per_tb_hour: 0.5}
    power: {max_kw: 900, usd_per_kwh: 0.08, pue: 1.2}
  - name: west
    chips:
      - chip: {name: x, bf16_tflops: 400, memory_gb: 96, memory_gb_per_s: 2000, interconnect_gb_per_s: 200}
        max: 64
        usd_per_year: 8760
links:
  - between: [north, west]
    rtt_ms: 8
    goodput: 0.85
    shared_with_others: 0.2
    streams: 4
    stream_gbit_per_s: 2.0
    max_lines: 3
    tiers:
      - {gbit_per_s: 100, usd_per_month: 14600, usd_per_gb: {from_north: 0.02, from_west: 0}}
      - {gbit_per_s: 10, usd_per_hour: 2.3, burst_95: {commit_gbit_per_s: 2, usd_per_gbit_month: 73}}
slo: {ttft_s: {p99: 20}, tpot_ms: {p90: 50}, pause_ms: {p99.9: 500}, e2e_s: {p90: 60}, within: 0.95}
prices: {input_usd_per_mtok: 0.55, cached_input_usd_per_mtok: 0.055, output_cny_per_mtok: 14.6}
"""


def names(scenario: Scenario) -> dict[str, str]:
    return {a.name: a.source for a in scenario.assumptions}
