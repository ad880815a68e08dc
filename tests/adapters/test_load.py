"""A swapped Hugging Face model never comes back silently as plain."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch
import transformers

from eigenheads.adapters import attention_summary, load_swapped, swap_attention

pytestmark = pytest.mark.torch
IDS = torch.arange(3, 10)[None]


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_head=4, n_layer=3, n_positions=32, bos_token_id=1,
        eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def swapped():
    model = gpt2()
    options = {"threshold": ("reference", 16), "sparsity": math.inf, "queries": "keys"}
    swap_attention(model, to="rpc", layers=[0], n_iter=3, **options)
    swap_attention(model, to="scaled", layers=[1], kind="matrix", n_tokens=9)
    torch.nn.init.normal_(model.transformer.h[1].attn.attention_scaling)
    return model


@pytest.fixture(scope="module")
def folder(swapped, tmp_path_factory):
    path = tmp_path_factory.mktemp("swapped")
    swapped.save_pretrained(path)
    return path


@pytest.fixture
def fresh(monkeypatch):
    """As in a process in which our attention functions are not registered."""
    name = "eigenheads.adapters.load_swapped"
    masks = transformers.AttentionMaskInterface._global_mapping
    monkeypatch.delitem(transformers.AttentionInterface._global_mapping, name)
    monkeypatch.delitem(masks, name)


@torch.no_grad()
def test_what_was_saved_is_loaded(swapped, folder):
    loaded = load_swapped(folder)
    assert type(loaded) is transformers.GPT2LMHeadModel
    assert attention_summary(loaded) == attention_summary(swapped)
    assert torch.equal(loaded(IDS)[0], swapped(IDS)[0])
    swap_attention(loaded, to="original")
    assert loaded.config._attn_implementation == "sdpa"
    plain = swap_attention(load_swapped(folder), to="original")
    assert torch.equal(loaded(IDS)[0], plain(IDS)[0])


@torch.no_grad()
def test_other_classes_and_options_of_loading_work(swapped, folder):
    body = load_swapped(folder, model_class=transformers.GPT2Model)
    assert torch.equal(body(IDS)[0], swapped.transformer(IDS)[0])
    auto = transformers.AutoModelForCausalLM
    loaded = load_swapped(str(folder), model_class=auto, attn_implementation="eager")
    assert torch.allclose(loaded(IDS)[0], swapped(IDS)[0], atol=1e-5)
    swap_attention(loaded, to="original")
    assert loaded.config._attn_implementation == "eager"
    half = load_swapped(folder, dtype=torch.bfloat16)
    assert half(IDS)[0].isfinite().all()


def test_saving_what_was_loaded_and_loading_it_again_works(swapped, folder, tmp_path):
    load_swapped(folder).save_pretrained(tmp_path)
    again = load_swapped(tmp_path)
    assert attention_summary(again) == attention_summary(swapped)


STOPS = r'Specified `attn_implementation="eigenheads\.adapters\.load_swapped"` is not'


def test_plain_loading_stops_where_eigenheads_is_not_imported(folder, fresh):
    with pytest.raises(ValueError, match=STOPS):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_plain_loading_stops_at_the_first_call_where_it_is_imported(folder):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    rows = attention_summary(model)
    assert {row.attention for row in rows} == {"not restored"}
    message = r"must be loaded with eigenheads\.adapters\.load_swapped"
    with pytest.raises(RuntimeError, match=message):
        model(IDS)
    with pytest.raises(ValueError, match=message):
        swap_attention(model, to="original")


@torch.no_grad()
def test_plain_loading_on_purpose_gives_the_plain_model(folder, swapped, tmp_path):
    options = {"attn_implementation": "sdpa"}
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, **options)
    assert torch.equal(model(IDS)[0], gpt2()(IDS)[0])
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="saved with swapped attention"):
        load_swapped(tmp_path)


def test_restored_models_leave_no_trace(tmp_path):
    model = swap_attention(swap_attention(gpt2(), to="scaled"), to="original")
    for name, saved in (("restored", model), ("plain", gpt2())):
        saved.save_pretrained(tmp_path / name)
    one, two = (
        json.loads((tmp_path / name / "config.json").read_text())
        for name in ("restored", "plain")
    )
    assert one == two
    with pytest.raises(ValueError, match="Load it with `from_pretrained`"):
        load_swapped(tmp_path / "plain")


def test_classes_that_do_not_fit_are_refused(folder):
    class Other(transformers.GPT2LMHeadModel):
        def __init__(self, config):
            config.n_layer = 1
            super().__init__(config)

    with pytest.raises(
        ValueError, match=r"exactly one layer 'transformer\.h\.1\.attn'"
    ):
        load_swapped(folder, model_class=Other)


@pytest.fixture(scope="module")
def pickled(swapped, tmp_path_factory):
    path = tmp_path_factory.mktemp("pickled") / "whole.pt"
    with torch.no_grad():
        torch.save((swapped, IDS, swapped(IDS)[0]), path)
    return path


@torch.no_grad()
def test_unpickling_a_model_registers_its_attention(pickled, fresh):
    model, ids, wanted = torch.load(pickled, weights_only=False)
    # Rounding may depend on the threads of the process that made the file.
    torch.testing.assert_close(model(ids)[0], wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(
        swap_attention(model, to="original")(ids)[0], wanted, atol=1e-3
    )


@pytest.mark.slow
def test_a_new_process_stops_or_computes_the_same(folder, pickled):
    code = f"""
import torch, transformers
try:
    transformers.GPT2LMHeadModel.from_pretrained({str(folder)!r})
except ValueError as error:
    print(error)
model, ids, wanted = torch.load({str(pickled)!r}, weights_only=False)
print("same:", torch.equal(model(ids)[0], wanted))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(STOPS, shown.stdout)
    assert "same: True" in shown.stdout
