"""Made-up simulations for the tests of reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pddplan.simulate.records import Growth, Interval, PoolSample, Series, Share, Simulated, Simulation


def simulation() -> Simulation:
    """One that holds."""
    time = np.arange(1.0, 401.0) * 25.0
    wave = 10.0 + 5.0 * np.sin(time / 300.0)
    nothing = np.zeros_like(time)
    late = np.where(time < 50.0, np.nan, 0.01)
    return Simulation(
        requests=93_750,
        seed=1,
        simulated_s=9_375.0,
        warmup_s=625.0,
        warmup_requests=6_250,
        throughput_rps=10.0,
        littles_law_error=2e-15,
        line_bytes_error=1e-12,
        quantiles=(
            Simulated("ttft", 0.5, "all", 2.07, Interval(2.09, 2.02, 2.16), None, 3.0),
            Simulated("ttft", 0.99, "all", 13.5, Interval(13.3, 13.0, 13.6), None, 20.0),
            Simulated("tpot", 0.9, "all", 0.048, Interval(0.0487, 0.0485, 0.049), "a workload with a name", 0.05),
            Simulated("e2e", 0.9, "all", None, Interval(0.0, 0.0, float("inf"))),
            Simulated("ttft", 0.9, "wan", 3.91, Interval(3.9, 3.8, 4.0)),
            Simulated("ttft", 0.99, "main", 0.0, Interval(0.102, 0.0, 0.2)),
        ),
        shares=(
            Share("relay_share", 0.068, 0.067),
            Share("within_slo_share", float("nan"), 0.979),
            Share("line_2_utilization", None, 0.7),
        ),
        pools=(PoolSample("prefill", 3, 0.55, 2.2, None), PoolSample("main_decode", 4, 0.77, 115.0, 0.004)),
        series=Series(
            time, wave, wave / 5, wave * 2, wave / 20, nothing, wave * 40, nothing, wave * 1e11, wave / 4, late
        ),
        notes=("A note that is long enough to be wrapped on a terminal of eighty columns, as notes are.",),
    )


def broken() -> Simulation:
    """One whose p99 breaks its limit."""
    found = simulation()
    late = replace(found.quantiles[1], simulated=Interval(23.1, 22.0, 24.2))
    return replace(found, quantiles=(found.quantiles[0], late, *found.quantiles[2:]))


def overloaded() -> Simulation:
    return replace(simulation(), quantiles=(), growth=Growth(1.7, "main_decode", 0.2))
