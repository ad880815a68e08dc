// Closed forms: the population risk of single-location regression, the objective of
// signal recovery, and what follows. The names are those of eigenheads.theory.
"use strict";

(() => {
const { erf, erfc, TWO_OVER_ROOT_PI, gaussRule } = EH;
const SHORT = 0.05, SHORT_RULE = gaussRule(6), LONG_RULE = gaussRule(20);

// ---- location ----
// `law` is {d, nTokens, gamma}; `order` is [kappa, nu, theta, eta, rho].

function sharpness(lambda, scale) {
	const g = lambda * scale, q = Math.sqrt(1 + 4 * g * g);
	return { w: lambda / Math.sqrt(1 + 2 * g * g), r: 1 / q, length: (4 * g * g) / (q * (q + 1)) };
}

// T(√2 h, 1) - T(√2 h, r) of Owen's T, as the integral from r to 1 that it is.
function owenGap(h, { r, length }) {
	const rule = length < SHORT ? SHORT_RULE : LONG_RULE;
	let total = 0;
	for (let i = 0; i < rule.nodes.length; i++) {
		const t = r + length * rule.nodes[i], one = 1 + t * t;
		total += (rule.weights[i] * Math.exp(-h * h * one)) / one;
	}
	return (total * length) / (2 * Math.PI);
}

function heads(law, lambda) {
	return { m: Math.sqrt(law.d / 2), variance: law.gamma ** 2, others: law.nTokens - 1,
					 near: sharpness(lambda, law.gamma), far: sharpness(lambda, 1) };
}

function moments(kappa, { m, near: { w, r } }) {
	const h = w * m * kappa, erfH = erf(h), erfRh = erf(r * h);
	const e1 = TWO_OVER_ROOT_PI * Math.exp(-h * h), e2 = -2 * h * e1, e3 = (4 * h * h - 2) * e1;
	const f1 = r * TWO_OVER_ROOT_PI * Math.exp(-h * r * (h * r)), f2 = -2 * h * r * r * f1;
	return { h, erfH, erfRh, e1, e2, e3, z1: 2 * w * erfRh * e1, z2: 2 * w * w * (f1 * e1 + erfRh * e2),
					 z3: 2 * w * w * w * (f2 * e1 + 2 * f1 * e2 + erfRh * e3) };
}

// Population risk without the noise ε².
function locationExcess([kappa, nu, theta, eta, rho], law, lambda) {
	const head = heads(law, lambda), { m, variance, others, near, far } = head, { w } = near;
	const { h, erfH, e1, e2, z1, z2 } = moments(kappa, head), gap = owenGap(h, near);
	const t = m * theta, mean = t * erfH + w * variance * rho * e1, mean0 = TWO_OVER_ROOT_PI * far.w * rho;
	const onManifold = variance * ((erfH - nu) ** 2 + (1 - nu) * (1 + nu) + 8 * gap);
	const own = t * t * (erfH * erfH + 8 * gap) + variance * rho * (2 * t * z1 + variance * rho * z2);
	const cross = w * variance * eta * (t * e1 + w * variance * rho * e2);
	const curvature = 2 * TWO_OVER_ROOT_PI ** 2 * far.w ** 2 * far.r;
	const rest = rho * rho * curvature + mean0 * (2 * mean + (others - 1) * mean0);
	const zeta0 = (4 / Math.PI) * Math.atan(far.length / (1 + far.r));
	return onManifold + own - 2 * cross + others * (rest + zeta0);
}

function locationSlopes([kappa, nu, theta, eta, rho], law, lambda) {
	const head = heads(law, lambda), { m, variance, others, near, far } = head, { w } = near;
	const { h, erfH, erfRh, e1, e2, e3, z1, z2, z3 } = moments(kappa, head);
	// Owen's T is the dear part, and on the manifold its factor is 0.
	const zeta = theta === 0 ? 0 : erfH * erfH + 8 * owenGap(h, near);
	const p = w * variance, t = m * theta, slope0 = TWO_OVER_ROOT_PI * far.w;
	const curvature = 2 * TWO_OVER_ROOT_PI ** 2 * far.w ** 2 * far.r;
	const mean = t * erfH + p * rho * e1;
	const byKappa = 2 * p * e1 * (erfRh - nu) + t * t * z1 + variance * rho * (2 * t * z2 + variance * rho * z3)
		- 2 * w * p * eta * (t * e2 + p * rho * e3) + 2 * others * slope0 * rho * w * (t * e1 + p * rho * e2);
	const byTheta = t * zeta + variance * rho * z1 - p * eta * e1 + others * slope0 * rho * erfH;
	const byRho = variance * (t * z1 + variance * rho * z2) - p * p * eta * e2
		+ others * (rho * curvature + slope0 * (mean + rho * p * e1 + (others - 1) * rho * slope0));
	return [m * byKappa, -2 * variance * erfH, 2 * m * byTheta, -2 * p * (t * e1 + p * rho * e2), 2 * byRho];
}

// The five numbers after one step of projected gradient descent on the population risk.
function locationDescent(order, law, lambda, a) {
	const [kappa, nu, theta, eta, rho] = order;
	const [byKappa, byNu, byTheta, byEta, byRho] = locationSlopes(order, law, lambda);
	const radialK = kappa * byKappa + eta * byEta + rho * byRho;
	const radialV = nu * byNu + theta * byTheta + rho * byRho;
	const kOnKey = byKappa + theta * byRho - kappa * radialK, kOnValue = byEta + nu * byRho - eta * radialK;
	const kOnV = theta * byKappa + nu * byEta + byRho - rho * radialK;
	const vOnKey = byTheta + kappa * byRho - theta * radialV, vOnValue = byNu + eta * byRho - nu * radialV;
	const vOnK = kappa * byTheta + eta * byNu + byRho - rho * radialV;
	const normK = Math.sqrt(1 + a * a * (byKappa * kOnKey + byEta * kOnValue + byRho * kOnV));
	const normV = Math.sqrt(1 + a * a * (byNu * vOnValue + byTheta * vOnKey + byRho * vOnK));
	const both = byTheta * kOnKey + byNu * kOnValue - radialV * kOnV;
	return [(kappa - a * kOnKey) / normK, (nu - a * vOnValue) / normV, (theta - a * vOnKey) / normV,
					(eta - a * kOnValue) / normK, (rho - a * (kOnV + vOnK) + a * a * both) / (normK * normV)];
}

// Velocity of the gradient flow on the manifold θ = η = ρ = 0.
function locationField(kappa, nu, law, lambda) {
	const [byKappa, byNu] = locationSlopes([kappa, nu, 0, 0, 0], law, lambda);
	return [-byKappa * (1 - kappa) * (1 + kappa), -byNu * (1 - nu) * (1 + nu)];
}

function locationFixedPoints(law, lambda) {
	const { m, variance, near: { w, r } } = heads(law, lambda), s = w * m;
	const b = 2 * variance * s * TWO_OVER_ROOT_PI, p = b * s * r * TWO_OVER_ROOT_PI;
	const reach = Math.hypot(p / 2, b) + p / 2;
	const points = [{ kappa: 0, nu: 0, kind: "saddle", eigenvalues: [-reach, b * (b / reach)] }];
	for (const [kappa, nu] of [[1, 1], [-1, -1], [1, -1], [-1, 1]]) {
		const inward = kappa === nu, distance = inward ? erfc(r * s) : 1 + erf(r * s), sign = inward ? -1 : 1;
		const rates = [4 * variance * s * TWO_OVER_ROOT_PI * Math.exp(-s * s) * distance, 4 * variance * erf(s)];
		points.push({ kappa, nu, kind: inward ? "sink" : "source",
									eigenvalues: rates.map((rate) => sign * rate).sort((x, y) => x - y) });
	}
	return points;
}

// ---- signal ----
// `law` is {d, nInformative, nNuisance, strength, beta}; random signs. Counts need not be whole.

function prompt({ d, nInformative, nNuisance, strength, beta }) {
	const n = nInformative + nNuisance;
	return { d, n, beta, pi: nInformative / n, a: strength * Math.sqrt(d), perToken: Math.exp(beta * beta) / n };
}

function tilt(t, { pi, a, beta }) {
	const rate = beta * a, y = rate * t, e = Math.exp(-Math.abs(y)), sign = y < 0 ? -1 : 1;
	if (pi === 0) return { shift: 0, shiftSlope: 0, spread: 1, spreadSlope: 0 };
	const c = (1 + e * e) / 2, s = (sign * (1 - e * e)) / 2, c2 = (1 + e ** 4) / 2, s2 = (sign * (1 - e ** 4)) / 2;
	const mean = (1 - pi) * e + pi * c, spread = ((1 - pi) * e * e + pi * c2) / mean ** 2;
	return { shift: (pi * a * s) / mean, shiftSlope: (pi * a * rate * e * ((1 - pi) * c + pi * e)) / mean ** 2,
					 spread, spreadSlope: (2 * pi * rate * (s2 - spread * mean * s)) / mean ** 2 };
}

function signalObjective(t, law) {
	const p = prompt(law), { shift, spread } = tilt(t, p);
	return p.beta ** 2 + (2 * p.beta * t + shift) * shift + (p.d - 2) * p.perToken * spread;
}

function signalGradient(t, law) {
	const p = prompt(law), { shift, shiftSlope, spreadSlope } = tilt(t, p);
	return 2 * (p.beta * shift + (p.beta * t + shift) * shiftSlope) + (p.d - 2) * p.perToken * spreadSlope;
}

// Mean squared length of one prompt's gradient outside the plane of q and u.
function signalNoise(t, law) {
	const p = prompt(law), { d, n, pi, a, beta, perToken } = p, { shift, spread } = tilt(t, p);
	const tangent = Math.sqrt((1 - t) * (1 + t)), along = beta * t + shift, across = beta * tangent;
	const inside = along * along + across * across, outside = d * perToken * spread;
	const withQuery = along * t + across * tangent, far = Math.abs(beta * a * t);
	const kinds = [[0, 1 - pi], [1, pi / 2], [-1, pi / 2]];
	let mean = 0, squares = 0, products = 0, weight = 0;
	for (const [sign, share] of kinds) mean += share * Math.exp(sign * beta * a * t - far);
	for (const [sign, share] of kinds) {
		const w = Math.exp(sign * beta * a * t - far) / mean, itself = (d / n) * w * Math.exp(2 * beta * beta);
		const centre = along * (sign * a + 2 * beta * t) + across * 2 * beta * tangent - (inside + outside);
		const square = centre * centre + inside + outside + 2 * itself * (centre + beta * withQuery)
			+ itself * itself * Math.exp(beta * beta);
		squares += share * w * w * square;
		products += share * w * w * (centre + itself);
		weight += share * w * w;
	}
	return 4 * beta * beta * ((d - 2) * perToken * squares + outside * (1 + (2 * products) / weight));
}

// Mean path of stochastic gradient ascent, noise included: one step.
function signalAscent(t, law, a) {
	const tangent = Math.sqrt(Math.max(0, (1 - t) * (1 + t))), climb = a * tangent * signalGradient(t, law);
	return (t + tangent * climb) / Math.sqrt(1 + climb * climb + a * a * signalNoise(t, law));
}

function signalConditions(law) {
	const { d, pi, a, beta, perToken } = prompt(law), spike = pi * a * a;
	return { escapeRate: beta * beta * spike * (4 + 2 * spike + 2 * (d - 2) * perToken),
					 returnRate: signalGradient(1, law), startNoise: signalNoise(0, law), endNoise: signalNoise(1, law) };
}

// The first step of the rule signal_steps: half of what is stable.
function signalFirstStep(law) {
	const { escapeRate, startNoise } = signalConditions(law);
	return 0.5 * Math.min(1 / escapeRate, escapeRate / startNoise);
}

// Updates that escape from an alignment of 1/√d takes at least.
function signalEscapeSteps(law) {
	const { escapeRate, startNoise } = signalConditions(law);
	const a = Math.min(escapeRate / startNoise, 1 / escapeRate);
	return Math.log(law.d) / 2 / (a * escapeRate - (a * a * startNoise) / 2);
}

const signalFixedPoints = () => [[-1, "sink"], [0, "source"], [1, "sink"]].map(([alignment, kind]) => ({ alignment, kind }));

// Principal components of n pooled tokens: alignment, and the strength at which they see.
function pooledPcaAlignment(fraction, amplitude, d, n) {
	const ratio = d / n, spike = fraction * amplitude * amplitude;
	return spike > Math.sqrt(ratio) ? Math.sqrt((1 - ratio / spike ** 2) / (1 + ratio / spike)) : 0;
}

const pooledPcaThreshold = (fraction, d, n) => (fraction * fraction * n * d) ** -0.25;

Object.assign(EH, { locationExcess, locationSlopes, locationDescent, locationField, locationFixedPoints,
	signalObjective, signalGradient, signalNoise, signalAscent, signalConditions, signalFirstStep,
	signalEscapeSteps, signalFixedPoints, pooledPcaAlignment, pooledPcaThreshold });
})();
