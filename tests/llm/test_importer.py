"""config.json -> card: the released files give the catalogue's numbers, small ones by hand, and what is refused."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pddplan.errors import InputError
from pddplan.llm.architectures import architectures
from pddplan.llm.card_text import card_json, card_yaml
from pddplan.llm.cards import parse_card
from pddplan.llm.catalogue import find_model, load_model
from pddplan.llm.describe import describe
from pddplan.llm.importer import Imported, import_config
from pddplan.llm.kv import kv_bytes_per_token
from pddplan.llm.model_file import model_name, read_config, read_model
from pddplan.llm.parameters import parameters
from pddplan.llm.types import Indexer, LanguageModel
from pddplan.spec.issues import format_key
from tests.llm.configs import (
    ALL,
    BLOCK_SPARSE,
    COMPRESSED,
    DEEPSEEK,
    GPT_OSS,
    KIMI_LINEAR,
    LLAMA,
    NEMOTRON,
    QWEN_NEXT,
    STEP,
)
from tests.reference import reference_dir

_FOLDER = Path(os.environ.get("PDDPLAN_REFERENCE_DATA", "")) / "models" / "hf_configs"
RELEASED = sorted(p.stem for p in _FOLDER.glob("*.json")) if "PDDPLAN_REFERENCE_DATA" in os.environ else ["(unset)"]


def _import(config: dict[str, Any]) -> Imported:
    found = import_config(config, "tiny", "made up")
    assert isinstance(found, Imported), found
    return found


def _anonymous(model: LanguageModel) -> LanguageModel:
    return replace(model, id="", name="", aliases=(), sources=())


# ---------------------------------------------------------------- released files


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config_gives_the_cards_numbers(name: str) -> None:
    """Every field, so every figure: layers, formats, prediction modules. Names and sources are the card's own."""
    path = reference_dir() / "models" / "hf_configs" / f"{name}.json"
    model, card = read_model(path), load_model(name)
    assert _anonymous(model) == _anonymous(card)
    assert replace(describe(model), id="", name="", aliases=(), sources=()) == replace(
        describe(card), id="", name="", aliases=(), sources=()
    )


@pytest.mark.skipif("PDDPLAN_REFERENCE_DATA" not in os.environ, reason="PDDPLAN_REFERENCE_DATA is not set")
def test_all_released_configs_are_tried() -> None:
    assert len(RELEASED) == 41


