"""Bad scenarios, one fault each: kind, text, line, key, words of the message, words of the fix."""

# ruff: noqa: E501  (a table is read in rows)

from __future__ import annotations

from tests.spec.scenarios import SMALL


def changed(*pairs: tuple[str, str]) -> str:
    text = SMALL
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


WORK = "".join(f"{line}\n" for line in SMALL.splitlines()[4:8])  # what stands below workload:


def mixed(*pairs: tuple[str, str]) -> str:
    """``SMALL`` with two workloads, on lines 5 and 6, changed."""
    agents = "- {name: agents, request_rate_per_s: 4, prompt_tokens: 64K, output_tokens: 1K}"
    chat = "- {name: chat, request_rate_per_s: 10, prompt_tokens: 4K, output_tokens: 300}"
    text = changed(("workload:", "workloads:"), (WORK, f"  {agents}\n  {chat}\n"))
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


WITHOUT_LINKS = SMALL[: SMALL.index("links:")] + SMALL[SMALL.index("slo:") :]
WITHOUT_PRICES = SMALL[: SMALL.index("prices:")]
H20 = "chip: nvidia-h20-96g"
HIT = "{mean: 0.90, share_above_95: 0.75}"
LINE = "tiers: [{gbit_per_s: 10, usd_per_hour: 2.3}, {gbit_per_s: 100, usd_per_hour: 23}]"

