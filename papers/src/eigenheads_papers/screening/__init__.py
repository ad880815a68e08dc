"""Hiding tokens that do not fit the others: measurements of our own."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="screening",
    title="Does hiding tokens that do not fit make a vision transformer robust?",
    authors="the authors of this library",
    reference="no paper: an evaluation of adapters.screen_tokens",
    summary=(
        "A token screen predicts each embedded token of an image from all others and "
        "hides those that do not fit from attention. Small vision transformers are "
        "trained with and without dropped tokens, and measured under replaced, "
        "saturated, shuffled and occluded patches, noise, blur and attacks, one of "
        "them aimed at the screen. Baselines: hiding as many random tokens, hiding "
        "exactly the corrupted ones, a median filter, and augmented training images. "
        "All statements are checks of ours, with bounds that were fixed before the run."
    ),
)