@pytest.mark.skipif("PDDPLAN_REFERENCE_DATA" not in os.environ, reason="PDDPLAN_REFERENCE_DATA is not set")
def test_every_repository_of_the_reference_is_a_name() -> None:
    text = (reference_dir() / "models" / "models.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for entry in yaml.load(text, Loader=loader)["models"]:
        repository = entry["hf_repo"].split(" ")[0]
        for name in (repository, repository.lower(), f"{repository}-FP8", f"mirror/{repository}-NVFP4"):
            assert find_model(name) == entry["id"], name


# ---------------------------------------------------------------- small files, by hand


def test_a_dense_model_by_hand() -> None:
    """2 layers: attention 64*(64 + 2*2*16 + 64), SwiGLU 3*64*128, 2 norms; embedding, head, final norm."""
    model = _import(LLAMA).model
    layer = 64 * (64 + 2 * 2 * 16 + 64) + 3 * 64 * 128 + 2 * 64
    assert parameters(model).total == 2 * layer + 2 * 1000 * 64 + 64
    assert kv_bytes_per_token(model, "bf16") == 2 * 2 * (16 + 16) * 2
    assert (model.id, model.max_context, model.tied_embeddings) == ("tiny", 4096, False)


def test_latent_attention_with_experts_by_hand() -> None:
    model = _import(DEEPSEEK).model
    dense, sparse = model.groups
    assert (dense.count, sparse.count) == (1, 1)
    assert (dense.feed_forward.kind, sparse.feed_forward.shared_intermediate) == ("dense", 2 * 32)
    assert kv_bytes_per_token(model, "bf16") == 2 * (16 + 8) * 2
    assert (model.native.experts, model.native.other_linear, model.native.rest) == ("fp8_b128", "fp8_b128", "bf16")
    mla = 64 * 32 + 32 * 4 * 24 + 64 * 24 + 16 * 4 * 32 + 4 * 16 * 64 + 32 + 16
    experts = (8 + 2) * 3 * 64 * 32 + 64 * 8
    assert model.mtp_parameters == mla + experts + 2 * 64 + 2 * 64**2 + 3 * 64


def test_hybrids_windows_and_blocks_by_hand() -> None:
    linear, full = _import(QWEN_NEXT).model.groups
    assert (linear.count, linear.attention.kind, full.count, full.attention.output_gate) == (3, "gdn", 1, True)
    window, whole = _import(GPT_OSS).model.groups
    assert (window.attention.window, whole.attention.window, whole.attention.sinks) == (128, None, True)
    assert _import(GPT_OSS).model.native.other_linear == "bf16"
    kinds = [(g.attention.kind, g.feed_forward.kind) for g in _import(NEMOTRON).model.groups]
    assert kinds == [("mamba2", "none"), ("none", "dense"), ("gqa", "none"), ("none", "moe")]
    assert {g.feed_forward.matrices for g in _import(NEMOTRON).model.groups if g.attention.kind == "none"} == {2}
    delta, latent = _import(KIMI_LINEAR).model.groups
    assert (delta.attention.kind, delta.attention.k_dim, latent.attention.q_lora_rank) == ("kda", 8, None)


def test_compressed_attention_from_either_list_of_layers() -> None:
    model = _import(COMPRESSED).model
    kinds = [(g.attention.kind, g.attention.compress_ratio, g.attention.indexer is not None) for g in model.groups]
    assert kinds == [("hca", 128, False), ("csa", 4, True), ("swa", 0, False)]
    assert model.extra_parameters == 16 * 64 + 5
    native = model.native
    assert (native.experts, native.other_linear, native.rest) == ("mxfp4", "fp8_b128_ue8m0", "bf16")
    names = ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"]
    assert _import(_changed(COMPRESSED, compress_ratios="(gone)", layer_types=names)).model == model


def test_block_sparse_layers_and_shared_indexes() -> None:
    dense, sparse = _import(BLOCK_SPARSE).model.groups
    assert (dense.attention.indexer, dense.feed_forward.intermediate) == (None, 96)
    assert sparse.attention.indexer == Indexer(heads=2, head_dim=8, top_k=4 * 16)
    index = {"model_type": "glm_moe_dsa", "index_n_heads": 2, "index_head_dim": 8, "index_topk": 64}
    listed = _import({**DEEPSEEK, **index, "indexer_types": ["full", "shared"]}).model
    assert [g.attention.indexer.own_cache for g in listed.groups if g.attention.indexer] == [True, False]
    every_second = _import({**DEEPSEEK, **index, "index_topk_freq": 2}).model
    assert every_second == listed


def test_the_text_part_of_a_model_that_sees() -> None:
    found = _import(STEP)
    assert [(g.count, g.feed_forward.kind) for g in found.model.groups] == [(1, "dense"), (2, "moe")]
    assert found.model.groups[0].attention.q_lora_rank == 32
    assert found.model.max_context == 4096
    assert any("images" in note for note in found.notes)


@pytest.mark.parametrize(
    ("recipe", "experts", "other"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128", "int4_g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4_g32", "int4_g32"),
        ({"quant_method": "gptq", "bits": 8}, "int8", "int8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, "nvfp4", "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},)
        + ("int8", "int8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},)
        + ("fp8", "fp8"),
    ],
)
def test_formats_of_the_weights(recipe: dict[str, Any], experts: str, other: str) -> None:
    native = _import({**LLAMA, "quantization_config": recipe}).model.native
    assert (native.experts, native.other_linear, native.rest) == (experts, other, "bf16")


@pytest.mark.parametrize("name", ALL)
def test_a_card_comes_back_as_it_was_written(name: str) -> None:
    found = import_config(ALL[name], "A model: #1", 'path with "quotes" and: colons')
    assert isinstance(found, Imported)
    for text in (card_yaml(found.card), card_json(found.card)):
        assert parse_card(yaml.safe_load(text)) == found.model
    assert max(map(len, card_yaml(found.card).splitlines())) <= 120


@pytest.mark.parametrize("name", ["null", "true", "no", "1e3", "0x1f", "a: b", "- x", "x #y", "é ü", "2026-11-30"])
def test_any_name_survives_the_card(name: str) -> None:
    found = import_config(LLAMA, name, "s")
    assert isinstance(found, Imported)
    assert yaml.safe_load(card_yaml(found.card))["name"] == name


def test_every_family_is_complete() -> None:
    """A family names mixers the cards know, and where its class is to be read."""
    table = architectures()
    for family in table.families.values():
        assert family.source.startswith("https://"), family.name
        for mixer in family.mixers.values():
            assert mixer.kind in {*table.fields, "csa", "hca", "swa", "none"}, family.name


# ---------------------------------------------------------------- what is refused


def _changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    out = {**copy.deepcopy(config), **changes}
    return {key: value for key, value in out.items() if value != "(gone)"}


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        (_changed(LLAMA, model_type="llamma"), "model_type", "no architecture 'llamma' is known. Closest: llama."),
        (_changed(LLAMA, model_type="rwkv7"), "model_type", "Known: "),
        (_changed(LLAMA, model_type=3), "model_type", "no architecture 3"),
        (_changed(LLAMA, model_type="(gone)"), "model_type", "is missing"),
        (_changed(LLAMA, hidden_size="(gone)", hiden_size=64), "hidden_size", "Did you mean hiden_size?"),
        (_changed(LLAMA, hidden_size="64"), "hidden_size", "must be a whole number, not '64'"),
        (_changed(LLAMA, hidden_size=True), "hidden_size", "must be a whole number, not true"),
        (_changed(LLAMA, hidden_size=-64), "hidden_size", "must be from 1 to 1,000,000, not -64"),
        (_changed(LLAMA, hidden_size=10**30), "hidden_size", "Is a digit wrong?"),
        (_changed(LLAMA, hidden_size=float("inf")), "hidden_size", "must be a whole number, not inf"),
        (_changed(LLAMA, hidden_size=[64]), "hidden_size", "not a list"),
        (_changed(LLAMA, hidden_size=66), "num_attention_heads", "doesn't divide hidden_size 66"),
        (_changed(LLAMA, num_key_value_heads=8), "num_key_value_heads", "more than the 4 query heads"),
        (_changed(LLAMA, num_hidden_layers=10**9), "num_hidden_layers", "must be from 1 to 10,000"),
        (_changed(LLAMA, num_hidden_layers=0), "num_hidden_layers", "must be from 1 to 10,000"),
        (_changed(DEEPSEEK, hidden_size=10**6, n_routed_experts=10**6), "model_type", "more than any model has"),
        (_changed(LLAMA, hidden_size=10**6, intermediate_size=10**6, num_hidden_layers=10**4), "model_type", "6e+16"),
        (_changed(LLAMA, tie_word_embeddings="no"), "tie_word_embeddings", "must be true or false"),
        (_changed(LLAMA, torch_dtype="int3"), "torch_dtype", "no dtype 'int3'"),
        (_changed(LLAMA, quantization_config={"quant_method": "magic"}), "quantization_config.quant_method", "'magic'"),
        (_changed(LLAMA, quantization_config=8), "quantization_config", "must be a mapping"),
        (_changed(LLAMA, text_config=[1]), "text_config", "must be a mapping"),
        (_changed(DEEPSEEK, num_experts_per_tok=9), "num_experts_per_tok", "9 is more than the 8 experts"),
        (_changed(DEEPSEEK, n_routed_experts="(gone)"), "n_routed_experts", "It may also be called num_experts"),
        (_changed(DEEPSEEK, kv_lora_rank="(gone)"), "kv_lora_rank", "is missing"),
        (_changed(DEEPSEEK, index_topk=8), "index_n_heads", "is missing"),
        (_changed(GPT_OSS, layer_types=["full_attention"]), "layer_types", "1 entries, but there are 2 layers"),
        (_changed(GPT_OSS, layer_types=["full_attention", "odd"]), "layer_types[1]", "no layer is called 'odd'"),
        (_changed(GPT_OSS, layer_types="(gone)"), "layer_types", "is missing"),
        (_changed(GPT_OSS, layer_types=["full_attention", "linear_attention"]),)
        + ("layer_types[1]", "gpt_oss has no linear layers"),
        (_changed(NEMOTRON, hybrid_override_pattern="M-*X"), "hybrid_override_pattern[3]", "no layer is called 'X'"),
        (_changed(KIMI_LINEAR, linear_attn_config="(gone)"), "linear_attn_config", "is missing"),
        (_changed(KIMI_LINEAR, linear_attn_config={"kda_layers": []}),)
        + ("linear_attn_config.full_attn_layers", "is missing"),
        (_changed(KIMI_LINEAR, linear_attn_config={"full_attn_layers": [1], "kda_layers": [1]}),)
        + ("linear_attn_config.full_attn_layers", "don't name each of the 2 layers once"),
        (_changed(STEP, text_config={**STEP["text_config"], "moe_layers_enum": "1,99"}),)
        + ("text_config.moe_layers_enum", "must list layers from 0 to 2"),
        (_changed(STEP, text_config={**STEP["text_config"], "vocab_size": None}),)
        + ("text_config.vocab_size", "is missing"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], key: str, message: str) -> None:
    found = import_config(config, "tiny", "made up")
    assert isinstance(found, list)
    texts = {format_key(i.where): f"{i.message} {i.fix}" for i in found}
    assert message in texts[key], texts


