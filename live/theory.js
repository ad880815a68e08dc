// Closed forms: the population risk of single-location regression, the objective of
// signal recovery, and what follows. The names are those of eigenheads.theory.
import {
	abs,
	atan,
	ceil,
	erf,
	exp,
	floor,
	gaussRule,
	hypot,
	log,
	max,
	min,
	PI,
	sqrt,
	Stream,
	tangentOf,
	TWO_OVER_ROOT_PI,
} from "./numbers.js";

const SHORT_RULE = gaussRule(6),
	LONG_RULE = gaussRule(20);

// ---- location ----
// `law` is {d, nTokens, gamma}; `order` is [kappa, nu, theta, eta, rho].

function sharpness(lambda, scale) {
	const g = lambda * scale,
		q = sqrt(1 + 4 * g * g);
	return { w: lambda / sqrt(1 + 2 * g * g), r: 1 / q, length: (4 * g * g) / (q * (q + 1)) };
}

// T(√2 h, 1) - T(√2 h, r) of Owen's T, as the integral from r to 1 that it is.
function owenGap(h, { r, length }) {
	let total = 0;
	for (const [node, weight] of length < 0.05 ? SHORT_RULE : LONG_RULE) {
		const one = 1 + (r + length * node) ** 2;
		total += (weight * exp(-h * h * one)) / one;
	}
	return (total * length) / (2 * PI);
}

function locationSlopes([kappa, nu, theta, eta, rho], { d, nTokens, gamma }, lambda) {
	const near = sharpness(lambda, gamma),
		far = sharpness(lambda, 1),
		{ w, r } = near,
		m = sqrt(d / 2),
		h = w * m * kappa;
	const variance = gamma * gamma,
		p = w * variance,
		t = m * theta,
		erfH = erf(h),
		erfRh = erf(r * h);
	// e_n and z_n are derivatives of erf(h) and of ζ in κ. Owen's T is expensive, and on
	// the manifold its factor is 0.
	const e1 = TWO_OVER_ROOT_PI * exp(-h * h),
		e2 = -2 * h * e1,
		e3 = (4 * h * h - 2) * e1;
	const f1 = r * TWO_OVER_ROOT_PI * exp(-((h * r) ** 2)),
		f2 = -2 * h * r * r * f1,
		zeta = theta === 0 ? 0 : erfH * erfH + 8 * owenGap(h, near);
	const z1 = 2 * w * erfRh * e1,
		z2 = 2 * w * w * (f1 * e1 + erfRh * e2),
		z3 = 2 * w ** 3 * (f2 * e1 + 2 * f1 * e2 + erfRh * e3);
	const slope0 = TWO_OVER_ROOT_PI * far.w,
		others = (nTokens - 1) * slope0;
	const byKappa =
		2 * p * e1 * (erfRh - nu) +
		t * t * z1 +
		variance * rho * (2 * t * z2 + variance * rho * z3) -
		2 * w * p * eta * (t * e2 + p * rho * e3) +
		2 * others * rho * w * (t * e1 + p * rho * e2);
	const byTheta = t * zeta + variance * rho * z1 - p * eta * e1 + others * rho * erfH;
	const byRho =
		variance * (t * z1 + variance * rho * z2) -
		p * p * eta * e2 +
		others * (t * erfH + rho * (2 * p * e1 + slope0 * (nTokens - 2 + 2 * far.r)));
	return [
		m * byKappa,
		-2 * variance * erfH,
		2 * m * byTheta,
		-2 * p * (t * e1 + p * rho * e2),
		2 * byRho,
	];
}

// Population risk without the noise ε². It is quadratic in θ, η, ρ, so that Euler's
// theorem gives it from the derivatives.
export function locationExcess(order, law, lambda) {
	const [kappa, nu, theta, eta, rho] = order,
		[, , byTheta, byEta, byRho] = locationSlopes(order, law, lambda);
	const near = sharpness(lambda, law.gamma),
		far = sharpness(lambda, 1),
		h = near.w * sqrt(law.d / 2) * kappa;
	return (
		law.gamma ** 2 * ((erf(h) - nu) ** 2 + (1 - nu) * (1 + nu) + 8 * owenGap(h, near)) +
		((law.nTokens - 1) * 4 * atan(far.length / (1 + far.r))) / PI +
		(theta * byTheta + eta * byEta + rho * byRho) / 2
	);
}

