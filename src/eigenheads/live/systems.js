// The two systems: parameters, updates and records.
// Session advances runs and theory, a few milliseconds at a time.
"use strict";

const systems = { __proto__: null },
	N_RUNS = 30,
	MAX_RECORDS = 300,
	// Updates in which heads leave random starts; before, they have no stationary spread.
	ESCAPE = 5000,
	GAMMA = Math.SQRT1_2;

function fmt(x, digits = 3) {
	const size = abs(x),
		sign = x < 0 ? "−" : "";
	if (!size || size === Infinity) return String(x);
	if (size >= 99999.5 || size < 1e-3) {
		const [mantissa, power] = size.toExponential(digits - 1).split("e");
		const up = String(+power).replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
		return `${sign}${+mantissa === 1 ? "" : `${+mantissa}·`}10${up}`;
	}
	return sign + +size.toPrecision(size >= 1000 ? 5 : digits);
}

const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
const falling = (first, times, P) => (t) => first / (1 + ((times - 1) * t) / P.updates);

// ---- parameters, each with its two sentences ----
const slider = (key, label, min, max, start, help, unit) => ({
	key,
	label,
	min,
	max,
	start,
	help,
	unit,
});
const count = (...all) => ({ ...slider(...all), whole: true });
const dimension = (start) =>
	count(
		"d",
		"Dimension d",
		10,
		1e9,
		start,
		"Number of coordinates of a token. A step takes the same time at ten and at a billion, and its distribution is exact.",
	);
const ending = (decay, updates) => [
	slider(
		"decay",
		"Step decay",
		1,
		1000,
		decay,
		"Ratio of the first to the last step size. At 1 the step size is constant, and the sampling noise does not decrease.",
	),
	count(
		"updates",
		"Updates",
		100,
		1e6,
		updates,
		"Number of steps of a run. The decays extend over all steps.",
	),
	{
		...count(
			"seed",
			"Seed",
			0,
			2 ** 32 - 1,
			1,
			"Each run has its own random stream, derived from this number. The same address gives the same runs.",
		),
		number: true,
	},
];

// ---- location ----
systems.location = {
	name: "location",
	controls: [
		dimension(80),
		count(
			"tokens",
			"Tokens",
			2,
			200,
			10,
			"Number of tokens in a prompt; one of them decides. The others are noise.",
		),
		slider(
			"sharpness",
			"Sharpness λ√d",
			0.1,
			100,
			18,
			"Initial inverse temperature λ of attention, times √d. Sharp heads also react to noise, and flat heads react weakly.",
			(P) => `λ = ${fmt(P.sharpness / sqrt(P.d))}`,
		),
		slider(
			"cooling",
			"Sharpness decay",
			1,
			100,
			20,
			"Ratio of the first to the last λ. If λ decreases slowly most heads succeed; if it is small from the start many do not.",
		),
		slider(
			"noise",
			"Noise ε",
			0.001,
			2,
			0.1,
			"Standard deviation of the noise in the answer. It makes gradients noisier, but does not change the best head.",
		),
		count(
			"batch",
			"Batch",
			1,
			100,
			5,
			"Number of new prompts per gradient. Larger batches give smoother paths and slower steps.",
		),
		slider(
			"step",
			"Step α·d",
			0.01,
			10,
			0.08,
			"First step size α, times d. If it is too large, the noise of the gradients moves heads away from the manifold.",
			(P) => `α = ${fmt(P.step / P.d)}`,
		),
		{
			key: "start",
			label: "Start",
			start: "sphere",
			options: {
				sphere: "random",
				manifold: "random, on the manifold",
				overlap: "overlap κ = ν = 0.3",
			},
			help: "Random starts have overlaps of about 1/√d. In very high dimensions start at an overlap of 0.3.",
		},
		...ending(1, 40000),
	],
	setup: (P) => ({
		law: { d: P.d, nTokens: P.tokens, gamma: GAMMA, noise: P.noise },
		batch: P.batch,
		lambda: falling(P.sharpness / sqrt(P.d), P.cooling, P),
		step: falling(P.step / P.d, P.decay, P),
	}),
	columns: ["kappa", "nu", "theta", "eta", "rho"],
	derived: ["excess", "distance"],
	makeRun: (P, S, run) =>
		new LocationRun(S.law, P.batch, P.start === "overlap" ? 0.3 : P.start, P.seed, run),
	stepRun: (run, t, S) => run.step(S.lambda(t), S.step(t)),
	// The noise changes slowly: its integrals are computed at every eighth update.
	stepTheory(order, t, S) {
		const isKnown = order.noise && t % 8;
		const noise = isKnown ? order.noise : locationNoise(order, S.law, S.lambda(t));
		const next = locationStep(order, S.law, S.lambda(t), S.step(t), 1 / S.batch, noise);
		return Object.assign(next, { noise });
	},
	stepPlain: (order, t, S) => locationDescent(order, S.law, S.lambda(t), S.step(t)),
	derive: (order, t, S) => [locationExcess(order, S.law, S.lambda(t)), hypot(...order.slice(2))],
	// Where the distance of runs to the manifold lies late in training, from theory's mean overlaps.
	band(theory, t, S) {
		const [kappa, nu] = [0, 1].map((i) => mean(theory.map((order) => abs(order[i]))));
		const spread = locationSpread(kappa, nu, S.law, S.lambda(t), S.step(t), S.batch);
		return spread && middleOfLength(spread);
	},
	overlaps: 2, // the first columns; their sizes are curves
	levels: (t, S) => ({
		oracle: locationExcess([1, 1, 0, 0, 0], S.law, S.lambda(t)),
		linear: 0.5 - 0.25 / (S.law.nTokens - 0.5),
	}), // γ² = ½
};

