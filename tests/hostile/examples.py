"""Right calls of public names, where docstrings have none, or none that is fast.

Each text runs before the examples of the docstring, in the same scope; the first call
of a function or method is the one that is made again with hostile arguments.
"""

_BAGS = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.standard_normal((12, 4, 3))
y = X[:, 0, 0]
labels = y > 0
"""
_ROWS = """
import numpy as np
rng = np.random.default_rng(0)
rows = rng.standard_normal((40, 1)) @ rng.standard_normal((1, 6))
rows += 0.1 * rng.standard_normal((40, 6))
"""
_REGRESSOR = """
model = {name}({options}).fit(X, y)
model.predict(X), model.attention(X), model.locate(X)
"""
_CLASSIFIER = """
model = {name}({options}).fit(X, labels)
model.predict(X), model.attention(X), model.locate(X)
model.decision_function(X), model.predict_proba(X), model.predict_log_proba(X)
"""
_MODEL = """
from eigenheads.models import Model, Token
def line(X, w, u, g, p):
    return (X[0] @ w.k - X[0] @ u.key) ** 2
declared = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
"""
_RESULT = """
from eigenheads_papers import reproduce as _reproduce
(result,) = _reproduce("marion2025/bayes", preset="smoke", out="results")
"""
_TEXT_RUN = """
from pathlib import Path
from eigenheads_papers.recipes import train_model as _train_model
for part in ("train", "valid", "test"):
    Path(f"{part}.txt").write_text("the cat sees the dog .\\n" * 40)
"""
_PROBE = """
import numpy as np
from eigenheads.probes import ModelProbe, Statistic
draws = np.linspace(0.0, 1.0, 80).reshape(1, 2, 40)
one = Statistic("cka", draws[..., 0], {"keys": draws}, "greater", "Alignment.")
probe = ModelProbe([0], ["a"], {"cka": one}, {"seed": 0}, [], {})
"""
_ESTIMATE = """
from eigenheads_papers._statistics import mean_estimate
estimate = mean_estimate([1.0, 2.0, 1.5, 1.2])
"""

EXAMPLES: dict[str, str] = {
    "adapters.Ablation": """
import numpy as np
ablation = Ablation([((0, 0),)], np.ones((1, 2)), np.zeros((1, 39)), {"metric": "loss"})
ablation.needs(0.05), ablation.stands_out(0.05)
""",
    "adapters.load_model": """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizerFast
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green"]
sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
config = BertConfig(**sizes, num_hidden_layers=1, vocab_size=len(words))
BertModel(config).save_pretrained("tiny")
vocabulary = {word: place for place, word in enumerate(words)}
BertTokenizerFast(vocab=vocabulary).save_pretrained("tiny")
Path("texts.txt").write_text("red green red green red")
load_model("tiny", data="texts.txt", max_length=8, download=False)
""",
    "adapters.Capture": """
import numpy as np
cache = {f"blocks.0.attn.hook_{part}": np.ones((1, 4, 2, 3)) for part in "qkv"}
Capture.of_cache(cache, token_ids=np.zeros((1, 4), dtype=int))
""",
    "adapters.TokenAugmentation": """
TokenAugmentation(0.1, "drop", [0], None)
""",
    "datasets.load_musk": """
with open("clean1.data", "w") as file:
    for i in range(3):
        file.write(f"a,b,{','.join(['1.5'] * 166)},1.\\n")
load_musk(".")
""",
    "models.threads": "threads(1)",
    "estimators.BagPooling": _BAGS + "BagPooling().fit(X).transform(X)",
    "estimators.AttentionPCA": _ROWS
    + """
model = AttentionPCA(1, random_state=0).fit(rows)
model.inverse_transform(model.transform(rows)), model.get_covariance()
AttentionPCA(1, random_state=0).partial_fit(rows)
""",
    "estimators.PooledBagClassifier": _BAGS
    + """
model = PooledBagClassifier().fit(X, labels)
model.predict(X), model.predict_proba(X)
""",
    "estimators.PooledBagRegressor": _BAGS
    + "PooledBagRegressor().fit(X, y).predict(X)",
    "estimators.RBFFeatures": _ROWS + "RBFFeatures(4).fit(rows).transform(rows)",
    "estimators.RobustPCA": _ROWS
    + """
model = RobustPCA(1, false_positive_rate=0.2).fit(rows)
model.predict(rows), model.decision_function(rows), model.p_values(rows)
model.inverse_transform(model.transform(rows)), model.fit_transform(rows)
model.score(rows), model.score_samples(rows), model.sparse_of(rows)
""",
    "estimators.SignalDirection": _ROWS
    + """
