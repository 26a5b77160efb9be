"""Names, cards and their errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pddplan.errors import InputError
from pddplan.llm import catalogue
from pddplan.llm.cards import parse_card
from pddplan.llm.catalogue import closest_models, find_model, load_model, model_ids
from pddplan.llm.describe import describe
from pddplan.llm.types import LanguageModel

REQUIRED = [
    *("deepseek-v3", "deepseek-r1", "deepseek-v3.2", "deepseek-v4-pro", "kimi-k2.5", "qwen3-235b-a22b"),
    *("qwen3-30b-a3b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "gpt-oss-120b", "qwen3-next-80b-a3b"),
    *("kimi-linear-48b-a3b", "nemotron-3-nano-30b-a3b", "qwen3.5-397b-a17b"),
]

CARD: dict[str, Any] = {
    "schema": "pddplan.card/1",
    "id": "tiny",
    "name": "Tiny",
    "hidden": 64,
    "vocab": 1000,
    "tied_embeddings": False,
    "max_context": 4096,
    "native": {"experts": "bf16", "other_linear": "bf16", "rest": "bf16"},
    "groups": [
        {
            "count": 2,
            "attention": {"kind": "gqa", "q_heads": 4, "kv_heads": 2, "head_dim_k": 16, "head_dim_v": 16},
            "feed_forward": {"kind": "moe", "experts": 8, "top_k": 2, "expert_intermediate": 32},
        }
    ],
    "sources": [{"source": "made up", "confidence": "input"}],
}


def test_required_models() -> None:
    assert set(REQUIRED) <= set(model_ids())


@pytest.mark.parametrize("name", model_ids())
def test_every_card_is_sound(name: str) -> None:
    model = load_model(name)
    assert model.id == name
    assert all(url and confidence in ("documented", "secondary", "estimate") for url, confidence in model.sources)
    facts = describe(model)
    assert facts.parameters >= facts.active_parameters > 0
    assert facts.kv_bytes_per_token["bf16"] > facts.kv_bytes_per_token["fp8"] > 0
    assert set(facts.kv_bytes["fp8"]) == {"1K", "8K", "32K", "64K", "128K"}
    assert {"native", "bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"} <= set(facts.weight_bytes)


def test_aliases_belong_to_cards_and_to_one_each() -> None:
    index = yaml.safe_load((Path(catalogue.__file__).parent / "aliases.yaml").read_text("utf-8"))
    assert set(index) == set(model_ids())
    names = [catalogue.plain_name(a) for aliases in index.values() for a in aliases]
    assert len(names) == len(set(names))
    assert not set(names) & {catalogue.plain_name(m) for m in model_ids()}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-R1/V3.1", "deepseek-v3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Llama-3.3-70B", "llama-3.1-70b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("nvidia/Qwen3-32B-NVFP4", "qwen3-32b"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("Kimi-K2-Thinking", "kimi-k2.5"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("MiniMaxAI/MiniMax-M1-80k", "minimax-m1"),
        ("inclusionAI/Ring-2.5-1T", "ring-2.5-1t"),
        ("stepfun-ai/step3", "step-3"),
        ("stepfun-ai/Step-3.5-Flash-FP8", "step-3.5-flash"),
        ("nvidia/Nemotron-H-56B-Base-8K", "nemotron-h-56b"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "nemotron-3-ultra-550b-a55b"),
        ("zai-org/GLM-5.2-FP8", "glm-5.2"),
        ("moonshotai/Kimi-K3", "kimi-k3"),
        ("QWEN3-32B", "qwen3-32b"),
        ("bloom-176b", None),
        ("", None),
    ],
)
def test_names_are_resolved_generously(name: str, model: str | None) -> None:
    assert find_model(name) == model


@given(
    model=st.sampled_from(model_ids()),
    owner=st.sampled_from(["", "org/", "hub/org/"]),
    meta=st.sampled_from(["", "Meta-", "meta-"]),
    suffix=st.sampled_from(["", "-FP8", "-NVFP4", "-Instruct", "-Instruct-FP8", "-instruct-nvfp4"]),
    case=st.sampled_from([str, str.upper, str.title]),
)
def test_any_owner_case_prefix_and_suffix(
    model: str, owner: str, meta: str, suffix: str, case: Callable[[str], str]
) -> None:
    assert find_model(owner + case(meta + model + suffix)) == model


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named as a model: ./ says that the file is meant."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "qwen3-32b"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert load_model("org/qwen3-32b").layers == 64
    for name in ("./qwen3-32b", str(folder), "qwen3-32b/config.json"):
        with pytest.raises(InputError, match="model_type: is missing"):
            load_model(name)


def test_loading_one_card_reads_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    read = catalogue._read

    def spy(path: Path) -> Any:
        opened.append(path.name)
        return read(path)

    monkeypatch.setattr(catalogue, "_read", spy)
    catalogue._catalogue_model.cache_clear()
    load_model("qwen3-32b")
    assert [n for n in opened if n != "aliases.yaml"] == ["qwen3-32b.yaml"]


def test_unknown_names_get_the_closest() -> None:
    assert closest_models("deepsek-v3.2")[0] == "deepseek-v3.2"
    with pytest.raises(
        InputError, match=r"no model 'deepsek-v3\.2' in the catalogue\. Closest: deepseek-v3\.2"
    ) as caught:
        load_model("deepsek-v3.2")
    assert caught.value.problems[0].key == "model"
    with pytest.raises(InputError, match="pddplan model list"):
        load_model("zzzzzz")


def _write(folder: Path, card: Any) -> str:
    (folder / "tiny.yaml").write_text(card if isinstance(card, str) else yaml.safe_dump(card, sort_keys=False))
    return "tiny.yaml"


def test_a_card_of_ones_own(tmp_path: Path) -> None:
    model = load_model(_write(tmp_path, CARD), str(tmp_path))
    assert (model.id, model.layers) == ("tiny", 2)
    assert model == load_model(str(tmp_path / "tiny.yaml"))
    # 2 layers: attention 64*64 + 64*2*32 + 64*64, experts 8*3*64*32, router 64*8, norms 128; plus ends and norm
    assert describe(model).parameters == 2 * (12_288 + 49_152 + 512 + 128) + 2 * 64_000 + 64


def test_a_missing_card(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model card 'none\.yaml'"):
        load_model("none.yaml", str(tmp_path))


def _change(path: str, value: Any) -> dict[str, Any]:
    card = copy.deepcopy(CARD)
    *parents, last = path.split(".")
    here: Any = card
    for part in parents:
        here = here[int(part)] if part.isdigit() else here[part]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return card


@pytest.mark.parametrize(
    ("card", "key", "message"),
    [
        (_change("hiden", 64), "hiden", "Did you mean hidden?"),
        (_change("hidden", None), "hidden", "is missing"),
        (_change("hidden", 0), "hidden", "above 0"),
        (_change("hidden", -1), "hidden", "whole number"),
        (_change("hidden", 6.5), "hidden", "whole number"),
        (_change("hidden", True), "hidden", "whole number"),
        (_change("tied_embeddings", "no"), "tied_embeddings", "true or false"),
        (_change("schema", "pddplan.card/9"), "schema", "must be pddplan.card/1"),
        (_change("groups", []), "groups", "list of layer groups"),
        (_change("groups.0.count", 0), "groups[0].count", "at least 1"),
        (_change("groups.0.attention.kind", "gqaa"), "groups[0].attention.kind", "Did you mean gqa?"),
        (_change("groups.0.attention.kv_heads", None), "groups[0].attention.kv_heads", "above 0 for kind gqa"),
        (_change("groups.0.attention", "gqa"), "groups[0].attention", "must be a mapping"),
        (_change("groups.0.attention.indexer", {"heads": 1}), "groups[0].attention.indexer.top_k", "is missing"),
        (_change("groups.0.feed_forward.top_k", 9), "groups[0].feed_forward.top_k", "more than the 8 experts"),
        (_change("native.rest", "bf17"), "native.rest", "no weight format"),
        (_change("sources", []), "sources", "where the numbers are from"),
        (_change("aliases", [1]), "aliases", "list of names"),
    ],
)
def test_bad_cards_name_file_key_and_line(tmp_path: Path, card: Any, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(_write(tmp_path, card), str(tmp_path))
    problem = next(p for p in caught.value.problems if p.key == key)
    assert message in str(problem)
    assert problem.file.endswith("tiny.yaml")
    assert problem.line is not None


def test_all_problems_in_one_run(tmp_path: Path) -> None:
    card = _change("hidden", -1) | {"vocab": "many", "colour": "red"}
    with pytest.raises(InputError) as caught:
        load_model(_write(tmp_path, card), str(tmp_path))
    assert {p.key for p in caught.value.problems} == {"hidden", "vocab", "colour"}


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "\x00\x01", "just text"])
def test_files_that_are_no_cards(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        load_model(_write(tmp_path, text), str(tmp_path))


def test_parse_card_needs_no_file() -> None:
    assert isinstance(parse_card(CARD, ("small",)), LanguageModel)
    model = parse_card(CARD, ("small",))
    assert isinstance(model, LanguageModel)
    assert model.aliases == ("small",)