// The mean of the five numbers after one step of projected SGD: `share` is one over the batch, and `noise` the mean squared
// tangent gradients of one prompt and their product. Without a share it is gradient descent on the population risk.
export function pairStep(order, slopes, a, share = 0, noise = [0, 0, 0]) {
	const [kappa, nu, theta, eta, rho] = order,
		[byKappa, byNu, byTheta, byEta, byRho] = slopes;
	const radialK = kappa * byKappa + eta * byEta + rho * byRho,
		radialV = nu * byNu + theta * byTheta + rho * byRho;
	// Tangent gradients against k*, v*, and the other learned vector.
	const kOnKey = byKappa + theta * byRho - kappa * radialK,
		kOnValue = byEta + nu * byRho - eta * radialK;
	const kOnV = theta * byKappa + nu * byEta + byRho - rho * radialK;
	const vOnKey = byTheta + kappa * byRho - theta * radialV,
		vOnValue = byNu + eta * byRho - nu * radialV;
	const vOnK = kappa * byTheta + eta * byNu + byRho - rho * radialV;
	const mix = (drawn, mean) => share * drawn + (1 - share) * mean;
	const normK = sqrt(1 + a * a * mix(noise[0], byKappa * kOnKey + byEta * kOnValue + byRho * kOnV));
	const normV = sqrt(1 + a * a * mix(noise[1], byNu * vOnValue + byTheta * vOnKey + byRho * vOnK));
	const both = mix(noise[2], byTheta * kOnKey + byNu * kOnValue - radialV * kOnV);
	return [
		(kappa - a * kOnKey) / normK,
		(nu - a * vOnValue) / normV,
		(theta - a * vOnKey) / normV,
		(eta - a * kOnValue) / normK,
		(rho - a * (kOnV + vOnK) + a * a * both) / (normK * normV),
	];
}

const locationStep = (order, law, lambda, a, share, noise) =>
	pairStep(order, locationSlopes(order, law, lambda), a, share, noise);
const locationDescent = (order, law, lambda, a) => locationStep(order, law, lambda, a);

// Nodes and weights for means over a standard normal: a trapezoidal rule, finer for steep heads.
const normalRules = new Map();
function normalRule(steepness) {
	const count = steepness > 2 ? floor(min((61 * steepness) / 2, 4001)) : 61;
	if (!normalRules.has(count)) {
		const nodes = Array.from({ length: count }, (_, i) => -8 + (16 * i) / (count - 1)),
			weights = nodes.map((g) => exp(-0.5 * g * g));
		const total = weights.reduce((sum, weight) => sum + weight, 0);
		normalRules.set(
			count,
			nodes.map((g, i) => [g, weights[i] / total]),
		);
	}
	return normalRules.get(count);
}

// E[φ Wⁿ] of one token, n = 0, 1, 2, for φ = A′²b², A², AA′b, 1; W is what the token adds to the error.
function tokenMoments(meanKey, meanValue, scale, lambda, [nu, eta, rho], decides, rule) {
	const out = Array.from({ length: 4 }, () => [0, 0, 0]),
		variance = scale * scale,
		spread = variance * (1 - rho * rho);
	const withTarget = decides ? variance * (nu - rho * eta) : 0;
	for (const [g, weight] of rule) {
		const x = lambda * (meanKey + scale * g),
			A = erf(x),
			slope = lambda * TWO_OVER_ROOT_PI * exp(-x * x),
			b = meanValue + scale * rho * g;
		const w = A * b - (decides ? scale * eta * g : 0),
			cross = A * spread - withTarget;
		const w2 =
				w * w + A * A * spread + (decides ? variance * (1 - eta * eta) - 2 * A * withTarget : 0),
			b2 = b * b + spread;
		const add = (row, factor, moments) =>
			moments.forEach((moment, n) => (out[row][n] += weight * factor * moment));
		add(0, slope * slope, [
			b2,
			w * b2 + 2 * b * cross,
			b2 * w2 + 4 * b * w * cross + 2 * cross * cross,
		]);
		add(1, A * A, [1, w, w2]);
		add(2, A * slope, [b, b * w + cross, b * w2 + 2 * w * cross]);
		add(3, 1, [1, w, w2]);
	}
	return out;
}

