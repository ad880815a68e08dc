"""Sites are found in every family, and unknown models are refused with a sentence."""

import ast
import graphlib
from pathlib import Path

import pytest
import torch
from torch import nn

import eigenheads
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.nn import RPCAttention

pytestmark = pytest.mark.torch


class TimmLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(8, 24), nn.Linear(8, 8), 2


def test_each_family_is_found_in_a_mixed_model():
    model = nn.ModuleDict(
        {
            "a": nn.TransformerEncoderLayer(8, 2),
            "b": TimmLike(),
            "c": RPCAttention(8, 2),
        }
    )
    found = [
        (layer.name, layer.family.name, layer.index)
        for layer in find_attention_layers(model)
    ]
    assert found == [
        ("a.self_attn", "torch", 0),
        ("b", "timm", 1),
        ("c", "eigenheads", 2),
    ]


def test_cross_attention_is_left_out():
    found_layers = find_attention_layers(nn.TransformerDecoderLayer(8, 2))
    assert [layer.name for layer in found_layers] == ["self_attn"]


def test_a_bare_attention_layer_is_found():
    (layer,) = find_attention_layers(nn.MultiheadAttention(8, 2))
    assert (layer.name, layer.index) == ("", 0)


def test_unknown_models_are_refused_and_their_modules_are_listed():
    class MyAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 4)

    with pytest.raises(ValueError, match=r"with the modules 0 \(MyAttention\)"):
        find_attention_layers(nn.Sequential(MyAttention()))
    with pytest.raises(ValueError, match=r"with the modules 0 \(Linear\)"):
        find_attention_layers(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="no submodules"):
        find_attention_layers(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module"):
        find_attention_layers(torch.zeros(2))


@pytest.mark.parametrize(
    ("layers", "found"), [(None, [0, 1]), (1, [1]), ([-1, 0], [0, 1]), (range(1), [0])]
)
def test_layers_are_selected(layers, found):
    found_layers = find_attention_layers(nn.ModuleList([TimmLike(), TimmLike()]))
    chosen = select_layers(found_layers, layers)
    assert [layer.index for layer in chosen] == found


@pytest.mark.parametrize("layers", ["0", [], [2], [-3], [0.5], {0}])
def test_layers_that_are_not_there_are_refused(layers):
    found_layers = find_attention_layers(nn.ModuleList([TimmLike(), TimmLike()]))
    with pytest.raises((ValueError, TypeError), match="select_layers: `layers` must"):
        select_layers(found_layers, layers)


@pytest.mark.parametrize("package", ["adapters", "nn", "probes"])
def test_modules_import_each_other_in_one_direction_even_inside_functions(package):
    folder = Path(eigenheads.__file__).parent / package
    imports = {
        path.stem: {
            node.module.rpartition(".")[2]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(f"eigenheads.{package}._")
        }
        for path in folder.glob("_[a-z]*.py")
    }
    assert set(graphlib.TopologicalSorter(imports).static_order()) == set(imports)


def test_wrapped_models_are_refused_with_the_way_to_the_model_inside():
    """nnsight runs a model in its own way: the model inside it is what we take."""
    from eigenheads.adapters import ablate_heads, capture_heads, probe_model

    wrapper = type("LanguageModel", (), {"__module__": "nnsight.modeling.language"})()
    for call in (capture_heads, probe_model, ablate_heads):
        with pytest.raises(TypeError, match=r"got LanguageModel of nnsight") as error:
            call(wrapper, torch.zeros(1, 3, 8))
        assert "`model._model`" in str(error.value)
