"""The shipped points: what they span; and the model on them, which must not get worse.

``PDDPLAN_UPDATE_RECORDED=1`` records the errors of the committed model anew: look at the difference before you commit.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import yaml

from pddplan.accuracy.contract_rows import ADDED
from pddplan.accuracy.published import key_of, published, recorded, recorded_file, simple_groups, worse_than_recorded
from pddplan.accuracy.score import Errors, GroupErrors
from pddplan.accuracy.validation import validate
from pddplan.llm.catalogue import load_model
from pddplan.llm.parameters import parameters
from tests.validation.published_set import selected, shipped
from tests.validation.worst_points import HOW_MANY

HEAD = """\
# MAPE [percent] of the model on the shipped points, by group, metric and confidence. Written by
# PDDPLAN_UPDATE_RECORDED=1 pytest tests/accuracy/test_published.py
"""


def test_what_the_points_span() -> None:
    rows = published().rows
    assert len(rows) >= 100 and all(row.parts and row.measured for row in rows)
    modes = Counter(row.labels.mode for row in rows)
    assert set(modes) == {"aggregated", "disaggregated", "prefill", "decode"} and min(modes.values()) >= 15
    chips = {row.labels.chip.split("-")[1] for row in rows}
    assert chips >= {"a100", "h100", "h200", "h800", "h20", "b200", "b300", "gb200", "gb300", "l40s"}
    assert {row.labels.engine for row in rows} >= {"vllm", "sglang", "trtllm"}
    models = [load_model(row.labels.model) for row in rows]
    kinds = {a.attention.kind for m in models for a in m.groups}
    assert kinds >= {"gqa", "mla"}
    assert {bool(parameters(m).routed_experts) for m in models} == {True, False}


def test_every_point_has_its_source() -> None:
    lines = shipped()
    assert all(x["source"] and x["url"].startswith("https://") and x["confidence"] in ("A", "B") for x in lines)
    assert len({x["id"] for x in lines}) == len(lines)


def test_the_points_follow_the_rule() -> None:
    """Chosen again from the collection: the same lines, but for those kept in view for their error."""
    chosen = {x["id"]: {k: v for k, v in x.items() if v} for x in selected()}
    kept = {x["id"]: {k: v for k, v in x.items() if v and k != "worst"} for x in shipped() if x["id"] in chosen}
    assert kept == chosen
    assert all(x["worst"] == ADDED for x in shipped() if x["id"] not in chosen)


def test_the_ten_worst_are_in_view() -> None:
    assert sum(bool(x["worst"]) for x in shipped()) == HOW_MANY


def test_a_group_that_got_worse_is_named() -> None:
    group = GroupErrors("all", "tpot_ms", "A", None, Errors(9, 21.0, 20.0, 1.0, None))
    crossed = GroupErrors("mode=x,chip=y", "tpot_ms", "A", None, Errors(9, 99.0, 20.0, 1.0, None))
    assert simple_groups((group, crossed)) == (group,)
    assert worse_than_recorded((group,), {"all tpot_ms A": 19.1}) == ()
    assert worse_than_recorded((group,), {"all tpot_ms A": 19.0}) == ("all tpot_ms A: MAPE 21.0 %, recorded 19.0 %",)
    assert worse_than_recorded((group,), {"all ttft_ms A": 19.0}) == ("all ttft_ms A: no longer predicted",)


def test_the_model_is_no_worse_than_recorded() -> None:
    found = validate(published())
    if os.environ.get("PDDPLAN_UPDATE_RECORDED"):
        figures = {key_of(g): round(g.errors.mape, 1) for g in simple_groups(found.groups)}
        recorded_file().write_text(HEAD + yaml.safe_dump({"mape": figures}, sort_keys=True), "utf-8")
    assert worse_than_recorded(found.groups, recorded()) == ()


@pytest.mark.parametrize("metric", ["ttft_ms", "tpot_ms", "prefill_tok_s_per_chip", "decode_tok_s_per_chip"])
def test_each_metric_is_recorded(metric: str) -> None:
    assert f"all {metric} A" in recorded()
