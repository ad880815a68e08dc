// Means over softmax weights, by quadrature. With weights p_i = w_i / Z, Z = Σ w_i,
//   1 / Zᵐ = ∫ sᵐ⁻¹ e^{-sZ} ds / (m - 1)!,
// and e^{-sZ} is a product over tokens. A mean over all tokens is therefore one integral
// over log s of products of means over one token. All rules are trapezoidal, and converge
// exponentially.
import { abs, bell, ceil, exp, floor, max, min, PI, sqrt } from "./numbers.js";
import { MOVE_PARTS, pairStep } from "./theory.js";
import { HeadsRun, SoftmaxLocationRun } from "./engine.js";

const FAR = 6.5; // a standard normal is larger with probability 1e-10
export const LEFT = 15; // e^{-15} is neglected

// Nodes g, weights of the standard normal law and e^{scale·g}; the last few scales are kept.
export const recent = (make, size) => {
	const kept = new Map();
	return (key) => {
		if (!kept.has(key)) {
			if (kept.size >= size) kept.delete(kept.keys().next().value);
			kept.set(key, make(key));
		}
		return kept.get(key);
	};
};

export const tiltRule = recent((scale) => {
	const gap = 0.5 / max(1, abs(scale)),
		count = ceil(FAR / gap),
		g = Float64Array.from({ length: 2 * count + 1 }, (_, i) => (i - count) * gap);
	return {
		g,
		weight: g.map((x) => (gap * bell(x)) / sqrt(2 * PI)),
		tilt: g.map((x) => exp(scale * x)),
	};
}, 128);

// Means E[ŵᵏ gʲ e^{-ŵ}] with ŵ = e^{u + scale·g}, for k < 4 and j < 3: out[3k + j].
export function tiltedMoments(u, { g, weight, tilt }, out) {
	const size = exp(u);
	let s0 = 0,
		s1 = 0,
		s2 = 0,
		s3 = 0,
		s4 = 0,
		s5 = 0,
		s6 = 0,
		s7 = 0,
		s8 = 0,
		s9 = 0,
		s10 = 0,
		s11 = 0;
	for (let i = 0; i < g.length; i++) {
		const w = size * tilt[i];
		if (w > 60) break; // for positive scales, all later ones are larger
		const x = g[i],
			a = weight[i] * exp(-w),
			b = a * w,
			c = b * w,
			d = c * w;
		s0 += a;
		s1 += a * x;
		s2 += a * x * x;
		s3 += b;
		s4 += b * x;
		s5 += b * x * x;
		s6 += c;
		s7 += c * x;
		s8 += c * x * x;
		s9 += d;
		s10 += d * x;
		s11 += d * x * x;
	}
	out[0] = s0;
	out[1] = s1;
	out[2] = s2;
	out[3] = s3;
	out[4] = s4;
	out[5] = s5;
	out[6] = s6;
	out[7] = s7;
	out[8] = s8;
	out[9] = s9;
	out[10] = s10;
	out[11] = s11;
	return out;
}

// Moments of a token without signal, at the nodes u = gap·index.
const tokenTable = recent((key) => {
	const [scale, gap] = key.split("/").map(Number),
		rows = new Map(),
		rule = tiltRule(scale);
	return (index) => {
		let row = rows.get(index);
		if (!row) rows.set(index, (row = tiltedMoments(index * gap, rule, new Float64Array(12))));
		return row;
	};
}, 128);

// ---- single-location regression with softmax weights ----
// The risk is a quadratic form of θ, η, ρ whose coefficients are functions of κ: twelve
// integrals and their derivatives. Names follow the terms of E T² - 2 E T y.
const POWER = [2, 2, 2, 1, 1, 0, 0, 0, 1, 1, 1, 0], // of ŵ of the deciding token, and of g
	N_TERMS = POWER.length,
	MOMENT = [0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 2, 1].map((j, i) => 3 * POWER[i] + j);