// ---- signal ----
function signalLaw(P, share = P.share, strength = P.strength) {
	const nInformative = min(P.tokens, max(1, round(share * P.tokens)));
	return {
		d: P.d,
		nInformative,
		nNuisance: P.tokens - nInformative,
		strength,
		beta: min(1, P.sharpness / (strength * sqrt(P.d))),
	};
}

systems.signal = {
	name: "signal",
	controls: [
		dimension(10000),
		count(
			"tokens",
			"Tokens",
			20,
			10000,
			500,
			"Number of tokens in a prompt. With more tokens a step takes longer and has less noise.",
		),
		slider(
			"share",
			"Informative share",
			0.001,
			0.5,
			0.1,
			"Share of the tokens that contain the direction. If they are rare, the escape from zero is slow.",
			(P) => `${signalLaw(P).nInformative} of ${fmt(P.tokens)}`,
		),
		slider(
			"strength",
			"Strength θ",
			1e-4,
			3,
			0.1,
			"Length of the signal in an informative token, divided by the length √d of its noise. Click the map to choose share and strength together.",
			(P) => `A = ${fmt(P.strength * sqrt(P.d))}`,
		),
		slider(
			"sharpness",
			"Sharpness βA",
			0.1,
			10,
			2.5,
			"Logit of an informative token for an aligned query. Sharper heads learn faster but attend to fewer tokens; β is at most 1.",
			(P) => `β = ${fmt(signalLaw(P).beta)}`,
		),
		slider(
			"step",
			"Step",
			0.01,
			20,
			0.15,
			"First step size, in units of the theoretical recommendation. Far above 1 the noise dominates, far below 1 queries hardly move.",
			(P) => `a₀ = ${fmt(P.step * signalSteps(signalLaw(P)).first)}`,
		),
		...ending(50, 2000),
	],
	setup(P) {
		const law = signalLaw(P);
		return {
			law,
			prompt: promptOf(law),
			floor: signalFloor(law),
			step: falling(P.step * signalSteps(law).first, P.decay, P),
		};
	},
	columns: ["alignment"],
	derived: ["error"],
	makeRun: (P, S, run) => new SignalRun(S.law, P.seed, run),
	stepRun: (run, t, S) => run.step(S.step(t)),
	stepTheory: ([q], t, S) => [signalAscent(q, S.law, S.step(t))],
	derive: ([q]) => [max(1 - abs(q), 1e-16)],
	overlaps: 1,
	levels: (t, { step, prompt: { pi, a, d, n }, floor }) => ({
		pca: t && pooledPcaAlignment(pi, a, d, t * n),
		floor: step(t) * floor,
	}),
	// Theoretical prediction: whether the head escapes, and pooled PCA detects u, in one pass.
	outcome(P, share, strength) {
		const law = signalLaw(P, share, strength),
			{ pi, a, d, n } = promptOf(law);
		return {
			head: signalSteps(law).escape < P.updates,
			pca: pooledPcaAlignment(pi, a, d, n * P.updates) > 0,
		};
	},
};

