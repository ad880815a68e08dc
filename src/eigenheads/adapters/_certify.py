"""Certificates of the heads of a captured layer."""

from collections.abc import Sequence

import numpy as np

from eigenheads._checks import Got, check_instance, fail
from eigenheads.adapters._capture import CapturedLayer
from eigenheads.theory import HeadCertificate, head_certificate

_OWNER = "certify_heads"


def certify_heads(
    captured: CapturedLayer,
    *,
    counts: Sequence[int] = (1, 2, 4, 8),
    key_norm: float | None = None,
    value_radius: float | None = None,
) -> HeadCertificate:
    """Bound how far replaced tokens can move the outputs of each head of a layer.

    Parameters
    ----------
    captured
        A layer of :func:`capture_heads`.
    counts, key_norm, value_radius
        As in :func:`eigenheads.theory.head_certificate`. Give radii that were
        calibrated on other inputs if you clip keys and values; by default they are the
        largest of these heads, all heads together.

    Returns
    -------
    certificate
        Arrays ``(batch, heads, tokens, …)``. Rows of padding are not meaningful.

    Raises
    ------
    ValueError
        If scores have a bias other than a mask, such as relative positions.

    Examples
    --------
    >>> import torch
    >>> from eigenheads.adapters import capture_heads
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> (captured,) = capture_heads(layer, torch.randn(3, 5, 8))
    >>> certify_heads(captured, counts=[1]).breakdown.shape
    (3, 2, 5)
    """
    check_instance("captured", captured, CapturedLayer, owner=_OWNER)
    if captured.bias is not None:
        seen = np.isfinite(captured.bias)
        if np.any(captured.bias[seen] != 0):
            got = Got(f"layer {captured.name!r}, whose scores have a bias")
            fail("captured", "a layer without a bias of the scores", got, owner=_OWNER)
    else:
        seen = captured.mask[:, None, None, :]
        if captured.is_causal:
            seen = seen & np.tri(captured.keys.shape[-2], dtype=bool)
    # Rows that see nothing are padding: they may see all, which keeps them finite.
    seen = seen | ~seen.any(-1, keepdims=True)
    return head_certificate(
        captured.queries,
        captured.keys,
        captured.values,
        counts=counts,
        scale=captured.scale,
        visible=seen,
        key_norm=key_norm,
        value_radius=value_radius,
    )