function softmaxTerms(kappa, { d, nTokens, gamma }, lambda) {
	const rate = lambda * sqrt(d / 2),
		shift = rate * kappa,
		n = nTokens - 1,
		spread = lambda * gamma,
		gap = 0.5 * max(1, spread);
	const others = tokenTable(`${lambda}/${gap}`),
		rule = tiltRule(spread),
		e = new Float64Array(12);
	const terms = new Float64Array(N_TERMS),
		slopes = new Float64Array(N_TERMS),
		factors = new Float64Array(N_TERMS);
	const first = floor((min(0, -shift) - LEFT - FAR * spread) / gap),
		last = ceil((max(0, -shift) + FAR * lambda + 4) / gap);
	for (let index = first; index <= last; index++) {
		const h = others(index),
			f = h[0];
		if (!(f ** n > 1e-30)) break; // f falls, and every term has n - 2 powers of it or more
		tiltedMoments(index * gap + shift, rule, e);
		const two = f ** max(0, n - 2),
			one = n > 1 ? two * f : 1,
			all = one * f,
			own = h[4] * one;
		factors[0] = factors[1] = factors[2] = factors[8] = factors[9] = factors[10] = all;
		factors[3] = factors[4] = factors[11] = own;
		factors[5] = h[6] * one;
		factors[6] = h[8] * one;
		factors[7] = n > 1 ? h[4] * h[4] * two : 0;
		for (let i = 0; i < N_TERMS; i++) {
			const at = MOMENT[i];
			terms[i] += e[at] * factors[i];
			// d/dlog s of E[ŵᵏ gʲ e^{-ŵ}] is k times it, minus the next power.
			slopes[i] += (POWER[i] * e[at] - e[at + 3]) * factors[i];
		}
	}
	for (let i = 0; i < N_TERMS; i++) {
		terms[i] *= gap;
		slopes[i] *= gap * rate;
	}
	return { terms, slopes };
}

// Coefficients of the twelve terms at an order, without the constant γ².
function softmaxCoefficients([, nu, theta, eta, rho], { d, nTokens, gamma }) {
	const t = sqrt(d / 2) * theta,
		n = nTokens - 1,
		g2 = gamma * gamma,
		r = gamma * rho;
	return [
		t * t + g2 - r * r,
		2 * t * r,
		r * r,
		2 * n * t * rho,
		2 * n * r * rho,
		n * (1 - rho * rho),
		n * rho * rho,
		n * (n - 1) * rho * rho,
		-2 * g2 * (nu - rho * eta),
		-2 * gamma * eta * t,
		-2 * gamma * eta * r,
		-2 * gamma * n * eta * rho,
	];
}

const product = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

export function softmaxExcess(order, law, lambda) {
	const { terms } = softmaxTerms(order[0], law, lambda);
	return law.gamma ** 2 + product(softmaxCoefficients(order, law), terms);
}

// Derivatives of the risk in κ, ν, θ, η and ρ.
export function softmaxSlopes(order, law, lambda) {
	const [, nu, theta, eta, rho] = order,
		{ terms: q, slopes } = softmaxTerms(order[0], law, lambda),
		{ d, nTokens, gamma } = law,
		m = sqrt(d / 2),
		t = m * theta,
		n = nTokens - 1,
		g2 = gamma * gamma;
	return [
		product(softmaxCoefficients(order, law), slopes),
		-2 * g2 * q[8],
		2 * m * (t * q[0] + gamma * rho * q[1] + n * rho * q[3] - gamma * eta * q[9]),
		2 * (g2 * rho * (q[8] - q[10]) - gamma * (t * q[9] + n * rho * q[11])),
		2 *
			(g2 * (rho * (q[2] - q[0]) + eta * (q[8] - q[10])) +
				gamma * (t * q[1] + 2 * n * rho * q[4] - n * eta * q[11]) +
				n * (t * q[3] + rho * (q[6] - q[5] + (n - 1) * q[7]))),
	];
}

// On the manifold the risk is A(κ) - 2νγ² P(κ). The flow rests in the corners, and where
// it changes sign on an edge ν = ±1.
export function softmaxFixedPoints(law, lambda) {
	const at = (kappa, nu) => {
		const [byKappa] = softmaxSlopes([kappa, nu, 0, 0, 0], law, lambda);
		return -byKappa;
	};
	const found = [];
	for (const nu of [1, -1]) {
		const kappas = Array.from({ length: 21 }, (_, i) => i / 10 - 1),
			flow = kappas.map((kappa) => at(kappa, nu)),
			// ν grows everywhere: the edge ν = 1 attracts, the other repels.
			kind = (attracts) => (attracts === nu > 0 ? (attracts ? "sink" : "source") : "saddle");
		found.push([1, nu, kind(flow[20] > 0)], [-1, nu, kind(flow[0] < 0)]);
		for (let i = 1; i < 19; i++)
			if (flow[i] * flow[i + 1] < 0) {
				const kappa = kappas[i] + (0.1 * flow[i]) / (flow[i] - flow[i + 1]);
				found.push([kappa, nu, kind(flow[i] > 0)]);
			}
	}
	return found;
}

