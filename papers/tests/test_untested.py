"""What is not tested is said for every paper, and points at what is."""

import pytest

from eigenheads_papers import experiment_keys
from eigenheads_papers._records import read_record
from eigenheads_papers._registry import get_paper
from eigenheads_papers._untested import untested_claims

PAPERS = list(dict.fromkeys(key.partition("/")[0] for key in experiment_keys()))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_says_what_is_missing_and_names_real_keys(paper):
    assert get_paper(paper).key == paper
    listed = untested_claims(paper)
    assert listed
    assert len({item.claim for item in listed}) == len(listed)
    for item in listed:
        assert item.claim
        assert item.source
        assert item.why
        assert item.instead in ("", *experiment_keys())


def measures_on_small_models(key, paper):
    return any(
        claim.kind == "small model" and claim.paper == paper
        for claim in read_record(key).claims
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_a_statement_stands_in_one_column_only(paper):
    """What small models measure is counted there, and names them."""
    for item in untested_claims(paper):
        if item.on_small_models:
            assert measures_on_small_models(item.instead, paper)


def test_an_unknown_paper_gets_a_sentence():
    with pytest.raises(ValueError, match="untested_claims: `paper` must be"):
        untested_claims("marion2024")
