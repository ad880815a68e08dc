"""Where a model attends: one site a self-attention layer, whatever its family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Literal

from torch import nn

from eigenheads._checks import Got, check_count, fail
from eigenheads.adapters import _huggingface, _own, _pytorch, _timm

Family = Literal["torch", "huggingface", "timm", "eigenheads"]
# Ours have timm's layout, too, so they are asked first.
FAMILIES: Final[dict[Family, ModuleType]] = {
    "eigenheads": _own,
    "torch": _pytorch,
    "huggingface": _huggingface,
    "timm": _timm,
}
_KNOWN = (
    "torch.nn.MultiheadAttention; attention of Hugging Face models with q_proj/k_proj/"
    "v_proj, query/key/value, c_attn, qkv_proj or query_key_value; modules with qkv, "
    "proj and num_heads as in timm; layers of eigenheads.nn"
)
_N_SHOWN = 8


@dataclass(frozen=True)
class Site:
    """A self-attention layer of a model.

    Attributes
    ----------
    name
        Path of the module in the model, as ``get_submodule`` takes it; empty if the
        model is itself one attention layer.
    module
        The module that makes queries, keys and values.
    output
        The module that projects the heads back to the width of the tokens.
    family
        Whose layout it is: ``"torch"``, ``"huggingface"``, ``"timm"``,
        ``"eigenheads"``.
    layer
        Index among the sites of the model, from 0.
    """

    name: str
    module: nn.Module
    output: nn.Module
    family: Family
    layer: int


def find_sites(
    model: nn.Module,
    *,
    owner: str = "find_sites",
    hint: str = "Probes take plain arrays, too: see eigenheads.probes.",
) -> list[Site]:
    """Return the self-attention layers of a model, in the order of its modules.

    Cross-attention is left out.

    Parameters
    ----------
    model
        Any PyTorch module.
    owner
        Whose name an error shows.
    hint
        What the error says to do instead.

    Returns
    -------
    sites
        At least one.

    Raises
    ------
    ValueError
        If no known layout is found; the message lists what was looked at.

    Examples
    --------
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> sites = find_sites(nn.TransformerEncoder(layer, 2))
    >>> [(site.name, site.family) for site in sites]
    [('layers.0.self_attn', 'torch'), ('layers.1.self_attn', 'torch')]
    """
    if not isinstance(model, nn.Module):
        fail("model", "a torch.nn.Module", model, owner=owner, error=TypeError)
    parents = {
        f"{path}.{name}" if path else name: parent
        for path, parent in model.named_modules()
        for name, _ in parent.named_children()
    }
    sites: list[Site] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{site.name}.") for site in sites if site.name):
            continue
        for family, room in FAMILIES.items():
            find: Callable[..., nn.Module | None] = room.output_projection
            output = find(module, parents.get(path), path.rpartition(".")[2])
            if output is not None:
                sites.append(Site(path, module, output, family, len(sites)))
                break
    if not sites:
        got = Got(
            f"{type(model).__name__}, of which was looked at: {_looked_at(model)}"
        )
        contract = f"a model with attention of a known layout ({_KNOWN})"
        fail("model", contract, got, owner=owner, hint=hint)
    return sites


def select_sites(
    sites: Sequence[Site], layers: Sequence[int] | int | None, *, owner: str
) -> list[Site]:
    """Return the sites of some layers, in order; negative indices count from the end.

    Examples
    --------
    >>> from torch import nn
    >>> sites = find_sites(nn.MultiheadAttention(8, 2))
    >>> select_sites(sites, [3], owner="capture_heads")
    Traceback (most recent call last):
    ...
    ValueError: capture_heads: `layers` must be indices from 0 to 0; got 3.
    """
    if layers is None:
        return list(sites)
    if isinstance(layers, str) or not isinstance(layers, Sequence | int | range):
        contract = "None, an index or a sequence of indices"
        fail("layers", contract, layers, owner=owner, error=TypeError)
    wanted = [layers] if isinstance(layers, int) else list(layers)
    chosen = {_index(layer, len(sites), owner=owner) for layer in wanted}
    if not chosen:
        fail("layers", "at least one layer", layers, owner=owner)
    return [site for site in sites if site.layer in chosen]


def _index(layer: object, n: int, *, owner: str) -> int:
    index = check_count("layers", layer, owner=owner, minimum=-n)
    if index >= n:
        fail("layers", f"indices from 0 to {n - 1}", layer, owner=owner)
    return index % n


def _looked_at(model: nn.Module) -> str:
    """Return what an error shows of a model: what looks like attention, else all."""
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
