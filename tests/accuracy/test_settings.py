"""What published runs did that their tables don't say: rules of runs.yaml, batches of recipes.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.accuracy.layouts import Layout
from pddplan.accuracy.recipes import Deployment, decode_batch, layouts_named
from pddplan.accuracy.settings import Run, settings_of
from pddplan.perf.instance import Parallelism

RUN = Run(engine="trtllm", runs="inferencex", mode="aggregated", lengths="1024/1024", tp="1", attention="dp")
DEP32 = Deployment("trtllm", "nvidia-gb300-nvl72", "nvfp4", "1024/8192", "1x2 1xdep32")


def test_prompts_wait_for_a_full_set_of_attention_ranks() -> None:
    assert settings_of(RUN)["poll_steps"] == 60
    for other in ({"attention": "tp"}, {"mode": "disaggregated"}, {"runs": "nvidia"}, {"engine": "vllm"}):
        assert "poll_steps" not in settings_of(replace(RUN, **other))


@pytest.mark.parametrize(
    ("tp", "lengths", "held"), [("4", "1024/1024", 20), ("8", "1024/1024", 0), ("4", "1024/8192", 0)]
)
def test_prompts_are_held_back_in_small_instances(tp: str, lengths: str, held: int) -> None:
    run = replace(RUN, family="llama-3.1", attention="tp", tp=tp, lengths=lengths)
    assert settings_of(run).get("batch_wait_steps", 0) == held


def test_the_batch_of_a_recipe_by_layout_and_users() -> None:
    assert [decode_batch(DEP32, users) for users in (1024, 4096, 8192)] == [32, 128, 256]
    assert decode_batch(DEP32, 512) is None  # several recipes, none lists these users
    assert decode_batch(replace(DEP32, layouts="1x2 15xtep4"), 512) == 4  # the only one of its layout
    assert decode_batch(replace(DEP32, engine="sglang"), 1024) is None


def test_layouts_by_workers_and_chips() -> None:
    ranks, one = Layout(Parallelism(dp=32, ep=32), 1), Layout(Parallelism(tp=8, ep=8), 9)
    assert layouts_named(one, ranks) == "9x8 1xdep32"
    assert layouts_named(ranks, one) == "1x32 9xtep8"
