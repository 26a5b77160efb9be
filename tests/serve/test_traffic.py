"""Traffic as atoms: means exact, tails with atoms of their own, the definition of the hit mixture."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddplan.serve.traffic import (
    FULL_WORKLOADS,
    HIT_REST_MAX,
    build_atoms,
    hit_atoms,
    lognormal_strata,
    mix_atoms,
    rest_mean,
    strata,
    token_atoms,
)
from pddplan.spec.workload import HitRate, TokenDistribution, Traffic
from tests.serve.worlds import world

untimed = settings(deadline=None)


def hits(mean: float, top: float = 0.0, zero: float = 0.0) -> HitRate:
    return HitRate(mean=mean, share_above_95=top, zero_share=zero, histogram=None, fixed=False)


@untimed
@given(st.floats(0.0, 12.0), st.floats(0.05, 2.0), st.integers(2, 40))
def test_lognormal_strata_keep_the_mean(mu: float, sigma: float, count: int) -> None:
    values, weights = lognormal_strata(mu, sigma, count)
    assert weights.sum() == pytest.approx(1.0)
    assert float(weights @ values) == pytest.approx(math.exp(mu + sigma**2 / 2), rel=1e-9)
    assert np.all(np.diff(values) > 0)


def test_lognormal_strata_against_sampling() -> None:
    """Mean of each stratum, and what the sum misses of the variance."""
    mu, sigma, count = 10.0, 0.8, 10
    values, _ = lognormal_strata(mu, sigma, count)
    drawn = np.sort(np.random.default_rng(1).lognormal(mu, sigma, 2_000_000))
    edges = (strata(count, "high") * drawn.size).astype(int)
    means = [drawn[a:b].mean() for a, b in itertools.pairwise(edges.tolist())]
    assert values == pytest.approx(np.array(means), rel=0.01)


@pytest.mark.parametrize("tail", ["low", "high", "both"])
def test_strata_cover_and_grow_finer(tail: str) -> None:
    edges = strata(20, tail)
    assert edges[0] == 0.0 and edges[-1] == pytest.approx(1.0)
    widths = np.diff(edges)
    assert np.all(widths > 0)
    assert (widths[0] < widths[10]) == (tail in ("low", "both"))
    assert (widths[-1] < widths[10]) == (tail in ("high", "both"))


@untimed
@given(st.floats(0.05, 0.94), st.floats(0.0, 0.9), st.floats(0.0, 0.3), st.integers(12, 60))
def test_hit_atoms_keep_mean_and_shares(rest: float, top: float, zero: float, count: int) -> None:
    if top + zero >= 0.98:
        return
    mean = 0.9725 * top + (1 - top - zero) * rest
    law = hits(mean, top, zero)
    assert rest_mean(law) == pytest.approx(rest)
    values, weights = hit_atoms(law, count)
    assert weights.sum() == pytest.approx(1.0)
    assert float(weights @ values) == pytest.approx(mean, rel=1e-9)
    assert float(weights[values > HIT_REST_MAX].sum()) == pytest.approx(top, abs=1e-9)
    assert float(weights[values == 0.0].sum()) == pytest.approx(zero, abs=1e-9)
    assert np.all((values >= 0) & (values <= 0.995))


def test_hit_mixture_against_sampling() -> None:
    """1-x uniform on [0.005, 0.05] in 75 %, else 0.95 Beta(alpha, 1) of the mean that is left."""
    law = hits(0.90, 0.75)
    rest = (0.90 - 0.9725 * 0.75) / 0.25
    alpha = rest / (0.95 - rest)
    rng = np.random.default_rng(4)
    drawn = np.where(
        rng.random(1_000_000) < 0.75, 1 - rng.uniform(0.005, 0.05, 1_000_000), 0.95 * rng.beta(alpha, 1, 1_000_000)
    )
    values, weights = hit_atoms(law, 48)
    for miss in (0.02, 0.1, 0.3, 0.6):
        assert float(weights[1 - values > miss].sum()) == pytest.approx(float((1 - drawn > miss).mean()), abs=0.02)
    assert float(weights @ (1 - values) ** 2) == pytest.approx(float(((1 - drawn) ** 2).mean()), rel=0.03)


def test_token_atoms_of_each_form() -> None:
    one = token_atoms(TokenDistribution(fixed=7.0, lognormal=None, histogram=None), 10)
    assert (one[0].tolist(), one[1].tolist()) == ([7.0], [1.0])
    some = token_atoms(TokenDistribution(fixed=None, lognormal=None, histogram=((8.0, 1.0), (64.0, 3.0))), 10)
    assert (some[0].tolist(), some[1].tolist()) == ([8.0, 64.0], [0.25, 0.75])
    values, weights = token_atoms(TokenDistribution(fixed=None, lognormal=(3.0, 0.7), histogram=None), 10)
    assert float(weights @ values) == pytest.approx(math.exp(3.0 + 0.245), rel=1e-6)
    narrow = token_atoms(TokenDistribution(fixed=None, lognormal=(3.0, 0.0), histogram=None), 10)
    assert narrow[0].tolist() == [pytest.approx(math.exp(3.0))]


def test_atoms_of_a_workload() -> None:
    workload = world(
        "workload.prompt_tokens={p50: 32K, p95: 96K}", "workload.output_tokens={p50: 400, p95: 2000}"
    ).scenario.workload
    atoms = build_atoms(workload)
    assert atoms.weight.sum() == pytest.approx(1.0)
    assert atoms.hit_rate == pytest.approx(0.90, rel=1e-3)
    assert np.all(atoms.uncached >= 1) and np.all(atoms.cached >= 0) and np.all(atoms.output >= 1)
    sigma = math.log(96 / 32) / 1.6448536269514722
    assert atoms.mean(atoms.prompt) == pytest.approx(32_768 * math.exp(sigma**2 / 2), rel=1e-3)
    pages = build_atoms(workload, 64.0)
    assert np.all(np.mod(pages.cached, 64.0) == 0)
    assert np.all((atoms.cached - pages.cached >= -1e-6) & (atoms.cached - pages.cached < 64.0 + 1.0))


def test_a_mix_keeps_every_workload_s_means() -> None:
    """Rates 1, 2, 3: shares of the requests; each workload's own means; its atoms in its own place."""
    workload = world(
        "workload.prompt_tokens={p50: 32K, p95: 96K}", "workload.output_tokens={p50: 400, p95: 2000}"
    ).scenario.workload
    short = replace(workload, name="short", prompt_tokens=TokenDistribution(fixed=2048.0))
    mix = Traffic((replace(workload, request_rate_per_s=1.0), replace(short, request_rate_per_s=2.0)))
    atoms = mix_atoms(mix)
    assert atoms.parts == pytest.approx((1 / 3, 2 / 3)) and atoms.weight.sum() == pytest.approx(1.0)
    alone = build_atoms(workload)
    assert float(atoms.weights[0] @ atoms.prompt) == pytest.approx(alone.mean(alone.prompt))
    assert float(atoms.weights[1] @ atoms.prompt) == pytest.approx(2048.0)
    assert atoms.by_workload(atoms.prompt).sum() == pytest.approx(atoms.mean(atoms.prompt))
    assert atoms.weight[: alone.weight.size] == pytest.approx(alone.weight / 3)  # two keep the finest strata


def test_many_workloads_have_fewer_atoms_each() -> None:
    workload = world(
        "workload.prompt_tokens={p50: 32K, p95: 96K}", "workload.output_tokens={p50: 400, p95: 2000}"
    ).scenario.workload
    most = build_atoms(workload).weight.size * FULL_WORKLOADS
    for count in (3, 6, 12):
        atoms = mix_atoms(Traffic(tuple(replace(workload, name=str(k)) for k in range(count))))
        assert atoms.weight.size <= most * 1.25 and atoms.workloads == count
        assert float(atoms.weights[-1] @ atoms.prompt) == pytest.approx(atoms.mean(atoms.prompt), rel=1e-9)
        assert atoms.hit_rate == pytest.approx(0.90, rel=2e-3)
        assert atoms.mean(atoms.output) == pytest.approx(build_atoms(workload).mean(build_atoms(workload).output))
