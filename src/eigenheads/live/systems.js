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
const log = (key, label, min, max, start, more) => ({ key, label, min, max, start, log: true, ...more });
const whole = { whole: true };
const dimension = (start) => log("d", "Dimension d", 10, 1e9, start, whole);
const updates = (start) => log("updates", "Updates", 100, 1e6, start, whole);
const decay = (start) => log("decay", "Step decay", 1, 1000, start);
const seed = { key: "seed", label: "Seed", min: 0, max: 4294967295, start: 1, whole: true, number: true };

// ---- location ----
const location = {
	name: "location",
	controls: [
		dimension(80),
		log("tokens", "Tokens", 2, 200, 10, whole),
		log("sharpness", "Sharpness λ√d", 0.1, 100, 18, { unit: (P) => `λ = ${fmt(P.sharpness / Math.sqrt(P.d))}` }),
		log("cooling", "Sharpness decay", 1, 100, 20),
		{ key: "noise", label: "Noise ε", min: 0, max: 2, start: 0.1, grid: 0.05 },
		log("batch", "Batch", 1, 100, 5, whole),
		log("step", "Step α·d", 0.01, 10, 0.08, { unit: (P) => `α = ${fmt(P.step / P.d)}` }),
		decay(1), updates(40000),
		{ key: "start", label: "Start", options: { sphere: "random", manifold: "random, on the manifold", overlap: "overlap κ = ν = 0.3" }, start: "sphere" },
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
};

// ---- signal ----
function signalLaw(P, share = P.share, strength = P.strength) {
	const n = P.tokens, informative = Math.min(n, Math.max(1, Math.round(share * n)));
	return { d: P.d, nInformative: informative, nNuisance: n - informative, strength,
					 beta: Math.min(MAX_BETA, P.sharpness / (strength * Math.sqrt(P.d))) };
}

const signal = {
	name: "signal",
	controls: [
		dimension(10000),
		log("tokens", "Tokens", 20, 10000, 500, whole),
		log("share", "Informative share", 0.001, 0.5, 0.1, { unit: (P) => `${signalLaw(P).nInformative} of ${fmt(P.tokens)}` }),
		log("strength", "Strength θ", 1e-4, 3, 0.1, { unit: (P) => `A = ${fmt(P.strength * Math.sqrt(P.d))}` }),
		log("sharpness", "Sharpness βA", 0.1, 10, 2.5, { unit: (P) => `β = ${fmt(signalLaw(P).beta)}` }),
		log("step", "Step", 0.01, 20, 0.15, { unit: (P) => `a₀ = ${fmt(P.step * EH.signalFirstStep(signalLaw(P)))}` }),
		decay(50), updates(2000), seed,
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
};

// ---- a session ----
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
		let tokens = 3e5, fits = true; // one piece always: a hiccup must not look like a cost that never fits
		for (let now = performance.now(); tokens > 0 && !this.done && fits; now = performance.now(), fits = now + this.cost < deadline) {
			const target = Math.min(this.P.updates, (Math.floor(this.step / this.stride) + 1) * this.stride);
			const chunk = Math.min(target - this.at[this.turn], Math.max(1, Math.min(256, Math.floor(0.3 / this.cost))));
			this.push(this.turn, chunk);
			tokens -= chunk * this.P.tokens * (this.P.batch || 1);
			// A smoothed cost of a step: clocks of browsers are coarse.
			if (this.turn < N_RUNS) this.cost += 0.1 * ((performance.now() - now) / chunk - this.cost);
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
		this.records.push({ step, orders, stats, theory: this.theory.slice(), levels: system.levels(step, setup) });
		if (this.records.length > MAX_RECORDS) {
			this.stride *= 2;
			this.records = this.records.filter((one, i) => one.step % this.stride === 0 || i === this.records.length - 1);
		}
	}

	csv() {
		const { system, P, setup } = this, n = system.columns.length;
		// The last curves are no columns yet: excess risk and distance, or the error.
		const first = system.curves.length - (n > 1 ? 2 : 1);
		const lines = [`# Eigenheads live, ${system.name}: ${Object.entries(P).map((pair) => pair.join("=")).join(" ")}`,
			["step", "run", ...system.columns, ...system.curves.slice(first)].join(",")];
		for (const { step, orders, theory } of this.records) {
			const add = (kind) => (order, run) => lines.push([step, kind + run, ...order, ...system.derive(order, step, setup).slice(first)].join(","));
			orders.forEach(add(""));
			theory.forEach(add("theory"));
		}
		return `${lines.join("\n")}\n`;
	}
}

Object.assign(EH, { N_RUNS, fmt, signalLaw, systems: { location, signal }, Session });
})();