model = SignalDirection(random_state=0).fit(rows)
model.score_samples(rows), model.transform(rows)
model.calibrate(rows).predict(rows)
""",
    "estimators.SingleLocationClassifier": _BAGS
    + _CLASSIFIER.format(name="SingleLocationClassifier", options="")
    + "model.contributions(X)",
    "estimators.SingleLocationClassifierCV": _BAGS
    + _CLASSIFIER.format(
        name="SingleLocationClassifierCV",
        options="feature_maps=[None], heads=['radial'], cv=2",
    )
    + "model.contributions(X)",
    "estimators.SingleLocationRegressor": _BAGS
    + _REGRESSOR.format(name="SingleLocationRegressor", options="")
    + "model.contributions(X)",
    "estimators.SingleLocationRegressorCV": _BAGS
    + _REGRESSOR.format(
        name="SingleLocationRegressorCV",
        options="feature_maps=[None], heads=['radial'], cv=2",
    )
    + "model.contributions(X)",
    "estimators.TokenScreen": """
import numpy as np
X = np.random.default_rng(0).standard_normal((80, 5, 3))
screen = TokenScreen(2).fit(X)
screen.predict(X), screen.score_samples(X), screen.impute(X)
TokenScreen(2).fit_blocks(lambda: [X])
""",
    "estimators.TokenTransformer": _BAGS
    + """
from sklearn.preprocessing import StandardScaler
model = TokenTransformer(StandardScaler()).fit(X)
model.transform(X), model.get_feature_names_out(["a", "b", "c"])
model.set_output(transform="default")
""",
    "models.Trajectories": """
from eigenheads.models import Trajectories
paths = Trajectories([0, 1], {"kappa": [[0.0, 1.0]]})
paths.save("paths.safetensors")
Trajectories.load("paths.safetensors")
""",
    "papers.difference": _ESTIMATE
    + 'difference("It is larger.", estimate, source="ours")',
    "papers.no_difference": _ESTIMATE
    + 'no_difference("It is equal.", estimate, 3.0, "A margin.", source="ours")',
    "papers.SweepResult": """
from eigenheads_papers import sweep as _sweep
swept = _sweep("marion2025/fig4", preset="smoke", seeds=2, jobs=1,
               grid={"d": [80], "n_steps": [100]}, out="results")
swept.mean("nu_squared"), swept.over_seeds("nu_squared")
""",
    "papers.stored_results": _RESULT + 'list(stored_results("results"))',
    "functional.PrincipalSubspace": """
import numpy as np
from eigenheads.functional import principal_subspace
principal_subspace(np.diag([3.0, 2.0, 1.0]), 1).alignment(np.eye(3)[:, :1])
""",
    "models.chosen_by": 'chosen_by("key", 1.0)',
    "models.critical_points": _MODEL
    + "critical_points(declared, d=5, n_starts=2, n_samples=64)",
    "models.gaussian": "gaussian(1.0)",
    "models.mixture": 'mixture("a", "b", amplitude=1.0, probabilities=[0.5, 0.5])',
    "models.multiple_of": 'multiple_of("latent", 1.0)',
    "models.one_of": 'one_of("a", "b", amplitude=1.0, probabilities=[0.5, 0.5])',
    "models.signs": "signs(1.0)",
    "nn.RPCAttention": """
import torch
layer, x = RPCAttention(8, 2), torch.randn(1, 4, 8)
layer(x), layer.attention_weights(x), layer.diagnostics(x)
""",
    "nn.ScaledAttention": """
import torch
layer, x = ScaledAttention(8, 2), torch.randn(1, 4, 8)
layer(x), layer.attention_weights(x)
""",
    "nn.SymmetricAttention": """
import torch
layer, x = SymmetricAttention(8, 2), torch.randn(1, 4, 8)
layer(x), layer.attention_weights(x)
""",
    "nn.Visibility": """
import torch
Visibility.from_padding(torch.tensor([[True, True, False]]), is_causal=False)
""",
    "probes.ModelProbe": _PROBE
    + """
probe.can_decide("cka", "keys", 0.05), probe.draws_needed("keys", 0.05)
probe.is_undecided("cka", "keys", 0.05), probe.q_value("cka", "keys")
probe.stands_out("cka", 0.05), probe.summary(0.05)
probe.findings(0.05), probe.top_heads("cka", 1, 0.05)
probe.save("probe.safetensors")
ModelProbe.load("probe.safetensors")
""",
    "probes.Statistic": _PROBE + "one.q_value()",
    "recipes.AttentionChoice": 'AttentionChoice(variant="rpc", layers="first")',
    "recipes.Evaluation": """
