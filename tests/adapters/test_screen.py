"""Screening tokens: hidden from attention, undone bit for bit, saved and loaded."""

import copy
import io
import re

import pytest
import torch
from tests.adapters.models import Stack, TimmAttention, hugging_face, shaken, text_batch
from torch import nn

from eigenheads.adapters import (
    attention_summary,
    capture_heads,
    hide_tokens,
    load_swapped,
    screen_tokens,
    swap_attention,
)
from eigenheads.adapters._screen import ScreenHook, ScreenModule

pytestmark = pytest.mark.torch


def tokens(n=120, n_tokens=9, d=16, seed=0):
    """Tokens with a common cause; the first is the same for all inputs."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(n, 1, d, generator=generator)
    x = common + 0.3 * torch.randn(n, n_tokens, d, generator=generator)
    x[:, 0] = 1.0
    return x


def encoder(batch_first=True):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=batch_first)
    return shaken(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)).eval()


def timm_like():
    torch.manual_seed(0)
    return shaken(Stack(TimmAttention(), TimmAttention())).eval()


MODELS = {"torch": encoder, "timm": timm_like}


def odd(x):
    x = x.clone()
    x[:, 3] = 8.0
    return x


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_odd_tokens_have_no_influence_on_the_others(name):
    model = MODELS[name]()
    x = tokens(4, seed=1)
    before, state = model(x), list(model.state_dict())
    assert screen_tokens(model, tokens()) is model
    assert {row.attention for row in attention_summary(model)} == {"screen"}
    first, second = x.clone(), x.clone()
    first[:, 3], second[:, 3] = 8.0, -9.0
    rest = [i for i in range(9) if i != 3]
    torch.testing.assert_close(model(first)[:, rest], model(second)[:, rest])
    swap_attention(model, to="original")
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == state
    modules = list(model.modules())
    assert not any(isinstance(module, ScreenModule) for module in modules)
    hooks = [h for m in modules for h in m._forward_pre_hooks.values()]
    assert not any(isinstance(hook, ScreenHook) for hook in hooks)


@torch.no_grad()
def test_hiding_is_the_same_as_a_padding_mask():
    model, x = encoder(), odd(tokens(1, seed=2))
    padding = torch.zeros(1, 9, dtype=torch.bool)
    padding[:, 3] = True
    plain = copy.deepcopy(model)
    screen_tokens(model, tokens(300), false_flag_rate=1e-3, action="hide")
    rest = [i for i in range(9) if i != 3]
    expected = plain(x, src_key_padding_mask=padding)
    torch.testing.assert_close(model(x)[:, rest], expected[:, rest], atol=1e-5, rtol=0)
    # Padding of the call is respected as well.
    more = padding.clone()
    more[:, 5] = True
    only = torch.zeros_like(padding)
    only[:, 5] = True
    rest = [i for i in rest if i != 5]
    found = model(x, src_key_padding_mask=only)[:, rest]
    expected = plain(x, src_key_padding_mask=more)[:, rest]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["booleans", "infinity", "large number"])
@pytest.mark.parametrize("action", ["hide", "impute"])
@torch.no_grad()
def test_padding_is_never_flagged_and_its_contents_have_no_influence(action, kind):
    model = screen_tokens(encoder(), tokens(300), action=action)
    (screen,) = (m for m in model.modules() if isinstance(m, ScreenModule))
    flags = []
    handle = screen.register_forward_hook(lambda *call: flags.append(call[-1]))
    x = odd(tokens(4, seed=2))
    padding = torch.zeros(4, 9, dtype=torch.bool)
    padding[:, 5:7] = True
    if kind != "booleans":
        hidden = -torch.inf if kind == "infinity" else -1e9
        padding = torch.zeros(4, 9).masked_fill(padding, hidden)
    found = []
    for contents in (0.0, 30.0, -200.0):
        x[:, 5:7] = contents
        found.append(model(x, src_key_padding_mask=padding))
    handle.remove()
    rest = [i for i in range(9) if i not in (5, 6)]
    for one, flag in zip(found, flags, strict=True):
        torch.testing.assert_close(one[:, rest], found[0][:, rest])
        assert torch.equal(flag, flags[0])
        assert flag[:, 3].all()
        assert not flag[:, 5:7].any()
    # Without the mask such contents change what is flagged.
    assert not torch.equal(screen(x), flags[0])


@torch.no_grad()
def test_class_tokens_are_never_hidden_and_dense_noise_hides_nothing():
    model = screen_tokens(encoder(), tokens(400))
    (screen,) = (m for m in model.modules() if isinstance(m, ScreenModule))
    x = tokens(50, seed=3)
    assert screen(x).float().mean() < 0.06
    x[:, 0] = 100.0
    assert not screen(x)[:, 0].any()
    assert screen(odd(x))[:, 3].all()
    noisy = tokens(50, seed=3) + 4 * torch.randn(50, 9, 16)
    assert screen(noisy).float().mean() < 0.05


@torch.no_grad()
def test_tokens_first_copies_pickles_and_state_dicts():
    plain = encoder()
    model = screen_tokens(
        encoder(batch_first=False), tokens().transpose(0, 1), action="hide"
    )
    x = odd(tokens(2, seed=4))
    other = screen_tokens(encoder(), tokens(), action="hide")
    wanted = other(x)
    torch.testing.assert_close(model(x.transpose(0, 1)).transpose(0, 1), wanted)
    file = io.BytesIO()
    torch.save(other, file)
    file.seek(0)
    for again in (copy.deepcopy(other), torch.load(file, weights_only=False)):
        torch.testing.assert_close(again(x), wanted)
        swap_attention(again, to="original")
        torch.testing.assert_close(again(x), plain(x))
    fresh = screen_tokens(encoder(), tokens(seed=9), action="hide")
    fresh.load_state_dict(other.state_dict())
    torch.testing.assert_close(fresh(x), wanted)


@torch.no_grad()
def test_half_precision_and_one_input():
    model = screen_tokens(encoder(), tokens(), action="hide")
    (screen,) = (m for m in model.modules() if isinstance(m, ScreenModule))
    model.to(torch.bfloat16)
    assert screen.precision.dtype == torch.float32
    out = model(odd(tokens(1)).to(torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()
    assert screen.flags[0, 3]


def test_hugging_face_vision_models_are_screened_saved_and_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        image_size=12,
        patch_size=4,
    )
    model = shaken(transformers.ViTModel(config)).eval()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(150, 3, 1, 1, generator=generator).expand(-1, 3, 12, 12)
    images = images + 0.1 * torch.rand(150, 3, 12, 12, generator=generator)
    loader = [(part, None) for part in images.split(40)]  # pairs, as loaders give
    with torch.no_grad():
        before = model(images[:2]).last_hidden_state
        screen_tokens(model, loader)
        first, second = images[:2].clone(), images[:2].clone()
        first[..., :4, :4], second[..., :4, :4] = 9.0, -7.0
        rest = [i for i in range(10) if i != 1]  # a class token is in front
        one, other = (model(x).last_hidden_state[:, rest] for x in (first, second))
        torch.testing.assert_close(one, other)
        model.save_pretrained(tmp_path)
        loaded = load_swapped(tmp_path)
        assert attention_summary(loaded) == attention_summary(model)
        again = loaded(first).last_hidden_state[:, rest]
        torch.testing.assert_close(again, one, atol=1e-5, rtol=1e-5)
        swap_attention(model, to="original")
        assert torch.equal(model(images[:2]).last_hidden_state, before)


@torch.no_grad()
def test_registers_are_never_hidden():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=1,
        image_size=12,
        patch_size=4,
        num_register_tokens=2,
    )
    model = shaken(transformers.Dinov2WithRegistersModel(config)).eval()
    images = torch.rand(150, 3, 1, 1).expand(-1, 3, 12, 12)
    images = images + 0.1 * torch.rand(150, 3, 12, 12)
    screen_tokens(model, images, action="hide")
    (screen,) = (m for m in model.modules() if isinstance(m, ScreenModule))
    # A class token, two registers, nine patches.
    assert screen.thresholds.isinf().tolist() == [True] * 3 + [False] * 9
    images[:2, :, :4, :4] = 9.0
    model(images[:2])
    assert screen.flags[:, 3].all()
    assert not screen.flags[:, :3].any()


def test_text_swapped_models_and_odd_calibrations_are_refused():
    with pytest.raises(ValueError, match="fixed positions"):
        screen_tokens(hugging_face("bert"), text_batch())
    swapped = swap_attention(encoder(), to="symmetric")
    with pytest.raises(ValueError, match="original attention"):
        screen_tokens(swapped, tokens())
    with pytest.raises(TypeError, match="re-iterable"):
        screen_tokens(encoder(), iter([tokens()]))
    with pytest.raises(ValueError, match="at least 20 sequences"):
        screen_tokens(encoder(), tokens(10))
    with pytest.raises(ValueError, match="the same number of tokens"):
        screen_tokens(encoder(), [tokens(), tokens(n_tokens=5)])
    with pytest.raises(ValueError, match="inputs that differ from each other"):
        screen_tokens(encoder(), tokens(1).repeat(120, 1, 1))
    model = screen_tokens(encoder(), tokens())
    with pytest.raises(ValueError, match="of 9 tokens, as in calibration"):
        model(tokens(2, n_tokens=5))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_imputed_tokens_are_what_the_others_predict(name):
    from eigenheads.estimators import TokenScreen

    model, x = MODELS[name](), tokens(4, seed=1)
    plain = copy.deepcopy(model)
    screen_tokens(model, tokens(), action="impute")
    assert all("impute" in row.options for row in attention_summary(model))
    first, second = x.clone(), x.clone()
    first[:, 3], second[:, 3] = 8.0, -9.0
    # The whole output is independent of the odd token, its own row included.
    torch.testing.assert_close(model(first), model(second))
    fitted = TokenScreen().fit(tokens().double().numpy())
    imputed = torch.from_numpy(fitted.impute(first.double().numpy())).float()
    torch.testing.assert_close(model(first), plain(imputed), atol=1e-4, rtol=1e-4)
    # It is nearer to the true token than the mean of all tokens is, by about the half
    # of the variance that eight of sixteen directions have.
    wrong = (imputed[:, 3] - x[:, 3]).norm()
    assert wrong < 0.8 * (torch.from_numpy(fitted.mean_[3]) - x[:, 3]).norm()
    swap_attention(model, to="original")
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_given_tokens_are_hidden_inside_the_context_alone(name):
    model, x = MODELS[name](), tokens(3, seed=6)
    before, state = model(x), list(model.state_dict())
    hidden = torch.zeros(3, 9, dtype=torch.bool)
    hidden[0, 2] = hidden[1, 5] = True
    other = x.clone()
    other[hidden] = 50.0
    with hide_tokens(model, hidden):
        first, second = model(x), model(other)
    torch.testing.assert_close(first[~hidden], second[~hidden])
    torch.testing.assert_close(first[2], before[2], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first[0], before[0], atol=1e-3)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == state
    with pytest.raises(RuntimeError, match="inside"), hide_tokens(model, hidden):
        raise RuntimeError("inside")
    assert torch.equal(model(x), before)
    for wrong, match in (
        (hidden.float(), "booleans"),
        (torch.ones_like(hidden), "at least one visible"),
    ):
        with pytest.raises(ValueError, match=match), hide_tokens(model, wrong):
            pass


@torch.no_grad()
def test_captured_heads_have_certificates():
    (layer, *_) = capture_heads(encoder(), tokens(2, seed=7))
    found = layer.certificate(counts=[1, 2])
    assert found.bounds.shape == (2, 4, 9, 2)
    # Nothing is clipped by default, so that the outputs are those of the heads.
    assert abs(found.outputs - layer.outputs).max() < 1e-5
    assert (found.attained <= found.bounds).all()
    bias = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    (layer, *_) = capture_heads(encoder(), {"src": tokens(2), "mask": bias})
    with pytest.raises(ValueError, match="without a bias of the scores; got 'layers"):
        layer.certificate()
    causal = torch.ones(9, 9).tril().log()
    (layer, *_) = capture_heads(encoder(), {"src": tokens(2), "mask": causal})
    # The first token sees itself alone: one replaced token breaks it.
    assert (layer.certificate().breakdown[..., 0] <= 1).all()
    assert abs(layer.certificate().outputs - layer.outputs).max() < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@torch.no_grad()
def test_compiled_models_screen_as_well():
    model = screen_tokens(timm_like(), tokens())
    x = odd(tokens(2, seed=5))
    expected = model(x)
    torch.testing.assert_close(torch.compile(model)(x), expected, atol=1e-5, rtol=1e-5)


def test_the_action_is_chosen_by_outputs_under_planted_corruption():
    """Tokens that follow from the others are imputed; the numbers of both are said."""
    model = screen_tokens(encoder(), tokens(300))
    row = attention_summary(model)[0]
    kept = dict(re.findall(r"(impute|hide) (-?[0-9.]+)", row.options))
    assert float(kept["impute"]) > float(kept["hide"])
    assert "action='impute'" in row.options
    again = attention_summary(screen_tokens(encoder(), tokens(300)))[0]
    assert again.options == row.options
    fixed = attention_summary(screen_tokens(encoder(), tokens(300), action="hide"))[0]
    assert fixed.options == "max_share=0.5, action='hide'"


def test_the_better_action_is_taken(monkeypatch):
    """Outputs are compared as they are: hiding is taken where it keeps more of them."""
    from eigenheads.adapters import _hide_tokens

    calls = []

    def agreement(outputs, plain):
        calls.append(outputs)
        return 0.5 if len(calls) <= 3 else 0.9  # imputing is tried first

    monkeypatch.setattr(_hide_tokens, "_agreement", agreement)
    model = screen_tokens(encoder(), tokens(300))
    assert "action='hide'" in attention_summary(model)[0].options
    assert len(calls) == 6
    # Clean, replaced and noisy tokens, each under both actions.
    assert not torch.allclose(calls[0], calls[1])
    assert not torch.allclose(calls[0], calls[2])


def test_trials_leave_the_model_as_it_was():
    model = encoder().train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    hooks = [len(m._forward_pre_hooks) for m in model.modules()]
    screen_tokens(model, tokens(300))
    swap_attention(model, to="original")
    assert model.training
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
    after = model.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], x) for name, x in before.items())


def test_agreement_is_of_classes_or_a_correlation():
    from eigenheads.adapters._hide_tokens import _agreement

    plain = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert _agreement(plain.flip(1), plain) == 0.0
    assert _agreement(plain * torch.tensor([[2.0, 0.1]]), plain) == 0.75
    assert _agreement(3 * plain[:, :1] + 1, plain[:, :1]) == pytest.approx(1.0)
    assert _agreement(torch.zeros(4, 1), plain[:, :1]) == 0.0