// ---- a session ----
class Session {
	constructor(system, P) {
		Object.assign(this, {
			system,
			P,
			setup: system.setup(P),
			step: 0,
			stride: 1,
			records: [],
			cost: 0.02,
			turn: 0,
			broken: false,
		});
		this.runs = Array.from({ length: N_RUNS }, (_, run) => system.makeRun(P, this.setup, run));
		// From one common start theory has one path.
		this.theory = this.runs.slice(0, P.start === "overlap" ? 1 : N_RUNS).map((run) => run.order());
		// Theory without the noise of the gradients, where the system has both.
		this.plain = system.stepPlain ? this.theory.slice() : [];
		this.at = new Float64Array(N_RUNS + this.theory.length + this.plain.length);
		this.record();
	}

	get done() {
		return this.step >= this.P.updates || this.broken;
	}
	get last() {
		return this.records.at(-1);
	}

	// Work until the deadline (ms); runs, then theory, reach a record one after the other.
	advance(deadline) {
		let tokens = 3e5; // a bound, because some clocks do not advance during a task
		do {
			const now = performance.now();
			const target = min(this.P.updates, (floor(this.step / this.stride) + 1) * this.stride);
			const chunk = min(target - this.at[this.turn], max(1, min(256, floor(0.3 / this.cost))));
			this.push(this.turn, chunk);
			tokens -= chunk * this.P.tokens * (this.P.batch || 1);
			// Smoothed duration of a step, because clocks of browsers are coarse.
			if (this.turn < N_RUNS)
				this.cost = max(1e-4, 0.9 * this.cost + (0.1 * (performance.now() - now)) / chunk);
			if (this.at[this.turn] < target) continue;
			this.turn = (this.turn + 1) % this.at.length;
			if (this.turn) continue;
			this.step = target;
			this.record();
		} while (tokens > 0 && !this.done && performance.now() + this.cost < deadline);
	}

	push(index, count) {
		const { system, setup, at, theory, plain } = this;
		const own = index - N_RUNS,
			other = own - theory.length;
		for (let i = 0; i < count; i++, at[index]++) {
			if (own < 0) system.stepRun(this.runs[index], at[index], setup);
			else if (other < 0) theory[own] = system.stepTheory(theory[own], at[index], setup);
			else plain[other] = system.stepPlain(plain[other], at[index], setup);
		}
	}

	record() {
		const { system, setup, step } = this,
			orders = this.runs.map((run) => run.order()),
			theory = this.theory.slice();
		this.broken ||= !orders.flat().every(Number.isFinite);
		const [ours, theirs, quiet] = [orders, theory, this.plain].map((all) =>
			all.map((order) => [
				...order.slice(0, system.overlaps).map(abs),
				...system.derive(order, step, setup),
			]),
		);
		const stats = ours[0].map((_, i) => {
			const sorted = ours.map((row) => row[i]).sort((a, b) => a - b);
			return {
				mean: mean(sorted),
				low: sorted[3],
				high: sorted[N_RUNS - 4],
				theory: mean(theirs.map((row) => row[i])),
				plain: quiet.length ? mean(quiet.map((row) => row[i])) : null,
			};
		});
		// At few records, which outlive a longer stride.
		const isLate = step >= min(ESCAPE, this.P.updates / 2) && (step % (16 * this.stride) === 0 || this.done);
		const band = (isLate && !this.broken && system.band?.(theory, step, setup)) || null;
		this.records.push({ step, orders, stats, theory, band, levels: system.levels(step, setup) });
		if (this.records.length <= MAX_RECORDS) return;
		this.stride *= 2;
		this.records = this.records.filter((one) => one.step % this.stride === 0 || one.step === step);
	}

	csv() {
		const { system, P, setup } = this,
			lines = [
				`# Eigenheads live, ${system.name}: ${Object.entries(P)
					.map((pair) => pair.join("="))
					.join(" ")}`,
				["step", "run", ...system.columns, ...system.derived].join(),
			];
		for (const { step, orders, theory } of this.records) {
			const add = (kind) => (order, run) =>
				lines.push([step, kind + run, ...order, ...system.derive(order, step, setup)].join());
			orders.forEach(add(""));
			theory.forEach(add("theory"));
		}
		return `${lines.join("\n")}\n`;
	}
}