Evaluation((), ()).save("tables")
""",
    "recipes.LanguageModel": """
import torch
from eigenheads_papers.recipes._models import LanguageSize
small = LanguageSize(context=8, d_model=8, d_hidden=8, depth=1, n_heads=2)
LanguageModel(20, size=small).eval()(torch.arange(8)[None])
""",
    "recipes.VisionTransformer": """
import torch
from eigenheads_papers.recipes._models import VisionSize
small = VisionSize(image=8, patch=4, d_model=8, depth=1, n_heads=2)
model = VisionTransformer(3, size=small).eval()
images = torch.rand(2, 3, 8, 8)
model(images), model.classify(model.embed(images))
""",
    "recipes.evaluate_checkpoints": _TEXT_RUN
    + """
_train_model("wikitext", data=".", out="run", preset="smoke", epochs=1)
evaluate_checkpoints(["run"], data=".")
""",
    "recipes.train_model": _TEXT_RUN
    + 'train_model("wikitext", data=".", out="run", preset="smoke", epochs=1)',
    "report.OutlierDisplay": _ROWS
    + """
from eigenheads.estimators import RobustPCA
model = RobustPCA(sparsity=3.0).fit(rows)
OutlierDisplay.from_estimator(model, rows).plot()
""",
    "report.AttentionDisplay": _BAGS
    + """
import matplotlib
from eigenheads.estimators import SingleLocationRegressor
matplotlib.use("agg")
model = SingleLocationRegressor().fit(X, y)
AttentionDisplay.from_estimator(model, X[0]).plot()
""",
    "ledger.ProgressDisplay": "ProgressDisplay()",
    "ledger.render_report": _RESULT + "render_report([result])",
    "report.write_bag_summary": _BAGS
    + """
from eigenheads.estimators import SingleLocationRegressor
model = SingleLocationRegressor().fit(X, y)
write_bag_summary(model, X, y, "page.html", cv=2, n_shuffles=1)
""",
    "report.write_probe": _PROBE + 'write_probe(probe, "page")',
    "ledger.write_report": _RESULT + 'write_report("results")',
    "robustness.Robustness": """
result = Robustness(rows=(), confidence=0.95, interval="none")
result.select(model="a"), result.save("rows.csv")
""",
    "theory.LocationLandscape": """
from eigenheads.datasets import SingleLocation
landscape = LocationLandscape(SingleLocation(d=400), inverse_temperature=0.1)
landscape.gradient(0.5, 0.5), landscape.velocity(0.5, 0.5)
""",
    "theory.PCALandscape": """
import numpy as np
from eigenheads.datasets import GaussianPrompts
law = GaussianPrompts(np.diag([3.0, 2.0, 1.0]))
PCALandscape(law, inverse_temperature=1.0).gradient([0.1, 0.5, 0.2])
""",
    "theory.SignalLandscape": """
from eigenheads.datasets import SignalTokens
law = SignalTokens(d=100, n_informative=100, n_nuisance=10_000, strength=0.25)
landscape = SignalLandscape(law)
landscape.gradient([0.5]), landscape.objective([0.5]), landscape.error(0.001)
landscape.escape_time([0.1], level=0.5)
""",
}

# Methods of public classes that the package itself calls, with arguments that are
# checked before: parts of experiments, of simulations and of probes.
INTERNAL = {
    "AttentionChoice.label",
    "AttentionChoice.n_leading",
    "AttentionChoice.read",
    "AttentionChoice.specs",
    "Head.draw",
    "Head.with_changes",
    "HeadStatistic.observe",
    "HeadStatistic.observe_draws",
    "Model.evaluate",
    "Model.law_numbers",
    "Model.workspace",
    "Null.blocks",
    "PrincipalSubspace.warn_if_not_identified",
    "RBFFeatures.varying",
    "TokenAugmentation.attach",
    "Visibility.as_booleans",
    "Visibility.attend",
    "Visibility.hide",
    "Visibility.mean",
    "Visibility.median",
    "Visibility.rows",
    "Visibility.split",
    "Visibility.weights",
    # Callbacks: the package calls them, and those of `Listener` do nothing.
    "Listener.advance",
    "Listener.begin",
    "Listener.estimate",
    "Listener.finish",
    "Listener.leave_out",
    "Listener.start",
    "ProgressDisplay.advance",
    "ProgressDisplay.begin",
    "ProgressDisplay.estimate",
    "ProgressDisplay.finish",
    "ProgressDisplay.leave_out",
    "ProgressDisplay.start",
}
