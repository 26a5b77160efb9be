"""The list of instances a role may run: short, fitting, narrowed by the scenario, with excuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pddplan.errors import Excuse
from pddplan.llm.catalogue import load_model
from pddplan.perf.candidates import candidate_instances, tensor_ranks
from pddplan.perf.instance import Instance, Parallelism
from pddplan.perf.memory import memory_map
from pddplan.spec.types import ChipOffer, ChipPrecision, Precision, Role
from tests.perf.instances import ENGINE, four_number_chip, offer

NATIVE = Precision("native", "bf16")


def found(
    what: ChipOffer, model: str, role: Role = "main_decode", precision: Precision = NATIVE
) -> tuple[list[Instance], list[Excuse]]:
    return candidate_instances(what, load_model(model), ENGINE, precision, role)


def shapes(instances: list[Instance]) -> list[tuple[int, int, int, int]]:
    return [(i.parallelism.tp, i.parallelism.pp, i.parallelism.dp, i.parallelism.ep) for i in instances]


@pytest.mark.parametrize("role", ["prefill", "main_decode", "aggregated"])
@pytest.mark.parametrize(
    ("chip", "model"),
    [
        ("h800", "deepseek-v3"),
        ("h20", "deepseek-v3.2"),
        ("h20", "deepseek-v4-pro"),
        ("h200", "kimi-k2.5"),
        ("h100", "qwen3-235b-a22b"),
        ("gb200", "deepseek-v3"),
        ("910c", "deepseek-v3"),
        ("h100", "llama-3.1-70b"),
        ("l40s", "llama-3.1-8b"),
        ("h20", "qwen3-30b-a3b"),
    ],
)
def test_list_is_short_and_fits(chip: str, model: str, role: Role) -> None:
    instances, _ = found(offer(chip, 96), model, role)
    assert 2 <= len(instances) <= 24
    assert len(set(shapes(instances))) == len(instances)
    tokens = ENGINE.chunk_tokens if role == "prefill" else ENGINE.max_batch
    for one in instances:
        par = one.parallelism
        assert par.chips <= 64
        assert not isinstance(memory_map(one, tokens), Excuse)
        assert par.ep <= par.tp * par.dp
        assert par.chips % one.chip.chips_per_node == 0 or one.chip.chips_per_node % par.chips == 0
    assert [i.parallelism.chips for i in instances] == sorted(i.parallelism.chips for i in instances)


def test_dense_models_have_no_data_parallel_instances() -> None:
    """Two replicas of a dense model are two instances."""
    instances, _ = found(offer("h100"), "llama-3.1-70b")
    assert all(i.parallelism.dp == 1 and i.parallelism.ep == 1 for i in instances)
    assert (4, 1, 1, 1) in shapes(instances)
    assert (8, 1, 1, 1) in shapes(instances)


def test_wide_expert_parallelism_is_on_the_list() -> None:
    decode, _ = found(offer("h800", 256), "deepseek-v3")
    assert {(1, 1, 32, 32), (1, 1, 64, 64), (4, 1, 8, 32)} <= set(shapes(decode))
    prefill, _ = found(offer("h800", 256), "deepseek-v3", "prefill")
    assert (1, 1, 32, 32) in shapes(prefill)


def test_excuses_name_what_does_not_fit() -> None:
    """671 GB of weights on one node of 8 x 80 GB: 84 GB a chip."""
    instances, excuses = found(offer("h800", 8), "deepseek-v3")
    assert instances == []
    memory = [e for e in excuses if e.constraint == "memory" and "tp8" in e.subject]
    assert memory
    assert all(e.value > 84.0 > e.limit and e.unit == "GB per chip" for e in memory)


def test_scenario_pins_a_layout() -> None:
    pinned, _ = found(offer("h800", 288, tp=(1,), ep=(144,)), "deepseek-v3")
    assert shapes(pinned) == [(1, 1, 144, 144)]
    one, _ = found(offer("h100", 64, tp=(8,), pp=(1,)), "llama-3.1-70b")
    assert shapes(one) == [(8, 1, 1, 1)]


def test_scenario_narrows_the_list() -> None:
    wide, _ = found(offer("h20", 128), "deepseek-v3")
    narrow, _ = found(offer("h20", 128, ep=(16, 32)), "deepseek-v3")
    assert {i.parallelism.ep for i in narrow} == {16, 32}
    assert len(narrow) < len(wide) + 8


def test_inventory_limits_the_instance() -> None:
    instances, excuses = found(offer("h20", 16), "deepseek-v3")
    assert max(i.parallelism.chips for i in instances) <= 16
    assert any(e.constraint == "chips" and e.limit == 16 for e in excuses)


def test_offer_precision_overrides_the_scenario() -> None:
    site = replace(offer("h100", 8), precision=ChipPrecision("int8"))
    native, _ = found(offer("h100", 8), "llama-3.1-70b")
    narrow, _ = found(site, "llama-3.1-70b")
    assert min(i.parallelism.chips for i in narrow) < min(i.parallelism.chips for i in native)
    assert {i.weights for i in narrow} == {"int8"}


def test_four_stages_only_where_nothing_else_fits() -> None:
    small = replace(four_number_chip(), memory_bytes=24e9, scale_up_domain=2, chips_per_node=8)
    instances, _ = found(offer(small), "llama-3.1-70b")
    assert instances
    assert {i.parallelism.pp for i in instances} == {4}
    roomy, _ = found(offer("h100"), "llama-3.1-8b")
    assert 4 not in {i.parallelism.pp for i in roomy}


def test_tensor_ranks_divide_the_heads() -> None:
    chip = replace(four_number_chip(), scale_up_domain=64)
    assert tensor_ranks(chip, load_model("llama-3.1-8b")) == [1, 2, 4, 8, 16]
    assert tensor_ranks(four_number_chip(), load_model("llama-3.1-8b")) == [1, 2, 4, 8]


def test_parallelism_counts_chips() -> None:
    par = Parallelism(tp=4, pp=2, dp=8, ep=32)
    assert (par.chips, par.stage_chips, par.expert_tp) == (64, 32, 1)
    assert str(par) == "tp4-pp2-dp8-ep32"
    assert Parallelism(tp=8, ep=1).expert_tp == 8