// ---- two heads on two features ----
// With the values of tokens averaged out, the risk is E Σ_i (p_i + q_i - 1[i has a feature])²
// plus ε². Terms of one head are integrals over one log s. The product p·q needs two, and
// the means over a token's two scores, with correlation ρ, are Mehler's sums
// Σ_n ρⁿ a_n b_n of Hermite coefficients.
const hermiteRule = recent((scale) => {
	const { g, weight, tilt } = tiltRule(scale),
		count = ceil(12 + 8 * max(0, scale - 1)),
		rows = [weight];
	// Normalised polynomials: √(n+1) h_{n+1} = g h_n - √n h_{n-1}.
	for (let n = 0; n + 1 < count; n++)
		rows.push(g.map((x, i) => (x * rows[n][i] - (n ? sqrt(n) * rows[n - 1][i] : 0)) / sqrt(n + 1)));
	return { tilt, rows };
}, 4);

// Hermite coefficients of ŵᵏ e^{-ŵ}, k < 3, at one log s: out[3n + k].
function hermiteMoments(u, { tilt, rows }) {
	const size = exp(u),
		out = new Float64Array(3 * rows.length);
	for (let i = 0; i < tilt.length; i++) {
		const w = size * tilt[i];
		if (w > 60) break;
		const a = exp(-w),
			b = a * w,
			c = b * w;
		for (let n = 0; n < rows.length; n++) {
			const weight = rows[n][i];
			out[3 * n] += weight * a;
			out[3 * n + 1] += weight * b;
			out[3 * n + 2] += weight * c;
		}
	}
	return out;
}

// One head: E Σ p_i² - 2 E (p_0 + p_1), and its derivatives in the two shifts of scores.
function headTerms(x0, x1, nTokens, lambda) {
	const gap = 0.5 * max(1, lambda),
		n = nTokens - 2,
		rule = tiltRule(lambda),
		others = tokenTable(`${lambda}/${gap}`);
	const a = new Float64Array(12),
		b = new Float64Array(12),
		sums = [0, 0, 0];
	const first = floor((-max(0, x0, x1) - LEFT - FAR * lambda) / gap),
		last = ceil((FAR * lambda + 4 - min(0, x0, x1)) / gap);
	for (let index = first; index <= last; index++) {
		const h = others(index),
			all = h[0] ** n,
			rest = n ? n * h[6] * h[0] ** (n - 1) : 0;
		if (!(all > 1e-30)) break;
		tiltedMoments(index * gap + x0, rule, a);
		tiltedMoments(index * gap + x1, rule, b);
		// The derivative of E ŵᵏ e^{-ŵ} is k times it, minus the next power.
		const [a0, a1, a2, a3, b0, b1, b2, b3] = [a[0], a[3], a[6], a[9], b[0], b[3], b[6], b[9]];
		sums[0] += all * (a2 * b0 + a0 * b2 - 2 * (a1 * b0 + a0 * b1)) + rest * a0 * b0;
		sums[1] +=
			all * ((2 * a2 - a3) * b0 - a1 * b2 - 2 * ((a1 - a2) * b0 - a1 * b1)) - rest * a1 * b0;
		sums[2] +=
			all * (-a2 * b1 + a0 * (2 * b2 - b3) - 2 * (-a1 * b1 + a0 * (b1 - b2))) - rest * a0 * b1;
	}
	return sums.map((sum) => sum * gap);
}

