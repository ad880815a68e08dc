"""Size limit of a sample of prompts."""

from eigenheads._checks import check_count, fail
from eigenheads._limits import MAX_SAMPLE


def check_sample_size(n: object, numbers: int, *, hint: str) -> int:
    """Return `n` if `n` prompts of `numbers` numbers each fit into memory."""
    count = check_count("n", n)
    if count * numbers > MAX_SAMPLE:
        contract = f"so small that a sample has at most {MAX_SAMPLE} numbers"
        fail("n", contract, count, hint=hint)
    return count
