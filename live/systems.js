// The four systems: parameters, updates, theory and records.
import { abs, clip, floor, hypot, max, min, round, sqrt } from "./numbers.js";
import {
	erfHead,
	locationExcess,
	locationJacobian,
	middleOfLength,
	MOVE_PARTS,
	pairStep,
	pooledPcaAlignment,
	promptOf,
	signalFloor,
	signalSteps,
	stationarySpread,
} from "./theory.js";
import { HeadsRun, LocationRun, SignalRun, SoftmaxLocationRun } from "./engine.js";
import {
	Fluctuations,
	headsRisk,
	headsStep,
	MIDDLE,
	softmaxExcess,
	softmaxHead,
} from "./softmax.js";
import { signalBands, SignalStarts, signalStep, SignalTurns } from "./signal.js";
import { pcaDescent, pcaForms, pcaRisk, PcaRun, pcaStep, pcaTable } from "./pca.js";

export const systems = { __proto__: null },
	N_RUNS = 30,
	MAX_RECORDS = 300,
	// Updates in which heads leave random starts; before, they have no stationary spread.
	ESCAPE = 5000,
	GAMMA = Math.SQRT1_2;

export function fmt(x, digits = 3) {
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

export const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
const falling = (first, times, P) => (t) => first / (1 + ((times - 1) * t) / P.updates);

// ---- parameters, each with its two sentences ----
const choice = (key, label, options, help) => ({
	key,
	label,
	options,
	start: Object.keys(options)[0],
	help,
});
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
		choice(
			"head",
			"Weights",
			{ erf: "erf", softmax: "softmax" },
			"How scores become weights: erf of each score, or softmax over the tokens. Softmax weights are positive, so that all heads end in one corner.",
		),
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
		choice(
			"start",
			"Start",
			{ sphere: "random", manifold: "random, on the manifold", overlap: "overlap κ = ν = 0.3" },
			"Random starts have overlaps of about 1/√d. In very high dimensions start at an overlap of 0.3.",
		),
		...ending(1, 40000),
	],
	setup: (P) => ({
		law: { d: P.d, nTokens: P.tokens, gamma: GAMMA, noise: P.noise },
		batch: P.batch,
		isSoftmax: P.head === "softmax",
		...(P.head === "softmax"
			? { ...softmaxHead, excess: softmaxExcess }
			: { ...erfHead, excess: locationExcess }),
		lambda: falling(P.sharpness / sqrt(P.d), P.cooling, P),
		step: falling(P.step / P.d, P.decay, P),
	}),
	columns: ["kappa", "nu", "theta", "eta", "rho"],
	derived: ["excess", "distance"],
	makeRun(P, S, run) {
		const Run = S.isSoftmax ? SoftmaxLocationRun : LocationRun;
		return new Run(S.law, P.batch, P.start === "overlap" ? 0.3 : P.start, P.seed, run);
	},
	stepRun: (run, t, S) => run.step(S.lambda(t), S.step(t)),
	// From one common start theory has one path.
	nTheory: (P) => (P.start === "overlap" ? 1 : N_RUNS),
	// The noise changes slowly: its integrals are computed at every eighth update. With
	// softmax the slopes hold for eight updates, and the noise, which is small, for 256.
	stepTheory(order, t, S) {
		const every = S.isSoftmax ? 256 : 8,
			noise = order.noise && t % every ? order.noise : S.noise(order, S.law, S.lambda(t)),
			slopes = this.slopes(order, t, S);
		return Object.assign(pairStep(order, slopes, S.step(t), 1 / S.batch, noise), { noise, slopes });
	},
	stepPlain(order, t, S) {
		const slopes = this.slopes(order, t, S);
		return Object.assign(pairStep(order, slopes, S.step(t)), { slopes });
	},
	slopes: (order, t, S) =>
		S.isSoftmax && order.slopes && t % 8 ? order.slopes : S.slopes(order, S.law, S.lambda(t)),
	derive: (order, t, S) => [S.excess(order, S.law, S.lambda(t)), hypot(...order.slice(2))],
	// Where the distance of runs to the manifold lies. With erf: late in training, from the
	// stationary law at theory's mean overlaps. With softmax the distance relaxes slowly: the
	// covariance of θ, η and ρ is followed in time, around the paths of all starts.
	*bands(theory, t, S, { isKept, isLate }) {
		const { law, isSoftmax } = S,
			lambda = S.lambda(t),
			step = S.step(t);
		if (!(isSoftmax ? isKept : isLate)) return {};
		const [kappa, nu] = [0, 1].map((i) => {
			return mean(theory.map((order) => (isSoftmax ? order[i] : abs(order[i]))));
		});
		const D = [0, 1, 2].map(() => [0, 0, 0]);
		for (let part = 0; part < MOVE_PARTS; part++) {
			S.moves(kappa, nu, law, lambda, part).forEach((row, i) => {
				row.forEach((entry, k) => (D[i][k] += entry / MOVE_PARTS));
			});
			yield;
		}
		const J = locationJacobian(kappa, nu, law, lambda, step, S.batch, S);
		yield;
		if (!isSoftmax) {
			const spread = stationarySpread(J, D, step, S.batch);
			return spread ? { 3: middleOfLength(spread) } : {};
		}
		S.wander ??= new Fluctuations(3);
		S.wander.pass(t - (S.since ?? 0));
		S.since = t;
		S.wander.jacobian = Float64Array.from(J.flat());
		S.wander.added = Float64Array.from(D.flat(), (entry) => (entry * step * step) / S.batch);
		const spread = [0, 1, 2].map((i) => [...S.wander.spread.subarray(3 * i, 3 * i + 3)]);
		return {
			3: middleOfLength(
				spread,
				theory.map((order) => order.slice(2)),
			),
		};
	},
	overlaps: 2, // the first columns; their sizes are curves
	levels: (t, S) => ({
		oracle: S.excess([1, 1, 0, 0, 0], S.law, S.lambda(t)),
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
		const law = signalLaw(P),
			step = falling(P.step * signalSteps(law).first, P.decay, P);
		return {
			law,
			prompt: promptOf(law),
			floor: signalFloor(law),
			turns: new SignalTurns(law),
			starts: new SignalStarts(law, step),
			step,
		};
	},
	columns: ["alignment"],
	derived: ["error"],
	makeRun: (P, S, run) => new SignalRun(S.law, P.seed, run),
	stepRun: (run, t, S) => run.step(S.step(t)),
	prepare: (S) => S.turns.prepare(),
	stepTheory: signalStep,
	bands: (theory, t, S, { isOften }) => (isOften ? signalBands(theory, S) : {}),
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

// ---- two heads ----
systems.heads = {
	name: "heads",
	controls: [
		dimension(1000),
		count(
			"tokens",
			"Tokens",
			2,
			100,
			10,
			"Number of tokens in a prompt: one with each of the two features, and others that are noise. Each token has a value, and the answer is the sum of the values of the first two.",
		),
		slider(
			"amplitude",
			"Strength A",
			1,
			20,
			5,
			"Length of a feature in its token; noise has length 1 in every direction. Weak features need more updates, and the heads part later.",
			(P) => `λA = ${fmt(P.sharpness * P.amplitude)}`,
		),
		slider(
			"sharpness",
			"Sharpness λ",
			0.1,
			2,
			0.5,
			"Inverse temperature of the softmax of both heads. Flat heads first look at both features together; sharp heads part at once.",
		),
		slider(
			"noise",
			"Noise ε",
			0.001,
			2,
			0.1,
			"Standard deviation of the noise in the answer. It makes gradients noisier, but does not change the best heads.",
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
			0.05,
			10,
			1,
			"First step size α, times d. Larger steps learn faster, and their noise keeps the heads away from the features.",
			(P) => `α = ${fmt(P.step / P.d)}`,
		),
		slider(
			"overlap",
			"Start",
			0.001,
			0.6,
			0.1,
			"Overlap of every head with both features at the start. It is the same for all runs, so that theory has one path.",
		),
		slider(
			"lead",
			"Lead",
			0.0001,
			0.3,
			0.02,
			"Additional overlap of head 1 with feature 1, and of head 2 with feature 2, at the start. If it is small, noise decides which head takes which feature.",
		),
		...ending(1, 20000),
	],
	setup(P) {
		const step = falling(P.step / P.d, P.decay, P),
			// Overlaps should move little while integrals hold.
			hold = (t) => floor(clip(0.03 / step(t), 1, max(1, P.updates / 150)));
		const law = { d: P.d, nTokens: P.tokens, amplitude: P.amplitude, noise: P.noise };
		return {
			law,
			batch: P.batch,
			lambda: P.sharpness,
			step,
			hold,
			start: [min(0.7, P.overlap + P.lead), P.overlap],
		};
	},
	columns: ["k1f1", "k2f2", "k2f1", "k1f2", "k1k2"],
	derived: ["own", "other", "likeness", "excess"],
	makeRun: (P, S, run) => new HeadsRun(S.law, P.batch, S.start, P.seed, run),
	// The sixth number is the mean loss since the last record; at the start, the risk.
	orderOf: (run, S) => [
		...run.order(),
		run.loss() ?? (S.first ??= headsRisk(run.order(), S.law, S.lambda).excess),
	],
	stepRun: (run, t, S) => run.step(S.lambda, S.step(t)),
	nTheory: () => 1,
	stepTheory: headsStep,
	// A head's own feature is the one that it has more of.
	derive(order) {
		const [a, b] = [(order[0] + order[1]) / 2, (order[2] + order[3]) / 2];
		return [max(a, b), min(a, b), order[4], order[5]];
	},
	bands([order]) {
		const wander = order.memo?.wander;
		if (!wander) return {};
		const around = (middle, deviation) =>
			[-1, 1].map((side) => clip(middle + side * MIDDLE * deviation, -1, 1));
		const [own, other] = this.derive(order);
		return {
			0: around(own, wander.deviation(0, [0.5, 0.5, 0, 0, 0])),
			1: around(other, wander.deviation(0, [0, 0, 0.5, 0.5, 0])),
			2: around(order[4], wander.deviation(4)),
		};
	},
	overlaps: 0,
	levels: (t, S) => ({ best: (S.best ??= headsRisk([1, 1, 0, 0, 0], S.law, S.lambda).excess) }),
};

// ---- principal component ----
const N_LEADING = 5;

systems.pca = {
	name: "pca",
	controls: [
		choice(
			"head",
			"Weights",
			{ softmax: "softmax", linear: "linear" },
			"How scores become weights: softmax over the tokens, or the scores themselves. Both heads have a minimum along the first eigenvector only.",
		),
		dimension(1000),
		count(
			"tokens",
			"Tokens",
			2,
			500,
			50,
			"Number of tokens in a prompt; the first is the query that the head reconstructs. With more tokens the reconstruction comes closer to PCA.",
		),
		slider(
			"ratio",
			"Ratio of eigenvalues",
			0.05,
			0.95,
			0.6,
			"Each of the five leading eigenvalues divided by the one before; the first is 1. If it is close to 1, the head separates the eigenvectors slowly.",
			(P) => `σ₂ = ${fmt(P.ratio)}`,
		),
		slider(
			"bulk",
			"Bulk variance",
			0.01,
			100,
			0.5,
			"Sum of all other eigenvalues, which are equal. It makes gradients noisier, and adds directions in which nothing pulls the head back.",
		),
		count(
			"batch",
			"Batch",
			1,
			100,
			10,
			"Number of new prompts per gradient. Larger batches give smoother paths and slower steps.",
		),
		slider(
			"step",
			"Step",
			0.01,
			2,
			0.1,
			"First step size, in units of the largest that is stable at the minimum. Far below 1 noise is small, and training is slow.",
			(P) => `α = ${fmt(P.step * pcaStable(P))}`,
		),
		slider(
			"overlap",
			"Start",
			0.01,
			1,
			0.1,
			"Overlap with each leading eigenvector, and length in the bulk, at the start. It is the same for all runs, so that theory has one path.",
		),
		...ending(10, 1000),
	],
	setup(P) {
		const law = pcaLaw(P),
			step = falling(P.step * pcaStable(P), P.decay, P),
			table = pcaTable(JSON.stringify([P.tokens, law.isSoftmax]));
		// The start is in units of the minimum, 1/√c of the linear head's is smaller.
		const size = P.overlap * (law.isSoftmax ? 1 : 1 / sqrt(P.tokens + 3));
		return {
			law,
			table,
			batch: P.batch,
			step,
			hold: () => max(1, floor(P.updates / 200)),
			start: Array(N_LEADING + 1).fill(size),
		};
	},
	prepare: (S) => S.table.prepare(),
	columns: [...Array.from({ length: N_LEADING }, (_, i) => `u${i + 1}`), "bulk"],
	derived: ["alignment", "strength", "risk"],
	makeRun: (P, S, run) => new PcaRun(S.law, P.batch, S.start, P.seed, run),
	stepRun: (run, t, S) => run.step(S.step(t)),
	nTheory: () => 1,
	stepTheory: pcaStep,
	stepPlain: pcaDescent,
	derive(order, t, S) {
		const { c, square } = pcaForms(order, S.law);
		return [abs(order[0]) / sqrt(square || 1), c, pcaRisk(order, S.law, S.table)];
	},
	// Deviations of alignment and strength, to first order in those of the overlaps.
	bands([order], t, S) {
		const wander = order.memo?.wander,
			plain = [...order];
		if (!wander) return {};
		const middle = this.derive(plain, t, S),
			slopes = plain.map((_, i) => {
				const moved = plain.slice();
				moved[i] += 1e-5;
				return this.derive(moved, t, S).map((value, k) => (value - middle[k]) / 1e-5);
			});
		return Object.fromEntries(
			[0, 1, 2].map((k) => {
				const deviation = wander.deviation(
					0,
					slopes.map((row) => row[k]),
				);
				return [
					k,
					[-1, 1].map((side) =>
						clip(
							middle[k] + side * MIDDLE * deviation,
							k === 2 ? S.law.trace * 1e-3 : 0,
							k ? Infinity : 1,
						),
					),
				];
			}),
		);
	},
	overlaps: 0,
	levels: (t, S) => ({ pca: S.law.trace - S.law.roots[0] ** 2, null: S.law.trace }),
};

function pcaLaw({ d, tokens, ratio, bulk, head }) {
	const leading = Array.from({ length: N_LEADING }, (_, i) => ratio ** i),
		trace = leading.reduce((sum, x) => sum + x, bulk);
	return {
		d,
		nTokens: tokens,
		isSoftmax: head === "softmax",
		roots: leading.map(sqrt),
		bulk: sqrt(bulk / (d - N_LEADING)),
		trace,
	};
}

// The largest step that is stable along the first eigenvector, whose eigenvalue is 1.
function pcaStable(P) {
	const { isSoftmax, trace, nTokens } = pcaLaw(P);
	return 1 / (4 * (isSoftmax ? 1 : trace + nTokens + 1));
}