// Mean squared tangent gradients in k and in v of one prompt, and their mean product.
function locationNoise([kappa, nu, theta, eta, rho], { d, nTokens, gamma, noise }, lambda) {
	const m = sqrt(d / 2),
		n = nTokens - 1,
		rule = normalRule(lambda * max(gamma, 1));
	const first = tokenMoments(m * kappa, m * theta, gamma, lambda, [nu, eta, rho], true, rule);
	const other = tokenMoments(0, 0, 1, lambda, [0, 0, rho], false, rule);
	const [, mean0, square0] = first[3],
		[, mean1, square1] = other[3],
		meanRest = mean0 + (n - 1) * mean1;
	const rest0 = n * square1 + n * (n - 1) * mean1 ** 2 + noise ** 2;
	const rest1 =
		square0 +
		2 * mean0 * (n - 1) * mean1 +
		(n - 1) * square1 +
		(n - 1) * (n - 2) * mean1 ** 2 +
		noise ** 2;
	// The noise of the tokens points everywhere, the mean of the deciding token along k* alone.
	const parts = [0, 1, 2].map((row) => {
		const one = first[row][2] + 2 * first[row][1] * n * mean1 + first[row][0] * rest0;
		const two = other[row][2] + 2 * other[row][1] * meanRest + other[row][0] * rest1;
		return [4 * (gamma * gamma * one + n * two), 2 * d * one];
	});
	const both = 1 - kappa ** 2 - theta ** 2 + kappa * theta * rho;
	return [
		(d - 1) * parts[0][0] + parts[0][1] * (1 - kappa ** 2),
		(d - 1) * parts[1][0] + parts[1][1] * (1 - theta ** 2),
		(d - 2 + rho * rho) * parts[2][0] + parts[2][1] * both,
	];
}

// Covariance of the moves of θ, η and ρ by the gradients of one prompt, at a point of the manifold: from prompts that
// are the same at every call, so that the band is a smooth function of the point.
export const MOVE_PARTS = 16; // in which the page computes it
function locationMoves(kappa, nu, { d, nTokens, gamma, noise }, lambda, part = null) {
	const stream = new Stream(0, part ?? 0),
		n = ceil(max(256, 2 ** 16 / nTokens) / (part === null ? 1 : MOVE_PARTS)),
		m = sqrt(d / 2),
		sums = [0, 0, 0, 0, 0, 0];
	const [sideK, sideV] = [kappa, nu].map(tangentOf),
		normal = () => stream.normal();
	for (let prompt = 0; prompt < n; prompt++) {
		let error = -noise * normal(),
			onKey = 0,
			onValue = 0,
			onOther = 0;
		for (let token = 0; token < nTokens; token++) {
			const scale = token ? 1 : gamma,
				key = (token ? 0 : m) + scale * normal(),
				value = scale * normal();
			const field = kappa * key + sideK * scale * normal(),
				b = nu * value + sideV * scale * normal();
			const x = lambda * field,
				A = erf(x),
				slope = lambda * TWO_OVER_ROOT_PI * exp(-x * x) * b;
			error += A * b - (token ? 0 : value);
			onKey += A * key;
			onValue += slope * value;
			onOther += slope * b + A * field;
		}
		const [a, b, c] = [onKey, onValue, onOther].map((sum) => 2 * error * sum);
		[a * a, b * b, c * c, a * b, a * c, b * c].forEach((product, i) => (sums[i] += product / n));
	}
	const [aa, bb, cc, ab, ac, bc] = sums;
	return [
		[aa, ab, ac],
		[ab, bb, bc],
		[ac, bc, cc],
	];
}

// Solve a linear system by elimination with pivots.
function solve(matrix, right) {
	const rows = matrix.map((row, i) => [...row, right[i]]),
		n = rows.length;
	for (let i = 0; i < n; i++) {
		const best = rows.reduce((at, row, k) => (k > i && abs(row[i]) > abs(rows[at][i]) ? k : at), i);
		[rows[i], rows[best]] = [rows[best], rows[i]];
		for (let k = 0; k < n; k++) {
			const factor = k === i ? 0 : rows[k][i] / rows[i][i];
			if (factor) rows[k] = rows[k].map((entry, j) => entry - factor * rows[i][j]);
		}
	}
	return rows.map((row, i) => row[n] / row[i]);
}

// Covariance of θ, η, ρ of runs late in training: J Σ + Σ Jᵀ + D = 0 with the Jacobian J of the mean step. Null where the
// manifold is unstable.
const PAIRS = [
		[0, 0],
		[1, 1],
		[2, 2],
		[0, 1],
		[0, 2],
		[1, 2],
	],
	DIFFERENCE = 1e-4;
