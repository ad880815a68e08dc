// The two systems: their parameters, what one update is, what is recorded and said.
// Session advances thirty runs and the theory beside them, a few milliseconds at a time.
"use strict";

(() => {
  const N_RUNS = 30, MAX_RECORDS = 400, GAMMA = Math.SQRT1_2, MAX_BETA = 1;

  function fmt(x, digits = 3) {
    if (x === 0 || !Number.isFinite(x)) return String(x);
    const size = Math.abs(x);
    if (size >= 99999.5 || size < 1e-3) {
      const [mantissa, power] = x.toExponential(digits - 1).split("e");
      const up = String(+power).replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
      return Math.abs(+mantissa) === 1 ? `${x < 0 ? "-" : ""}10${up}` : `${+mantissa}·10${up}`;
    }
    const text = String(+x.toPrecision(size >= 1000 ? 5 : digits));
    return size >= 1e4 ? text.replace(/(\d{2})(\d{3})$/, "$1 $2") : text;
  }

  const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
  const log = (key, label, min, max, start, help, more) => ({ key, label, min, max, start, help, log: true, ...more });
  const whole = { whole: true };
  const dimension = (start) => log("d", "Dimension d", 10, 1e9, start, "How many coordinates a token has. A step costs the same at ten and at a billion: only projections are drawn, exactly in law.", whole);
  const updates = (start) => log("updates", "Updates", 100, 1e6, start, "How many steps of training a run makes before it stops. All decays below are spread over this number.", whole);
  const decay = (start) => log("decay", "Step decay", 1, 1000, start, "How many times smaller the last step is than the first, falling like 1/(1 + c·t). At 1 the step is constant, and the noise of samples never dies out.");
  const seed = { key: "seed", label: "Seed", min: 0, max: 4294967295, start: 1, whole: true, number: true, help: "Each run draws from its own stream, made of this number and the run's. The same address gives the same picture on every machine." };

  // ================= location =================
  const location = {
    name: "location",
    title: "One token decides",
    intro: "Single-location regression: one token of each prompt decides the answer. A head must learn where to look (key k) and what to read (value v). Thirty heads train at once, against theory.",
    controls: [
      dimension(80),
      log("tokens", "Tokens", 2, 200, 10, "How many tokens a prompt has; one of them decides. More tokens mean more distraction for the head.", whole),
      log("sharpness", "Sharpness λ√d", 0.1, 100, 18, "How steeply attention reacts to a token's match with the key, at the start, times √d. Sharp heads listen to noise as well, flat heads hardly listen.", { unit: (P) => `λ = ${fmt(P.sharpness / Math.sqrt(P.d))}` }),
      log("cooling", "Sharpness decay", 1, 100, 20, "How many times flatter the head ends than it starts. Started sharp and flattened slowly, almost all heads succeed; flat from the start, many get stuck."),
      { key: "noise", label: "Noise ε", min: 0, max: 2, start: 0.1, grid: 0.05, help: "Standard deviation of what is added to the answer. It makes every gradient noisier but leaves the best head where it is." },
      log("batch", "Batch", 1, 100, 5, "How many fresh prompts one gradient averages. More prompts a step mean calmer paths, and more time a step.", whole),
      log("step", "Step α·d", 0.01, 10, 0.08, "Size of the first step, times d: gradients of d coordinates have noise of length √d. Too large, and noise throws the heads off the manifold.", { unit: (P) => `α = ${fmt(P.step / P.d)}` }),
      decay(1), updates(40000),
      { key: "start", label: "Start", options: { sphere: "random", manifold: "random, on the manifold", overlap: "overlap κ = ν = 0.3" }, start: "sphere", help: "Random starts have overlaps of about 1/√d. In huge dimensions begin at 0.3: from a random start all would need about d·log d updates." },
      seed,
    ],
    setup(P) {
      const law = { d: P.d, nTokens: P.tokens, gamma: GAMMA, noise: P.noise }, root = Math.sqrt(P.d);
      return { law, lambda: (t) => P.sharpness / root / (1 + ((P.cooling - 1) * t) / P.updates),
               step: (t) => P.step / P.d / (1 + ((P.decay - 1) * t) / P.updates) };
    },
    columns: ["kappa", "nu", "theta", "eta", "rho"],
    curves: ["kappa", "nu", "excess", "distance"],
    makeRun: (P, S, run) => new EH.LocationRun(S.law, P.batch, P.start === "overlap" ? 0.3 : P.start, P.seed, run),
    stepRun: (run, t, S) => run.step(S.lambda(t), S.step(t)),
    // From one common start theory has one path.
    theoryStarts: (P, runs) => (P.start === "overlap" ? runs.slice(0, 1) : runs).map((run) => run.order()),
    stepTheory: (order, t, S) => EH.locationDescent(order, S.law, S.lambda(t), S.step(t)),
    derive: ([kappa, nu, theta, eta, rho], t, S) => [Math.abs(kappa), Math.abs(nu),
      EH.locationExcess([kappa, nu, theta, eta, rho], S.law, S.lambda(t)), Math.hypot(theta, eta, rho)],
    levels(t, S) {
      const others = S.law.nTokens - 1, v = GAMMA ** 2;
      return { oracle: EH.locationExcess([1, 1, 0, 0, 0], S.law, S.lambda(t)), linear: v - (v * v) / (v + others), null: v };
    },
    summary({ P, step, setup, last }) {
      const [kappa, nu, excess] = last.stats;
      const found = last.orders.filter((o) => Math.min(Math.abs(o[0]), Math.abs(o[1])) > 0.9).length;
      const swapped = last.orders.filter((o) => Math.abs(o[3]) > 0.9).length;
      const digits = P.start === "overlap" && Math.abs(kappa.mean - 0.3) < 0.01 ? 7 : 3;
      return `Update ${fmt(step)} of ${fmt(P.updates)} at d = ${fmt(P.d)}: mean |κ| ${fmt(kappa.mean, digits)} (theory ${fmt(kappa.theory, digits)}), mean |ν| ${fmt(nu.mean, digits)} (theory ${fmt(nu.theory, digits)}), excess risk ${fmt(excess.mean)} (theory ${fmt(excess.theory)}). ${found} of ${N_RUNS} heads have found both directions${swapped ? `, ${swapped} have taken the value for the key` : ""}. One unit of time is ${fmt(1 / setup.step(step))} updates.`;
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

  // ================= signal =================
  function signalLaw(P, share = P.share, strength = P.strength) {
    const n = P.tokens, informative = Math.min(n, Math.max(1, Math.round(share * n)));
    return { d: P.d, nInformative: informative, nNuisance: n - informative, strength,
             beta: Math.min(MAX_BETA, P.sharpness / (strength * Math.sqrt(P.d))) };
  }

  const signal = {
    name: "signal",
    title: "Rare tokens, one direction",
    intro: "Signal recovery: a few tokens carry a direction u, with random signs, and most are noise. A query climbs the length of its own attention output and so finds u. Thirty queries train at once, against theory.",
    controls: [
      dimension(1e9),
      log("tokens", "Tokens", 20, 10000, 500, "How many tokens a prompt has, informative and noise together. Time a step grows with them, the noise of a step falls.", whole),
      log("share", "Informative share", 0.001, 0.5, 0.05, "Which part of the tokens carries the direction; at least one token does. The rarer they are, the slower the escape from zero.", { unit: (P) => `${signalLaw(P).nInformative} of ${fmt(P.tokens)}` }),
      log("strength", "Strength θ", 1e-4, 3, 0.5, "Length of the signal in an informative token, divided by √d: its noise has length √d. Click the map to choose share and strength together.", { unit: (P) => `A = ${fmt(P.strength * Math.sqrt(P.d))}` }),
      log("sharpness", "Sharpness βA", 0.1, 10, 2.5, "How strongly attention prefers an informative token once the query is aligned. Sharper heads climb faster but listen to fewer tokens; β itself is kept below 1.", { unit: (P) => `β = ${fmt(signalLaw(P).beta)}` }),
      log("step", "Step", 0.05, 20, 1, "Size of the first step, in units of what theory calls safe: half of 1/escape rate or of escape rate/noise. Ten times that, and noise wins.", { unit: (P) => `a₀ = ${fmt(P.step * EH.signalFirstStep(signalLaw(P)))}` }),
      decay(320), updates(2800), seed,
    ],
    setup(P) {
      const law = signalLaw(P), first = P.step * EH.signalFirstStep(law);
      return { law, conditions: EH.signalConditions(law), step: (t) => first / (1 + ((P.decay - 1) * t) / P.updates) };
    },
    columns: ["alignment"],
    curves: ["alignment", "error"],
    makeRun: (P, S, run) => new EH.SignalRun(S.law, P.seed, run),
    stepRun: (run, t, S) => run.step(S.step(t)),
    theoryStarts: (P, runs) => runs.map((run) => run.order()),
    stepTheory: ([q], t, S) => [EH.signalAscent(q, S.law, S.step(t))],
    derive: ([q]) => [Math.abs(q), Math.max(1 - Math.abs(q), 1e-16)],
    levels: (t, S) => ({
      pca: t ? EH.pooledPcaAlignment(S.law.nInformative / (S.law.nInformative + S.law.nNuisance), S.law.strength * Math.sqrt(S.law.d), S.law.d, t * (S.law.nInformative + S.law.nNuisance)) : 0,
      floor: (S.step(t) * S.conditions.endNoise) / (4 * S.conditions.returnRate),
    }),
    // Whether theory lets the head escape, and pooled PCA see, with one pass over all prompts.
    outcome(P, share, strength) {
      const law = signalLaw(P, share, strength), fraction = law.nInformative / P.tokens;
      return { head: EH.signalEscapeSteps(law) < P.updates,
               pca: strength > EH.pooledPcaThreshold(fraction, P.d, P.tokens * P.updates) };
    },
    summary({ P, step, last }) {
      const [alignment, error] = last.stats, up = last.orders.filter((o) => o[0] > 0.9).length;
      const down = last.orders.filter((o) => o[0] < -0.9).length;
      return `Update ${fmt(step)} of ${fmt(P.updates)} at d = ${fmt(P.d)}: mean |q·u| ${fmt(alignment.mean)} (theory ${fmt(alignment.theory)}), error ${fmt(error.mean)} (theory ${fmt(error.theory)}). ${up} of ${N_RUNS} queries have found u and ${down} have found −u. PCA of all tokens read so far would have ${fmt(last.levels.pca)}.`;
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

  // ================= a session =================
  class Session {
    constructor(system, P) {
      Object.assign(this, { system, P, setup: system.setup(P), step: 0, stride: 1, records: [], cost: 0.02, turn: 0 });
      this.runs = Array.from({ length: N_RUNS }, (_, run) => system.makeRun(P, this.setup, run));
      this.theory = system.theoryStarts(P, this.runs);
      this.at = new Float64Array(N_RUNS + this.theory.length);
      this.broken = false;
      this.record();
    }

    get done() { return this.step >= this.P.updates || this.broken; }
    get last() { return this.records[this.records.length - 1]; }

    // Work until the deadline (ms); runs reach a record one after the other.
    advance(deadline) {
      // Bounded also where the clock stands still during a task (virtual time).
      for (let unit = 0; unit < 64 && !this.done && performance.now() < deadline; unit++) {
        const target = Math.min(this.P.updates, (Math.floor(this.step / this.stride) + 1) * this.stride);
        const chunk = Math.min(target - this.at[this.turn], Math.max(1, Math.min(256, Math.floor(0.3 / this.cost))));
        const began = performance.now();
        this.push(this.turn, chunk);
        // A smoothed cost of a step: clocks of browsers are coarse.
        this.cost += 0.02 * ((performance.now() - began) / chunk - this.cost);
        this.cost = Math.max(this.cost, 1e-4);
        if (this.at[this.turn] < target) continue;
        this.turn += 1;
        if (this.turn < this.at.length) continue;
        this.turn = 0;
        this.step = target;
        this.record();
      }
    }

    push(index, count) {
      const { system, setup, at } = this;
      for (let i = 0; i < count; i++, at[index]++) {
        if (index < N_RUNS) system.stepRun(this.runs[index], at[index], setup);
        else this.theory[index - N_RUNS] = system.stepTheory(this.theory[index - N_RUNS], at[index], setup);
      }
    }

    record() {
      const { system, setup, step } = this, orders = this.runs.map((run) => run.order());
      if (orders.some((order) => order.some((x) => !Number.isFinite(x)))) this.broken = true;
      const derived = orders.map((order) => system.derive(order, step, setup));
      const theory = this.theory.map((order) => system.derive(order, step, setup));
      const stats = system.curves.map((_, i) => {
        const sorted = derived.map((row) => row[i]).sort((a, b) => a - b);
        return { mean: mean(sorted), low: sorted[0], high: sorted[N_RUNS - 1], theory: mean(theory.map((row) => row[i])) };
      });
      this.records.push({ step, orders, derived, stats, theory: this.theory.slice(), levels: system.levels(step, setup) });
      if (this.records.length > MAX_RECORDS) {
        this.stride *= 2;
        this.records = this.records.filter((one, i) => one.step % this.stride === 0 || i === this.records.length - 1);
      }
    }

    csv() {
      const { system, P } = this, lines = [`# Eigenheads live, ${system.name}: ${Object.entries(P).map((pair) => pair.join("=")).join(" ")}`];
      lines.push(["step", "run", ...system.columns, ...system.curves.slice(-2).filter((name) => !system.columns.includes(name))].join(","));
      const extra = system.curves.map((name, i) => [name, i]).slice(-2).filter(([name]) => !system.columns.includes(name));
      for (const { step, orders, derived, theory } of this.records) {
        orders.forEach((order, run) => lines.push([step, run, ...order, ...extra.map(([, i]) => derived[run][i])].join(",")));
        theory.forEach((order, run) => lines.push([step, `theory${run}`, ...order, ...extra.map(([, i]) => system.derive(order, step, this.setup)[i])].join(",")));
      }
      return `${lines.join("\n")}\n`;
    }
  }

  Object.assign(EH, { N_RUNS, fmt, systems: { location, signal }, Session });
})();
