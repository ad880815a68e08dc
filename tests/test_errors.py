"""Errors name the call that the user made, from wherever they are raised."""

import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from eigenheads import estimators, functional, models, theory
from eigenheads._checks import check_count
from eigenheads._errors import call_as, for_workers, public_call
from eigenheads._parallel import RunPool, threads
from eigenheads.datasets import SingleLocation

LAW = SingleLocation(10, 4)
ROWS = np.random.default_rng(0).standard_normal((30, 4))
BAGS = np.random.default_rng(0).standard_normal((20, 3, 2))


def bad_fit(model, X=BAGS):
    return lambda: model.fit(X, X[:, 0, 0])


CALLS = {
    "rbf_gram": lambda: functional.rbf_gram([1.0]),
    "SingleLocation": lambda: SingleLocation(d="a"),
    "SingleLocation.sample": lambda: LAW.sample(-1, np.random.default_rng(0)),
    "LocationLandscape.risk": lambda: theory.LocationLandscape(
        LAW, inverse_temperature=0.1
    ).risk(np.nan, 0.0),
    "pca_start": lambda: models.pca_start(-1, n_runs=1, seed=0),
    "SingleLocationRegressor": bad_fit(estimators.SingleLocationRegressor(alpha=-1.0)),
    "AttentionPCA": lambda: estimators.AttentionPCA(0).fit(ROWS),
    "SingleLocationRegressor.predict": lambda: (
        estimators.SingleLocationRegressor(alpha=1.0)
        .fit(BAGS, BAGS[:, 0, 0])
        .predict(BAGS[:, :0])
    ),
    # Through scikit-learn: the call of ours that it makes.
    "TokenScreen": lambda: make_pipeline(estimators.TokenScreen(-1)).fit(BAGS),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_sentence_begins_with_the_call(name):
    with pytest.raises((ValueError, TypeError), match=rf"^{name}: "):
        CALLS[name]()


def test_a_check_of_the_users_own_code_names_its_function():
    class Law:
        def __init__(self, d):
            self.d = check_count("d", d)

        def sample(self, n):
            return check_count("n", n)

    with pytest.raises(ValueError, match=r"^Law: `d` must be"):
        Law(-1)
    with pytest.raises(ValueError, match=r"^Law.sample: `n` must be"):
        Law(1).sample(-1)


def refuse(*_):
    check_count("n", -1)


def fit_in_threads():
    with threads(2), RunPool(3) as pool:
        pool.each(refuse)


def test_threads_of_ours_name_the_call_that_started_them():
    with pytest.raises(ValueError, match=f"^{public_call()}: `n` must be"):
        call_as(public_call(), fit_in_threads)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call_as("made here", for_workers, refuse))
        with pytest.raises(ValueError, match=r"^made here: `n` must be"):
            done.result()


def test_workers_in_other_processes_do_too():
    named = call_as("sweep", for_workers, refuse)
    assert pickle.loads(pickle.dumps(named)).args == named.args
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=spawn) as pool,
        pytest.raises(ValueError, match=r"^sweep: `n` must be"),
    ):
        pool.submit(named).result()


def test_a_name_does_not_stay_behind():
    with pytest.raises(ValueError, match=r"^first: "):
        call_as("first", refuse)
    with pytest.raises(ValueError, match=r"^refuse: "):
        refuse()


def test_a_thread_of_the_users_names_the_call_made_there():
    said = []

    def work():
        try:
            functional.rbf_gram([1.0])
        except TypeError as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said[0].startswith("rbf_gram: ")


def test_hooks_that_a_library_calls_name_their_class():
    torch = pytest.importorskip("torch")
    from eigenheads.adapters import augment_tokens

    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with (
        augment_tokens(model, lambda update: 2.0),
        pytest.raises(ValueError, match=r"^TokenAugmentation: `share` must be"),
    ):
        model(torch.rand(2, 5, 8))