export const erfHead = { slopes: locationSlopes, noise: locationNoise, moves: locationMoves };
function locationSpread(kappa, nu, law, lambda, a, batch, head = erfHead) {
	const J = locationJacobian(kappa, nu, law, lambda, a, batch, head);
	return stationarySpread(J, head.moves(kappa, nu, law, lambda), a, batch);
}

// Jacobian of the mean step of θ, η and ρ at a point of the manifold.
export function locationJacobian(kappa, nu, law, lambda, a, batch, head) {
	const moved = (axis, shift) => {
		const order = [kappa, nu, 0, 0, 0];
		order[axis + 2] = shift;
		const noise = head.noise(order, law, lambda),
			next = pairStep(order, head.slopes(order, law, lambda), a, 1 / batch, noise);
		return [2, 3, 4].map((i) => next[i] - order[i]);
	};
	const columns = [0, 1, 2].map((axis) => {
		const [up, down] = [1, -1].map((side) => moved(axis, side * DIFFERENCE));
		return up.map((value, i) => (value - down[i]) / (2 * DIFFERENCE));
	});
	return [0, 1, 2].map((i) => columns.map((column) => column[i]));
}

export function stationarySpread(J, D, a, batch) {
	const minor = (i, k) => J[i][i] * J[k][k] - J[i][k] * J[k][i];
	const trace = J[0][0] + J[1][1] + J[2][2],
		minors = minor(0, 1) + minor(0, 2) + minor(1, 2);
	const det =
		J[0][0] * minor(1, 2) -
		J[0][1] * (J[1][0] * J[2][2] - J[1][2] * J[2][0]) +
		J[0][2] * (J[1][0] * J[2][1] - J[1][1] * J[2][0]);
	// Hurwitz: all eigenvalues have negative real parts.
	if (!(trace < 0 && det < 0 && trace * minors < det)) return null;
	const place = (i, k) => PAIRS.findIndex(([p, q]) => p === min(i, k) && q === max(i, k));
	const matrix = PAIRS.map(([i, k]) => {
		const row = Array(6).fill(0);
		for (let l = 0; l < 3; l++) {
			row[place(l, k)] += J[i][l];
			row[place(i, l)] += J[k][l];
		}
		return row;
	});
	const found = solve(
		matrix,
		PAIRS.map(([i, k]) => (-a * a * D[i][k]) / batch),
	);
	return [0, 1, 2].map((i) => [0, 1, 2].map((k) => found[place(i, k)]));
}

// The middle 80 % of √(θ²+η²+ρ²) for Gaussian θ, η, ρ with this covariance, around zero or
// around several centres alike.
export function middleOfLength(S, centres = [[0, 0, 0]]) {
	const a = sqrt(max(S[0][0], 0)),
		b = a && S[1][0] / a,
		c = a && S[2][0] / a;
	const e = sqrt(max(S[1][1] - b * b, 0)),
		f = e && (S[2][1] - b * c) / e,
		g = sqrt(max(S[2][2] - c * c - f * f, 0));
	const stream = new Stream(1, 0);
	const lengths = Array.from({ length: 1000 }, (_, draw) => {
		const [x, y, z] = [stream.normal(), stream.normal(), stream.normal()],
			[p, q, r] = centres[draw % centres.length];
		return hypot(p + a * x, q + b * x + e * y, r + c * x + f * y + g * z);
	}).sort((one, other) => one - other);
	return [lengths[100], lengths[899]];
}

// Velocity of the gradient flow on the manifold θ = η = ρ = 0, and where it rests for every law.
export function locationField(kappa, nu, law, lambda, slopes = locationSlopes) {
	const [byKappa, byNu] = slopes([kappa, nu, 0, 0, 0], law, lambda);
	return [-byKappa * (1 - kappa) * (1 + kappa), -byNu * (1 - nu) * (1 + nu)];
}

export const LOCATION_FIXED_POINTS = [
	[0, 0, "saddle"],
	[1, 1, "sink"],
	[-1, -1, "sink"],
	[1, -1, "source"],
	[-1, 1, "source"],
];

// ---- signal ----
// `law` is {d, nInformative, nNuisance, strength, beta}; signs are random.

