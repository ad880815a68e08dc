// What the page says: introductions, two sentences a control, captions, summaries, the tour.
"use strict";

(() => {
  const { N_RUNS, fmt, signalLaw } = EH;
  const range = (x) => `mean ${fmt(x.mean)}, from ${fmt(x.low)} to ${fmt(x.high)}, theory ${fmt(x.theory)}`;
  const shared = {
      d: "How many coordinates a token has. A step costs the same at ten and at a billion: only projections are drawn, exactly in law.",
      updates: "How many steps of training a run makes before it stops. Both decays are spread over this number.",
      decay: "How many times smaller the last step is than the first, falling like 1/(1 + c·t). At 1 the step is constant, and the noise of samples never dies out.",
      seed: "Each run draws from its own stream, made of this number and the run's. The same address in the same browser gives the same runs.",
  };

  const location = {
    title: "One token decides",
    intro: "Single-location regression: one token of each prompt decides the answer. A head must learn where to look (key k) and what to read (value v). Thirty heads train at once, against theory.",
    help: {
      ...shared,
      tokens: "How many tokens a prompt has; one of them decides. More tokens mean more distraction for the head.",
      sharpness: "How steeply attention reacts to a token's match with the key, at the start, times √d. Sharp heads listen to noise as well, flat heads hardly listen.",
      cooling: "How many times flatter the head ends than it starts. Started sharp and flattened slowly, almost all heads succeed; flat from the start, many get stuck.",
      batch: "How many fresh prompts one gradient averages. More prompts a step mean calmer paths, and more time a step.",
      step: "Size of the first step, times d: gradients of d coordinates have noise of length √d. Too large, and noise throws the heads off the manifold.",
      noise: "Standard deviation of what is added to the answer. It makes every gradient noisier but leaves the best head where it is.",
      start: "Random starts have overlaps of about 1/√d. In huge dimensions begin at 0.3: from a random start all would need about d·log d updates.",
    },
    why: "Dashed: descent on the exact mean risk, without the noise of samples, from the same thirty starts and averaged like the runs. Runs part from it because small batches are noisy, which holds heads back or kicks them on, now and then to another end; larger batches bring both together.",
    titles: ["Thirty heads <span>over theory's flow</span>", "Overlaps <span>|κ| blue, |ν| orange</span>", "Excess risk <span>mean squared error less ε²</span>", "Distance to the manifold <span>√(θ²+η²+ρ²)</span>"],
    key: [["blue", "", "mean of 30 runs; band: least to greatest"], ["ink", "dash", "theory, mean"], ["orange", "", "|ν|"], ["green", "dot", "oracle"], ["grey", "dash", "best linear; predicting 0"], ["orange", "●", "head now"], ["green", "●", "sink"], ["purple", "■", "source"], ["orange", "✕", "saddle"]],
    say: (s) => {
      const [k, v, e, m] = s.last.stats;
      return [`The square of κ and ν with arrows of theory's flow, its saddle at the origin, sinks at (1, 1) and (−1, −1), sources at the other corners, and thirty paths. After ${fmt(s.step)} updates |κ|: ${range(k)}; |ν|: ${range(v)}.`,
        `Overlaps against updates. |κ|: ${range(k)}. |ν|: ${range(v)}.`, `Excess risk against updates: ${range(e)}; oracle ${fmt(s.last.levels.oracle)}, best linear ${fmt(s.last.levels.linear)}.`, `Distance to the manifold against updates: ${range(m)}.`];
    },
    hint: (P) => `At d = ${fmt(P.d)} one unit of time is ${fmt(P.d / P.step)} updates, and random overlaps are about ${fmt(1 / Math.sqrt(P.d), 1)}: from there no head can be seen to move in ${fmt(P.updates)} updates. From an overlap of 0.3 the zoom shows the first moves, on theory's curve.`,
    summary({ P, step, setup, last }) {
      const [kappa, nu, excess] = last.stats;
      const found = last.orders.filter((o) => Math.min(Math.abs(o[0]), Math.abs(o[1])) > 0.9).length;
      const swapped = last.orders.filter((o) => Math.abs(o[3]) > 0.9).length;
      const theirs = last.theory.filter((o) => Math.abs(o[3]) > 0.9).length;
      const digits = P.start === "overlap" && Math.abs(kappa.mean - 0.3) < 0.01 ? 7 : 3;
      return `Update ${fmt(step)} of ${fmt(P.updates)} at d = ${fmt(P.d)}: mean |κ| ${fmt(kappa.mean, digits)} (theory ${fmt(kappa.theory, digits)}), mean |ν| ${fmt(nu.mean, digits)} (theory ${fmt(nu.theory, digits)}), excess risk ${fmt(excess.mean)} (theory ${fmt(excess.theory)}). ${found} of ${N_RUNS} heads have found both directions${swapped ? `, ${swapped} ${swapped > 1 ? "have" : "has"} taken the value for the key` : ""}${theirs ? `; of theory's ${last.theory.length} paths, ${theirs} took the value for the key` : ""}. One unit of time is ${fmt(1 / setup.step(step))} updates.`;
    },
    python: (P) => `import math
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import ${P.start === "manifold" ? "location_start, " : ""}simulate_location

d, updates = ${P.d}, ${P.updates}
paths = simulate_location(
    SingleLocation(d, n_tokens=${P.tokens}, noise=${P.noise}),
    inverse_temperature=lambda t: ${P.sharpness} / math.sqrt(d) / (1 + ${P.cooling - 1} * t / updates),
    step_size=lambda t: ${P.step} / d / (1 + ${P.decay - 1} * t / updates),
    batch_size=${P.batch}, n_steps=updates, n_runs=${N_RUNS}, record_every=max(1, updates // 400), seed=${P.seed},${
  { sphere: "", overlap: "\n    start=[0.3, 0.3, 0, 0, 0],", manifold: `\n    start=location_start(d, n_runs=${N_RUNS}, seed=${P.seed}, on_manifold=True),` }[P.start]}
)  # the same law; other random numbers than the page's`,
  };

  const signal = {
    title: "Rare tokens, one direction",
    intro: "Signal recovery: a few tokens carry a direction u, with random signs, and most are noise. A query climbs the length of its own attention output and so finds u. Thirty queries train at once, against theory.",
    help: {
      ...shared,
      tokens: "How many tokens a prompt has, informative and noise together. Time a step grows with them, the noise of a step falls.",
      share: "Which part of the tokens carries the direction; at least one token does. The rarer they are, the slower the escape from zero.",
      strength: "Length of the signal in an informative token, divided by √d: its noise has length √d. Click the map to choose share and strength together.",
      sharpness: "How strongly attention prefers an informative token once the query is aligned. Sharper heads climb faster but listen to fewer tokens; β itself is kept below 1.",
      step: "Size of the first step, in units of what theory calls safe: half of 1/escape rate or of escape rate/noise. Far above 1 noise wins, far below it nothing happens.",
    },
    why: "Dashed: theory's mean path from the same thirty starts, with the mean cost of noise, averaged like the runs. Single queries are thrown about by their prompts and leave zero before or after it.",
    titles: ["Thirty queries <span>climb, and choose a sign</span>", "Alignment <span>|q·u|</span>", "Error <span>1 − |q·u|</span>", "Who finds u? <span>θ over share; theory: green head and PCA, purple PCA alone</span>"],
    key: [["blue", "", "mean of 30 runs; band: least to greatest"], ["ink", "dash", "theory, mean"], ["grey", "dash", "PCA of the same tokens"], ["green", "dot", "noise floor of the step"], ["orange", "●", "query now"], ["green", "●", "sink"], ["purple", "■", "source"]],
    say: (s) => {
      const [a, e] = s.last.stats, { head, pca } = s.system.outcome(s.P, s.P.share, s.P.strength);
      return [`Alignments of thirty queries against time, branching from 0 towards 1 and −1, below the landscape they climb: ${s.last.orders.filter((o) => o[0] > 0).length} are on the side of u.`, `Alignment against updates: ${range(a)}; PCA ${fmt(s.last.levels.pca)}.`, `Error against updates: ${range(e)}; noise floor ${fmt(s.last.levels.floor)}.`,
        `Map of share and strength. Here theory says that the head ${head ? "finds" : "does not find"} the direction in ${fmt(s.P.updates)} updates, and that PCA ${pca ? "does" : "does not"}. The sliders Informative share and Strength choose another place.`];
    },
    summary({ P, step, last, setup: { law } }) {
      const spike = (law.nInformative / P.tokens) * P.strength ** 2 * P.d;
      const [alignment, error] = last.stats, up = last.orders.filter((o) => o[0] > 0.9).length;
      const down = last.orders.filter((o) => o[0] < -0.9).length;
      return `Update ${fmt(step)} of ${fmt(P.updates)} at d = ${fmt(P.d)}: mean |q·u| ${fmt(alignment.mean)} (theory ${fmt(alignment.theory)}), error ${fmt(error.mean)} (theory ${fmt(error.theory)}). ${up} of ${N_RUNS} queries have found u and ${down} have found −u. PCA of all tokens read so far would have ${fmt(last.levels.pca)}.${spike > 100 ? ` Signs that do not cancel in a prompt kick queries off zero before theory's mean path leaves it (πA² = ${fmt(spike)}).` : ""}`;
    },
    python(P) {
      const law = signalLaw(P);
      return `from eigenheads.datasets import SignalTokens
from eigenheads.dynamics import simulate_signal

updates = ${P.updates}
law = SignalTokens(
    ${P.d}, n_informative=${law.nInformative}, n_nuisance=${law.nNuisance}, strength=${P.strength},
    inverse_temperature=${law.beta},
)
paths = simulate_signal(
    law, step_size=lambda t: ${P.step * EH.signalFirstStep(law)} / (1 + ${P.decay - 1} * t / updates),
    n_steps=updates, n_runs=${N_RUNS}, record_every=max(1, updates // 400), seed=${P.seed},
)  # the same law; other random numbers than the page's`;
    },
  };

  const tour = [
    ["Thirty runs at once", "figure.hero", { location: "Each orange dot is one head in training, at (κ, ν): how well it knows where to look and what to read. Blue lines are where it came from.", signal: "Each orange dot is one query in training. Time runs upwards: all begin near zero alignment, and each branches to u or to −u." }],
    ["Theory underneath", "figure.hero", { location: "Arrows are the flow that the closed-form risk predicts. It rests at a saddle in the middle, two corners attract (circles) and two repel (squares).", signal: "The curve on top is the closed form that a query climbs. Zero repels (square), the two ends attract (circles); dashed lines are theory's mean paths." }],
    ["Curves, theory dashed", "figure:nth-of-type(2)", { location: "Means and ranges of the overlaps, with descent on the exact risk dashed on top. What is left between them is the noise of samples.", signal: "Alignment and error against updates, with theory's mean path dashed. Strong prompts kick single queries, so runs may leave zero before it; the grey line is PCA of the same tokens." }],
    ["The fourth picture", "figure:nth-of-type(4)", { location: "Three other inner products should vanish. Where this distance grows a head has left the manifold, and some heads take the value for the key.", signal: "A map of share and strength. Green: theory says that the head finds u in this many updates, and so does PCA; purple: PCA alone. Click to go there." }],
    ["Any dimension", "#controls", { location: "Move the first slider. A step costs the same at d = 10 and at d = 10⁹, and it is no approximation; in huge dimensions training takes more updates, and the zoom shows its beginning.", signal: "Move the first slider. A step costs the same at d = 10 and at d = 10⁹, and it is no approximation: all thirty runs at d = 10⁹ are exact in law." }],
  ];

  EH.texts = { location, signal, tour };
})();