// E Σ p_i q_i and its derivatives in the shifts (x of p, y of q; features 1 and 2) and in ρ.
function overlapTerms([x0, x1, y0, y1], rho, nTokens, lambda) {
	const gap = 0.6 * max(1, lambda),
		rule = hermiteRule(lambda),
		N = 3 * rule.rows.length,
		n = nTokens - 2;
	const first = floor((-max(0, x0, x1, y0, y1) - LEFT - 3 * lambda) / gap);
	const last = ceil((3 + 3 * lambda - min(0, x0, x1, y0, y1)) / gap),
		sums = new Float64Array(6);
	const table = (shift) =>
		Array.from({ length: last - first + 1 }, (_, i) =>
			hermiteMoments((first + i) * gap + shift, rule),
		);
	const [P0, P1, Q0, Q1, F] = [x0, x1, y0, y1, 0].map(table);
	// Sums over Hermite coefficients: k and l are the powers of ŵ of p and of q.
	const values = [new Float64Array(9), new Float64Array(9), new Float64Array(4)],
		byRho = [0, 1, 2].map(() => new Float64Array(2));
	// Products of weights are of order e^{u + u'}: a corner of the square is negligible.
	const least = -LEFT - 4 - max(0, x0 + y0, x1 + y1) - 2 * lambda * lambda;
	for (let i = 0; i < F.length; i++)
		for (let j = max(0, ceil(least / gap) - 2 * first - i); j < F.length; j++) {
			mehler(F[i], F[j], rho, N, values[2], byRho[2], 2);
			const f = values[2][0];
			if (!(f ** n > 1e-12)) break;
			mehler(P0[i], Q0[j], rho, N, values[0], byRho[0], 3);
			mehler(P1[i], Q1[j], rho, N, values[1], byRho[1], 3);
			const [A, B, C] = values,
				all = f ** n,
				one = n ? n * f ** (n - 1) : 0,
				two = n > 1 ? n * (n - 1) * f ** (n - 2) : 0;
			const [a, w] = [A[0], A[4]],
				[b, z] = [B[0], B[4]],
				c = C[3];
			sums[0] += all * (w * b + a * z) + one * a * b * c;
			// In a shift of p: E ŵᵏ… turns into k times it minus the next power; likewise of q.
			const slope = (lost, gained, other, otherW) =>
				all * (gained * other - lost * otherW) - one * lost * other * c;
			sums[1] += slope(A[3], A[4] - A[7], b, z);
			sums[2] += slope(B[3], B[4] - B[7], a, w);
			sums[3] += slope(A[1], A[4] - A[5], b, z);
			sums[4] += slope(B[1], B[4] - B[5], a, w);
			const [da, dw] = byRho[0],
				[db, dz] = byRho[1],
				[df, dc] = byRho[2];
			sums[5] +=
				all * (dw * b + w * db + da * z + a * dz) +
				one * (df * (w * b + a * z) + (da * b + a * db) * c + a * b * dc) +
				two * df * a * b * c;
		}
	return sums.map((sum) => sum * gap * gap);
}

// Σ_n ρⁿ a_n b_n for powers k, l < size: out[k·size + l]; and derivatives in ρ of k = l = 0, 1.
function mehler(a, b, rho, N, out, byRho, size) {
	out.fill(0);
	byRho.fill(0);
	let power = 1,
		before = 0; // ρⁿ and n ρⁿ⁻¹
	for (let at = 0, n = 0; at < N; at += 3, n++) {
		const a0 = a[at],
			a1 = a[at + 1],
			b0 = b[at],
			b1 = b[at + 1];
		byRho[0] += before * a0 * b0;
		byRho[1] += before * a1 * b1;
		if (size === 2) {
			out[0] += power * a0 * b0;
			out[3] += power * a1 * b1;
		} else {
			out[0] += power * a0 * b0;
			out[1] += power * a0 * b1;
			out[3] += power * a1 * b0;
			out[4] += power * a1 * b1;
			out[5] += power * a1 * b[at + 2];
			out[7] += power * a[at + 2] * b1;
		}
		before = (n + 1) * power;
		power *= rho;
	}
}

// Excess risk of two heads, and its derivatives in the order (k·f₁, v·f₂, v·f₁, k·f₂, k·v).
export function headsRisk([kf1, vf2, vf1, kf2, rho], { nTokens, amplitude }, lambda) {
	const rate = lambda * amplitude,
		x = [kf1, kf2, vf1, vf2].map((overlap) => rate * overlap);
	const [p, p0, p1] = headTerms(x[0], x[1], nTokens, lambda),
		[q, q0, q1] = headTerms(x[2], x[3], nTokens, lambda);
	const [both, b0, b1, c0, c1, byRho] = overlapTerms(x, rho, nTokens, lambda);
	return {
		excess: 2 + p + q + 2 * both,
		slopes: [
			rate * (p0 + 2 * b0),
			rate * (q1 + 2 * c1),
			rate * (q0 + 2 * c0),
			rate * (p1 + 2 * b1),
			2 * byRho,
		],
	};
}

// ---- noise and fluctuations, from samples that are the same at every call ----
// Fewer for long prompts, so that one call takes about a millisecond at most.
export const noiseSamples = ({ nTokens }) => ceil(max(16, min(256, 2 ** 13 / nTokens)));