# (kind, text, line, key, words of the message, words of the fix)
KINDS: list[tuple[str, str, int | None, str, str, str]] = [
    ("unknown key", changed(("model:", "modle:")), 2, "modle", "unknown key 'modle'", "'model'"),
    ("unknown key", changed(("max: 96", "maximum: 96")), 12, "sites[0].chips[0].maximum", "unknown key", "'max'"),
    ("unit missing", changed(("ttft_s:", "ttft:")), 22, "slo.ttft", "unknown key 'ttft'", "'ttft_s'"),
    ("unit of another", changed(("tpot_ms:", "itl_ms:")), 23, "slo.itl_ms", "unknown key", "'tpot_ms'"),
    ("rtt in the value", changed(("rtt_ms: 8", "rtt: 8ms")), 18, "links[0].rtt", "unknown key", "'rtt_ms'"),
    ("misplaced", changed(("rtt_ms: 8", "rtt_ms: 8\n    burstiness: 2")), 19, "links[0].burstiness", "unknown key", "under workload"),
    ("misplaced", changed(("slo:", "rtt_ms: 8\nslo:")), 21, "rtt_ms", "unknown key", "under links[]"),
    ("unknown chip", changed((H20, "chip: nvidia-h20-96")), 15, "sites[1].chips[0].chip", "no chip 'nvidia-h20-96' in the catalogue", "nvidia-h20-96g (alias h20)"),
    ("unknown engine", f"engine: sglan\n{SMALL}", 1, "engine", "no engine 'sglan'", "sglang"),
    ("unknown price list", changed(("prices: {input_usd_per_mtok: 0.55, cached_input_usd_per_mtok: 0.055, output_usd_per_mtok: 2.19}", "prices: deepseek-v5")), 24, "prices", "no listed prices", "deepseek-v"),
    ("wrong unit", changed(("rtt_ms: 8", "rtt_ms: 8ms")), 18, "links[0].rtt_ms", "'8ms' is not a number", "like 8."),
    ("wrong unit", changed(("64K", "64KB")), 6, "workload.prompt_tokens", "'64KB' is not a token count", "64K"),
    ("wrong unit", changed(("max: 96", "max: 96 chips")), 12, "sites[0].chips[0].max", "not a whole number", "like 96."),
    ("percent", changed((HIT, "90%")), 8, "workload.prefix_hit_rate", "'90%'", "0.9"),
    ("percent", changed((HIT, "90")), 8, "workload.prefix_hit_rate", "between 0 and 1, not 90", "0.9"),
    ("currency", changed(("2.00", "$2")), 12, "sites[0].chips[0].usd_per_hour", "'$2'", "write 2"),
    ("quoted number", changed(("rtt_ms: 8", "rtt_ms: '8'")), 18, "links[0].rtt_ms", "is text", "without quotes"),
    ("sign", changed(("usd_per_hour: 1.20", "usd_per_hour: -1.2")), 15, "sites[1].chips[0].usd_per_hour", "too small", "at least 0"),
    ("sign", changed(("request_rate_per_s: 10", "request_rate_per_s: 0")), 5, "workload.request_rate_per_s", "too small", "above 0"),
    ("sign", changed(("output_tokens: 1K", "output_tokens: -5")), 7, "workload.output_tokens", "too small", "at least 1"),
    ("type", changed(("max: 96", "max: true")), 12, "sites[0].chips[0].max", "true is not a whole number", ""),
    ("type", changed(("request_rate_per_s: 10", "request_rate_per_s: yes")), 5, "workload.request_rate_per_s", "'yes' is not a number", ""),
    ("type", changed(("request_rate_per_s: 10", "request_rate_per_s: true")), 5, "workload.request_rate_per_s", "true is not a number", ""),
    ("type", changed(("streams: 1", "streams: 1.5")), 19, "links[0].streams", "1.5 is not a whole number", ""),
    ("type", changed(("[main_decode]", "main_decode")), 14, "sites[1].roles", "not a list", "[main_decode]"),
    ("type", changed(("slo:\n  ttft_s: {p50: 3, p90: 8, p99: 20}\n  tpot_ms: {p90: 50}", "slo: fast")), 21, "slo", "not a mapping", ""),
    ("type", changed(("name: west", "name: 7")), 13, "sites[1].name", "7 is not text", ""),
    ("type", changed(("prompt_tokens: 64K", "prompt_tokens: true")), 6, "workload.prompt_tokens", "true is not a token count", ""),
    ("no value", changed(("request_rate_per_s: 10", "request_rate_per_s:")), 5, "workload.request_rate_per_s", "no value", ""),
    ("nan", changed(("rtt_ms: 8", "rtt_ms: .nan")), 18, "links[0].rtt_ms", "nan is not a finite number", ""),
    ("inf", changed(("2.00", ".inf")), 12, "sites[0].chips[0].usd_per_hour", "inf is not a finite number", ""),
    ("inf", changed(("2.00", "1e999")), 12, "sites[0].chips[0].usd_per_hour", "inf is not a finite number", ""),
    ("inf", changed(("64K", ".inf")), 6, "workload.prompt_tokens", "not a finite number", ""),
    ("0 chips", changed(("max: 96", "max: 0")), 12, "sites[0].chips[0].max", "0 is too small", "at least 1"),
    ("no limit", changed(("max: 96, ", "")), 12, "sites[0].chips[0].max", "is missing", "max: 64"),
    ("hit rate 1.2", changed(("0.90", "1.2")), 8, "workload.prefix_hit_rate.mean", "between 0 and 1, not 1.2", "like 0.9"),
    ("share against mean", changed(("0.90", "0.5")), 8, "workload.prefix_hit_rate.mean", "contradicts share_above_95 0.75", "between 0.7294 and 0.9669"),
    ("mean out of reach", changed((HIT, "{mean: 0.99}")), 8, "workload.prefix_hit_rate", "out of reach", "at most 0.9725"),
    ("shares above 1", changed((HIT, "{mean: 0.9, share_above_95: 0.75, zero_share: 0.3}")), 8, "workload.prefix_hit_rate", "more than 1", ""),
    ("goodput above 1", changed(("rtt_ms: 8", "rtt_ms: 8\n    goodput: 1.2")), 19, "links[0].goodput", "1.2 is too large", "at most 1"),
    ("utilisation above 1", f"max_utilization: 1.2\n{SMALL}", 1, "max_utilization", "1.2 is too large", "at most 1"),
    ("efficiency above 1.05", changed((H20, "chip: {name: x, bf16_tflops: 1, memory_gb: 1, memory_gb_per_s: 1, interconnect_gb_per_s: 1, efficiency: 1.2}")), 15, "sites[1].chips[0].chip.efficiency", "efficiency of 1.2", "1.05"),
    ("inline chip", changed((H20, "chip: {name: x, bf16_tflops: 400, memory_gb: -96, memory_gb_per_s: 9, interconnect_gb_per_s: 9}")), 15, "sites[1].chips[0].chip.memory_gb", "above 0", ""),
    ("chip file", changed((H20, "chip: none.yaml")), 15, "sites[1].chips[0].chip", "'none.yaml': no such file", "beside the scenario"),
    ("quantiles fall", changed(("output_tokens: 1K", "output_tokens: {p50: 2K, p95: 1K}")), 7, "workload.output_tokens", "quantiles fall", ""),
    ("one quantile", changed(("output_tokens: 1K", "output_tokens: {p50: 2K}")), 7, "workload.output_tokens", "1 quantiles", "Two"),
    ("quantile name", changed(("output_tokens: 1K", "output_tokens: {p50: 2K, p0: 3K}")), 7, "workload.output_tokens.p0", "unknown key 'p0'", ""),
    ("far apart", changed(("output_tokens: 1K", "output_tokens: {p50: 1, p51: 1M}")), 7, "workload.output_tokens", "too far apart", ""),
    ("mean without cv", changed(("output_tokens: 1K", "output_tokens: {mean: 2K}")), 7, "workload.output_tokens", "'cv' is missing", "{mean: 8K, cv: 0.5}"),
    ("weights", changed(("output_tokens: 1K", "output_tokens: {histogram: {1K: -1, 2K: 2}}")), 7, "workload.output_tokens.histogram.1K", "too small", "above 0"),
    ("slo without quantile", changed(("tpot_ms: {p90: 50}", "tpot_ms: 50")), 23, "slo.tpot_ms", "no quantile", "{p99: 50}"),
    ("slo quantile", changed(("p90: 50", "q90: 50")), 23, "slo.tpot_ms.q90", "unknown quantile", "p1 to p99"),
    ("choice", changed(("[main_decode]", "[main_decod]")), 14, "sites[1].roles[0]", "not known here", "main_decode"),
    ("format", changed(("kv_cache: fp8", "kv_cache: int8")), 3, "precision.kv_cache", "not known here", "bf16, fp8"),
    ("tiers", changed((LINE, "tiers: []")), 20, "links[0].tiers", "no entries", "at least 1"),
    ("tier price", changed((LINE, "tiers: [{gbit_per_s: 10}]")), 20, "links[0].tiers[0]", "without a price", "usd_per_hour"),
    ("price per GB", changed(("usd_per_hour: 2.3}", "usd_per_gb: {from_east: 1}}")), 20, "links[0].tiers[0].usd_per_gb.from_east", "not an end", "from_north"),
    ("hours", changed(("output_tokens: 1K", "output_tokens: 1K\n  hourly_load: [1, 2]")), 8, "workload.hourly_load", "2 entries", "24"),
    ("hours", changed(("output_tokens: 1K", f"output_tokens: 1K\n  hourly_load: {[0] * 24}")), 8, "workload.hourly_load", "all hours are 0", ""),
    ("absurd chip", changed((H20, "chip: {name: x, bf16_tflops: 400, memory_gb: 1e300, memory_gb_per_s: 9, interconnect_gb_per_s: 9}")), 15, "sites[1].chips[0].chip.memory_gb", "too large", ""),
    ("missing line", WITHOUT_LINKS, 13, "links", "no link between north (prefill, relay_decode) and west (main_decode)", "between: [north, west]"),
    ("no decode", changed(("[main_decode]", "[relay_decode]")), 9, "sites", "no site has the role main_decode", "aggregated"),
    ("link to nowhere", changed(("[north, west]", "[north, wets]")), 17, "links[0].between[1]", "no site is named 'wets'", "'west'"),
    ("link to itself", changed(("[north, west]", "[north, north]")), 17, "links[0].between", "joins two sites", ""),
    ("same name", changed(("name: west", "name: north")), 13, "sites[1].name", "two sites are named 'north'", ""),
    ("owned above max", changed(("max: 96", "max: 96, owned: 100")), 12, "sites[0].chips[0].owned", "more than max, 96", ""),
    ("foreign role", changed(("max: 96", "max: 96, instances: {main_decode: 2}")), 12, "sites[0].chips[0].instances.main_decode", "has no role", ""),
    ("measured nothing", changed(("max: 96", "max: 96, measured: {prefill: {chips_per_instance: 8}}")), 12, "sites[0].chips[0].measured.prefill", "no rate", "tokens_per_s"),
    ("kv of a chip", changed(("max: 96", "max: 96, precision: {kv_cache: int8}")), 12, "sites[0].chips[0].precision.kv_cache", "int8", "bf16"),
    ("kv beside the chip", changed(("max: 96", "max: 96, kv_cache: fp8")), 12, "sites[0].chips[0].kv_cache", "unknown key", "precision"),
    ("no exchange", changed(("usd_per_hour: 2.00", "cny_per_hour: 14")), 12, "sites[0].chips[0].cny_per_hour", "exchange rate", "cny_per_usd"),
    ("price twice", changed(("usd_per_hour: 2.00", "usd_per_hour: 2, usd_per_month: 5")), 12, "sites[0].chips[0].usd_per_month", "same price", ""),
    ("price in the file's spelling", changed(("usd_per_hour: 2.00", "usd_per_month: -5")), 12, "sites[0].chips[0].usd_per_month", "too small", ""),
    ("capex", changed(("usd_per_hour: 2.00", "usd_per_hour: {capex_usd: 25000}")), 12, "sites[0].chips[0].usd_per_hour", "needs years", "years: 4"),
    ("no price", changed((H20, "chip: {name: x, bf16_tflops: 400, memory_gb: 96, memory_gb_per_s: 2000, interconnect_gb_per_s: 200}"), (", usd_per_hour: 1.20", "")), 15, "sites[1].chips[0].usd_per_hour", "no price", "usd_per_month"),
    ("token prices", changed(("output_usd_per_mtok: 2.19", "")), 24, "prices.output_usd_per_mtok", "is missing", ""),
    ("duplicate key", changed(("model: deepseek-v3.2", "model: a\nmodel: b")), 3, "model", "given twice, first on line 2", ""),
    ("tag", changed(("deepseek-v3.2", "!!python/name:os.system x")), 2, "model", "tags are not read", ""),
    ("tag", changed(("deepseek-v3.2", "!secret x")), 2, "model", "tags are not read", ""),
    ("third site without a line", changed(("links:", "  - {name: east, roles: [prefill], chips: [{chip: h20, max: 8}]}\nlinks:")), 16, "links", "no link between west (main_decode) and east (prefill)", "between: [west, east]"),
    ("trace", changed(("output_tokens: 1K", "output_tokens: 1K\n  trace: t.jsonl")), 8, "workload.trace", "not supported yet", ""),
    ("empty list", changed(("workload:", "workloads: []\n#"), (WORK, "")), 4, "workloads", "holds no entries", "one workload"),
    ("workload twice", changed(("sites:", "workloads: [{request_rate_per_s: 1, prompt_tokens: 1K, output_tokens: 1K}]\nsites:")), 9, "workloads", "stands beside workload", "one of them"),
    ("no name", mixed(("name: chat, ", "")), 6, "workloads[1].name", "is missing", "name: chat"),
    ("same name", mixed(("name: chat", "name: agents")), 6, "workloads[1].name", "two workloads are named 'agents', see workloads[0].name (line 5)", "its own name"),
    ("lengths of the second", mixed((", output_tokens: 300", "")), 6, "workloads[1].output_tokens", "is missing", "output_tokens: 1K"),
    ("trace in the second", mixed(("output_tokens: 300", "output_tokens: 300, trace: t.jsonl")), 6, "workloads[1].trace", "not supported yet", "prompt_tokens"),
    ("slo at both places", mixed(("output_tokens: 300", "output_tokens: 300, slo: {ttft_s: {p99: 2}}")), 6, "workloads[1].slo", "here and at top level", "one of them"),
    ("two caches", mixed(("output_tokens: 1K", "output_tokens: 1K, prefix_cache: sticky"), ("output_tokens: 300", "output_tokens: 300, prefix_cache: affine")), 6, "workloads[1].prefix_cache", "is affine, but workloads[0].prefix_cache (line 5) says sticky: one deployment has one", "same in both"),
    ("two first tokens", mixed(("output_tokens: 1K", "output_tokens: 1K, first_token: on_prefill"), ("output_tokens: 300", "output_tokens: 300, first_token: after_transfer")), 6, "workloads[1].first_token", "workloads[0].first_token (line 5) says on_prefill", "same in both"),
    ("a filter for one", mixed(("output_tokens: 300", "output_tokens: 300, output_forecast: {precision: 0.9}")), 6, "workloads[1].output_forecast", "workloads[0] (line 5) has none: one filter", "or none"),
    ("two forecasts", mixed(("output_tokens: 1K", "output_tokens: 1K, output_forecast: {recall: 0.9}"), ("output_tokens: 300", "output_tokens: 300, output_forecast: {recall: 0.8}")), 6, "workloads[1].output_forecast", "workloads[0].output_forecast (line 5) says another", "the same in each"),
    ("pinned for one", mixed(("output_tokens: 1K", "output_tokens: 1K, decode_prefix_hit_rate: 0.8")), 6, "workloads[1].decode_prefix_hit_rate", "is missing, but workloads[0].decode_prefix_hit_rate (line 5) pins it", "in each, or in none"),
    ("nothing at the peak", mixed(("request_rate_per_s: 10", "request_rate_per_s: 0.5"), ("output_tokens: 1K", f"output_tokens: 1K, hourly_load: {[1] * 12 + [2] + [1] * 11}"), ("output_tokens: 300", f"output_tokens: 300, hourly_load: {[1] * 12 + [0] + [0.1] * 11}")), 6, "workloads[1].hourly_load", "leaves 0 requests/s in hour 12", "above 0"),
    ("profit without prices", f"objective: profit\n{WITHOUT_PRICES}", 1, "objective", "profit needs prices", "Add prices"),
    ("profit without prices", f"objective: {{profit: {{max_usd_per_hour: 5}}}}\n{WITHOUT_PRICES}", 1, "objective", "profit needs prices", "goodput"),
    ("two objectives", f"objective: {{profit: {{}}, goodput: {{}}}}\n{SMALL}", 1, "objective", "more than one", "Keep one"),
    ("no workload", "model: m\nsites: [{name: a, chips: [{chip: h20, max: 8}]}]", 1, "workload", "is missing", "request_rate_per_s"),
    ("no lengths", changed(("  output_tokens: 1K\n", "")), 4, "workload.output_tokens", "is missing", "output_tokens: 1K"),
    ("empty file", "", None, "", "is empty", "pddplan init"),
    ("only comments", "# nothing\n", None, "", "is empty", "pddplan init"),
    ("a list", "- a\n", 1, "", "holds a list", "keys"),
    ("a word", "hello", 1, "", "holds 'hello'", "keys"),
    ("syntax", "a: [1,\nb: 2", 2, "", "not valid YAML", ""),
    ("tabs", "workload:\n\trequest_rate_per_s: 10", 2, "", "not valid YAML", "tabs"),
    ("binary", "model: \x00\x01", None, "", "not text", "UTF-8"),
    ("two documents", "a: 1\n---\nb: 2", None, "", "more than one YAML document", ""),
    ("self alias", "x: &x {a: *x}", 1, "x.a", "contains itself", ""),
    ("lost alias", "x: *x", 1, "", "not valid YAML|not defined", ""),
    ("nesting", "a: " + "[" * 60 + "]" * 60, 1, "", "nested more than 50 deep", ""),
    ("nesting", "a: " + "[" * 100_000, 1, "", "nest", "6 deep"),
    ("nested JSON", '{"a":' * 60 + "1" + "}" * 60, 1, "", "nested more than 50 deep", ""),
    ("bomb", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)), None, "", "expands to more than 50,000", ""),
    ("deep by aliases", "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(80)), None, "", "nested more than 50 deep", ""),
]  # fmt: skip