@pytest.mark.parametrize("name", ALL)
def test_each_field_that_is_taken_away_or_spoiled_is_one_clear_answer(name: str) -> None:
    """Whatever one value is: a card, or problems that name keys; never another exception."""
    for key in ALL[name]:
        for value in ("(gone)", None, "x", -1, 0, 10**40, [], {}, [[]], [None] * 3, 1.5, True, float("nan")):
            found = import_config(_changed(ALL[name], **{key: value}), "tiny", "s")
            assert isinstance(found, Imported) or (found and all(i.message and i.where for i in found)), (key, value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
def test_any_json_in_place_of_values(name: str, data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(ALL[name])), _json, min_size=1, max_size=3))
    found = import_config({**ALL[name], **changes}, "tiny", "s")
    assert isinstance(found, Imported) or found


# ---------------------------------------------------------------- files


def _file(folder: Path, text: str, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("{", "is not valid JSON"),
        ("just text", "is not valid JSON"),
        ('{"model_type": "llama",\n "hidden_size": }', "config.json:2: is not valid JSON"),
        ("[1, 2]", "holds a list, not keys with values. A config.json has keys: model_type"),
        ('{"model_type": "llama", "model_type": "llama"}', "given twice"),
        ("{}", "model_type: is missing"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "nested"),
        ('{"x": "' + "y" * (1 << 20) + '"}', "larger than 1 MiB. A config.json is a few KB"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)
    for read in (lambda: read_config(str(path)), lambda: read_model(path)):
        with pytest.raises(InputError) as caught:
            read()
        assert message in str(caught.value)
        assert len(caught.value.problems) == 1
        assert "pddplan init" not in str(caught.value)


def test_binary_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(InputError, match="is not text"):
        read_config(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        read_config(str(tmp_path / "none.json"))


def test_all_problems_in_one_run_with_their_lines(tmp_path: Path) -> None:
    config = _changed(LLAMA, hidden_size="x", vocab_size=0, num_attention_heads="(gone)")
    path = _file(tmp_path, json.dumps(config, indent=1))
    with pytest.raises(InputError) as caught:
        read_model(path)
    problems = {p.key: p for p in caught.value.problems}
    assert set(problems) == {"hidden_size", "vocab_size", "num_attention_heads"}
    assert problems["hidden_size"].line == 3
    assert problems["hidden_size"].file == str(path)


def test_the_layers_fields_are_checked_where_their_number_is_missing() -> None:
    found = import_config(_changed(DEEPSEEK, num_hidden_layers="(gone)", kv_lora_rank="(gone)"), "tiny", "s")
    assert isinstance(found, list)
    assert {format_key(i.where) for i in found} == {"num_hidden_layers", "kv_lora_rank"}


def test_a_folder_a_config_and_a_card_are_models(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    path = _file(folder, json.dumps(LLAMA))
    want = _anonymous(_import(LLAMA).model)
    assert load_model(str(folder)).id == "tiny-llama"
    found = read_config(str(path))
    card = _file(tmp_path, card_yaml(found.card), "card.yaml")
    as_json = _file(tmp_path, card_json(found.card), "card.json")
    for name in (str(folder), str(path), "Tiny-Llama/config.json", "./Tiny-Llama", str(card), str(as_json)):
        assert _anonymous(load_model(name, str(tmp_path))) == want, name
    with pytest.raises(InputError, match="is a model card already"):
        read_config(str(card))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("some/My-Model/config.json", "My-Model"),
        ("hub/models--org--My-Model-8B/snapshots/0a1b2c/config.json", "My-Model-8B"),
        ("configs/my-model.json", "my-model"),
        ("-", "model"),
    ],
)
def test_the_name_comes_from_the_path(path: str, name: str) -> None:
    assert model_name(Path(path)) == name