export const softmaxHead = {
	slopes: softmaxSlopes,
	noise: (order, law, lambda) => scratch(law).put(order).moments(lambda, noiseSamples(law)).noise,
	moves(kappa, nu, law, lambda, part = null) {
		const n = ceil(max(256, 2 ** 16 / law.nTokens) / (part === null ? 1 : MOVE_PARTS)),
			run = new SoftmaxLocationRun(law, 1, "manifold", 0, part ?? 0).put([kappa, nu, 0, 0, 0]),
			{ covariance } = run.moments(lambda, n);
		return [2, 3, 4].map((i) => [2, 3, 4].map((j) => covariance[5 * i + j]));
	},
};
const scratch = (law) => new SoftmaxLocationRun(law, 1, "manifold", 0, 0);

// Covariance of small fluctuations around a mean path: after one update with mean map
// y + F(y) it is (I + J) Σ (I + J)ᵀ + D. The columns of J are renewed in turn.
export class Fluctuations {
	constructor(size) {
		const zeros = () => new Float64Array(size * size);
		Object.assign(this, { size, jacobian: zeros(), spread: zeros(), added: zeros(), column: 0 });
	}

	// `change` maps a point to its mean change in one update; `base` is the change at `at`.
	renew(at, base, change) {
		const { size, column } = this,
			nudge = 1e-3 * (at[column] > 0 ? -1 : 1),
			moved = at.slice();
		moved[column] += nudge;
		change(moved).forEach((value, i) => {
			this.jacobian[size * i + column] = (value - base[i]) / nudge;
		});
		this.column = (column + 1) % size;
	}

	// Let `count` updates pass, by doubling: after j rounds `power` is the matrix of 2ʲ updates
	// and `added` the covariance of their noise.
	pass(count) {
		const { size } = this;
		const times = (a, b, isTurned) => {
			const out = new Float64Array(size * size);
			for (let i = 0; i < size; i++)
				for (let j = 0; j < size; j++)
					for (let k = 0; k < size; k++)
						out[size * i + j] += a[size * i + k] * b[isTurned ? size * j + k : size * k + j];
			return out;
		};
		const after = (power, spread, noise) =>
			times(times(power, spread), power, true).map((entry, at) => entry + noise[at]);
		let power = this.jacobian.map((entry, at) => (at % (size + 1) ? 0 : 1) + entry),
			{ added } = this;
		for (let left = count; left; left = floor(left / 2)) {
			if (left % 2) this.spread = after(power, this.spread, added);
			added = after(power, added, added);
			power = times(power, power);
		}
	}

	deviation(i, weight = null) {
		const { size, spread } = this;
		if (!weight) return sqrt(max(0, spread[(size + 1) * i]));
		let sum = 0;
		weight.forEach((a, k) => weight.forEach((b, l) => (sum += a * b * spread[size * k + l])));
		return sqrt(max(0, sum));
	}
}

export const MIDDLE = 1.2816; // deviations that hold the middle 80 % of a normal law

// One update of the mean path of two heads. Integrals are renewed when `memo.until` is reached;
// until then they hold, because overlaps change slowly.
export function headsStep(order, t, { law, batch, lambda, step, hold }) {
	const memo = order.memo ?? {
			until: t,
			wander: new Fluctuations(5),
			run: new HeadsRun(law, batch, [0, 0], 0, 0),
		},
		alpha = step(t);
	if (t >= memo.until) {
		const { excess, slopes } = headsRisk(order, law, lambda),
			{ wander, run } = memo;
		if (memo.slopes) wander.pass(t - memo.since);
		const { noise, covariance } = run.put(order).moments(lambda, noiseSamples(law), alpha / batch),
			share = 1 / batch;
		const change = (y, by) => pairStep(y, by, alpha, share, noise).map((value, i) => value - y[i]);
		wander.added = covariance.map((entry) => (entry * alpha * alpha) / batch);
		// A column of the Jacobian needs the risk once more: it follows in the next piece of work.
		const at = order.slice(0, 5),
			base = change(order, slopes),
			renew = () => wander.renew(at, base, (y) => change(y, headsRisk(y, law, lambda).slopes));
		Object.assign(memo, { excess, slopes, noise, renew, since: t, until: t + hold(t) });
	} else if (memo.renew) {
		memo.renew();
		memo.renew = null;
	}
	const next = pairStep(order, memo.slopes, alpha, 1 / batch, memo.noise);
	next.push(memo.excess);
	return Object.assign(next, { memo });
}
