"""Find the self-attention layers of a model of any family."""

from collections.abc import Sequence
from typing import Final

from torch import nn

from eigenheads._checks import Got, check_count, fail
from eigenheads.adapters._family import AbstractFamily, AttentionLayer
from eigenheads.adapters._huggingface import HuggingFaceFamily
from eigenheads.adapters._pytorch import TorchFamily
from eigenheads.adapters._timm import EigenheadsFamily, TimmFamily

# The first family that recognises a module takes it. The layers of eigenheads.nn have
# timm's layout, too, so their family comes first.
FAMILIES: Final[tuple[AbstractFamily, ...]] = (
    EigenheadsFamily(),
    TorchFamily(),
    HuggingFaceFamily(),
    TimmFamily(),
)
_KNOWN = (
    "torch.nn.MultiheadAttention; attention of Hugging Face models with q_proj/k_proj/"
    "v_proj, query/key/value, c_attn, qkv_proj or query_key_value; modules with qkv, "
    "proj and num_heads as in timm; layers of eigenheads.nn"
)
_N_SHOWN = 8


def find_attention_layers(
    model: nn.Module,
    *,
    hint: str = "Probes take plain arrays, too: see eigenheads.probes.",
) -> list[AttentionLayer]:
    """Return the self-attention layers of a model, in the order of its modules.

    Cross-attention is left out.

    Parameters
    ----------
    model
        Any PyTorch module.
    hint
        Advice in the error about unknown models.

    Returns
    -------
    layers
        At least one.

    Raises
    ------
    ValueError
        If no known layout is found; the message lists modules of the model.

    Examples
    --------
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> found = find_attention_layers(nn.TransformerEncoder(layer, 2))
    >>> [(one.name, one.family.name) for one in found]
    [('layers.0.self_attn', 'torch'), ('layers.1.self_attn', 'torch')]
    """
    refuse_wrapper(model)
    if not isinstance(model, nn.Module):
        fail("model", "a torch.nn.Module", model, error=TypeError)
    # Some layouts need the parent: BERT keeps the output projection there, and a
    # decoder tells its cross-attention from self-attention.
    parents = {
        f"{path}.{name}" if path else name: parent
        for path, parent in model.named_modules()
        for name, _ in parent.named_children()
    }
    layers: list[AttentionLayer] = []
    for path, module in model.named_modules():
        # Modules inside an attention layer are parts of it.
        if any(path.startswith(f"{layer.name}.") for layer in layers if layer.name):
            continue
        for family in FAMILIES:
            output = family.find(module, parents.get(path), path.rpartition(".")[2])
            if output is not None:
                layers.append(AttentionLayer(path, module, output, family, len(layers)))
                break
    if not layers:
        got = Got(f"{type(model).__name__} with the modules {_module_names(model)}")
        contract = f"a model with attention of a known layout ({_KNOWN})"
        fail("model", contract, got, hint=hint)
    return layers


def refuse_wrapper(model: object) -> None:
    """Raise if a model is wrapped by nnsight, which runs it in its own way."""
    if type(model).__module__.partition(".")[0] == "nnsight":
        got = Got(f"{type(model).__name__} of nnsight")
        hint = "Pass the model inside it: `model._model`."
        fail("model", "a torch.nn.Module", got, hint=hint, error=TypeError)


def select_layers(
    candidates: Sequence[AttentionLayer], layers: Sequence[int] | int | None
) -> list[AttentionLayer]:
    """Return the layers with these indices, in order; negative ones count from the end.

    Examples
    --------
    >>> from torch import nn
    >>> found = find_attention_layers(nn.MultiheadAttention(8, 2))
    >>> select_layers(found, [3])
    Traceback (most recent call last):
    ...
    eigenheads._errors.UsageValueError:
    select_layers: `layers` must be indices from 0 to 0; got 3.
    """
    if layers is None:
        return list(candidates)
    if isinstance(layers, str) or not isinstance(layers, Sequence | int | range):
        contract = "None, an index or a sequence of indices"
        fail("layers", contract, layers, error=TypeError)
    places = [layers] if isinstance(layers, int) else list(layers)
    chosen = {_index(layer, len(candidates)) for layer in places}
    if not chosen:
        fail("layers", "at least one layer", layers)
    return [layer for layer in candidates if layer.index in chosen]


def _index(layer: object, n: int) -> int:
    index = check_count("layers", layer, minimum=-n)
    if index >= n:
        fail("layers", f"indices from 0 to {n - 1}", layer)
    return index % n


def _module_names(model: nn.Module) -> str:
    """Return modules for an error: those named like attention, or else all."""
    modules = [
        (path, type(module).__name__) for path, module in model.named_modules() if path
    ]
    likely = [
        f"{path} ({kind})"
        for path, kind in modules
        if "attn" in kind.lower() or "attention" in kind.lower()
    ]
    shown = likely or [f"{path} ({kind})" for path, kind in modules]
    more = f" and {len(shown) - _N_SHOWN} more" if len(shown) > _N_SHOWN else ""
    return ", ".join(shown[:_N_SHOWN]) + more if shown else "no submodules"