export function promptOf({ d, nInformative, nNuisance, strength, beta }) {
	const n = nInformative + nNuisance;
	return {
		d,
		n,
		beta,
		pi: nInformative / n,
		a: strength * sqrt(d),
		perToken: exp(beta * beta) / n,
	};
}

// Softmax weights w of nuisance tokens and of informative ones of either sign, with mean 1;
// mean shift and spread of a prompt under them, and their slopes in t.
function tilt(t, { pi, a, beta }) {
	const rate = beta * a,
		kinds = [
			[0, 1 - pi],
			[1, pi / 2],
			[-1, pi / 2],
		].map(([side, part]) => ({ side, part, w: exp(rate * (side * t - abs(t))) }));
	const moment = (n, power) =>
		kinds.reduce((sum, { side, part, w }) => sum + part * w ** n * side ** power, 0);
	const total = moment(1, 0);
	for (const kind of kinds) kind.w /= total;
	const mean = moment(1, 1),
		spread = moment(2, 0);
	return {
		kinds,
		shift: a * mean,
		shiftSlope: a * rate * (moment(1, 2) - mean * mean),
		spread,
		spreadSlope: 2 * rate * (moment(2, 1) - spread * mean),
	};
}

export function signalObjective(t, law) {
	const p = promptOf(law),
		{ shift, spread } = tilt(t, p);
	return p.beta ** 2 + (2 * p.beta * t + shift) * shift + (p.d - 2) * p.perToken * spread;
}

function signalGradient(t, law) {
	const p = promptOf(law),
		{ shift, shiftSlope, spreadSlope } = tilt(t, p);
	return (
		2 * (p.beta * shift + (p.beta * t + shift) * shiftSlope) + (p.d - 2) * p.perToken * spreadSlope
	);
}

// Mean squared length of one prompt's gradient outside the plane of q and u.
function signalNoise(t, law) {
	const p = promptOf(law),
		{ d, n, a, beta, perToken } = p,
		{ kinds, shift, spread } = tilt(t, p),
		tangent = tangentOf(t);
	const along = beta * t + shift,
		across = beta * tangent,
		outside = d * perToken * spread,
		length = along ** 2 + across ** 2 + outside;
	let squares = 0,
		products = 0;
	for (const { side, part, w } of kinds) {
		// Product of a token with the output, minus the squared length of the output, with
		// the correction for the token's own weight.
		const centre = along * (side * a + 2 * beta * t) + 2 * beta * across * tangent - length,
			itself = (d / n) * w * exp(2 * beta * beta);
		squares +=
			part *
			w *
			w *
			(centre ** 2 +
				length +
				2 * itself * (centre + beta * (along * t + across * tangent)) +
				itself ** 2 * exp(beta * beta));
		products += part * w * w * (centre + itself);
	}
	return 4 * beta * beta * ((d - 2) * perToken * squares + outside * (1 + (2 * products) / spread));
}

// Mean path of stochastic gradient ascent, noise included: one step.
export function signalAscent(t, law, a) {
	const tangent = tangentOf(t),
		climb = a * tangent * signalGradient(t, law);
	return (t + tangent * climb) / sqrt(1 + climb * climb + a * a * signalNoise(t, law));
}

// Growth of a small alignment in one unit of step; the first step of the rule signal_steps, half of
// what is stable; the updates that escape from an alignment of 1/√d takes at least.
export function signalSteps(law) {
	const { d, pi, a, beta, perToken } = promptOf(law),
		spike = pi * a * a,
		noise = signalNoise(0, law);
	const escapeRate = beta * beta * spike * (4 + 2 * spike + 2 * (d - 2) * perToken),
		largest = min(1 / escapeRate, escapeRate / noise);
	return {
		first: largest / 2,
		escape: log(d) / 2 / (largest * escapeRate - (largest * largest * noise) / 2),
	};
}

// The error at which drift and noise of a small step balance, a unit of step.
export const signalFloor = (law) => signalNoise(1, law) / (4 * signalGradient(1, law));

export const SIGNAL_FIXED_POINTS = [
	[-1, "sink"],
	[0, "source"],
	[1, "sink"],
];

// Alignment of the first principal component of n pooled tokens: 0 if it does not see u.
export function pooledPcaAlignment(fraction, amplitude, d, n) {
	const ratio = d / n,
		spike = fraction * amplitude * amplitude;
	return spike > sqrt(ratio) ? sqrt((1 - ratio / spike ** 2) / (1 + ratio / spike)) : 0;
}
