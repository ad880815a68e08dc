// A head that learns to reconstruct its query, and so finds the first principal component.
// Tokens are N(0, Σ). Σ has a few leading eigenvalues, and the others are equal: the bulk.
// The loss is |x₁ - T|², T = Σ_k p_k x_k, with weights of scores (μ·x₁)(μ·x_k).
import { bell, ceil, exp, floor, hypot, max, min, sqrt, Stream } from "./numbers.js";
import { softmaxMean, TINY } from "./engine.js";
import { Fluctuations, LEFT, noiseSamples, recent, tiltedMoments, tiltRule } from "./softmax.js";

// law: {d, nTokens, isSoftmax, roots, bulk, trace}; roots are those of the leading eigenvalues
// and `bulk` that of each of the others. The order is [μ·u₁, …, μ·u_s, length in the bulk].
export class PcaRun {
	constructor(law, batch, start, seed, run) {
		const s = law.roots.length,
			vector = () => new Float64Array(s + 3);
		Object.assign(this, {
			law,
			batch,
			s,
			rng: new Stream(seed, run),
			mu: Float64Array.from(start),
		});
		// Axes: leading eigenvectors, the bulk part of μ, and two more in the bulk.
		this.roots = Float64Array.of(...law.roots, law.bulk, law.bulk, law.bulk);
		for (const name of ["unit", "zeta", "v", "fresh", "gradient"]) this[name] = vector();
		for (const name of ["u", "p", "eta", "t"]) this[name] = new Float64Array(law.nTokens);
	}

	order() {
		return [...this.mu];
	}

	put(order) {
		this.mu.set(order);
		return this;
	}

	step(alpha) {
		const { mu, s, batch, roots, gradient } = this,
			scale = alpha / batch;
		this.begin();
		for (let prompt = 0; prompt < batch; prompt++) this.prompt();
		for (let i = 0; i <= s; i++) mu[i] -= scale * roots[i] * gradient[i];
		mu[s] = hypot(mu[s], scale * roots[s] * gradient[s + 1]);
	}

	// The direction F μ of the factor F = Σ^{1/2}, and no gradient yet.
	begin() {
		const { mu, s, roots, unit, gradient } = this;
		let squared = 0;
		for (let i = 0; i <= s; i++) squared += (unit[i] = roots[i] * mu[i]) ** 2;
		this.length = sqrt(squared);
		for (let i = 0; i <= s; i++) unit[i] /= this.length || 1;
		gradient.fill(0);
	}

	// Write a standard normal vector without its part along `unit`; the bulk outside the frame
	// is one length, or a coordinate along an earlier vector and a length.
	off(out, isSecond) {
		const {
				rng,
				s,
				unit,
				law: { d },
			} = this,
			rest = d - s - 1;
		let along = 0;
		for (let i = 0; i <= s; i++) along += unit[i] * (out[i] = rng.normal());
		for (let i = 0; i <= s; i++) out[i] -= along * unit[i];
		out[s + 1] = isSecond ? (rest > 0 ? rng.normal() : 0) : rng.chi(rest);
		out[s + 2] = isSecond ? rng.chi(rest - 1) : 0;
	}

	// Add the gradient of one prompt, before the factor F. Tokens are F z with normal z, and
	// only 2 normals per token are drawn: along `unit`, and along what the error reveals.
	prompt() {
		const { rng, s, roots, unit, zeta, v, fresh, gradient, u, p, eta, t, length, law } = this,
			{ nTokens: n, isSoftmax, d } = law;
		rng.fill(u, n);
		const scale = length * length * u[0];
		if (isSoftmax) {
			for (let i = 0; i < n; i++) p[i] = scale * u[i];
			softmaxMean(p, u);
		} else for (let i = 0; i < n; i++) p[i] = scale * u[i];
		let pu = 0,
			pp = 0;
		for (let i = 0; i < n; i++) {
			pu += p[i] * u[i];
			pp += p[i] * p[i];
		}
		// The error has the weights δ₁ - p; off `unit`, it is their norm times a normal vector.
		const onUnit = u[0] - pu,
			norm = sqrt(max(0, 1 - 2 * p[0] + pp)),
			inverse = norm > 0 ? 1 / norm : 0;
		this.off(zeta, false);
		let onV = 0,
			whole = 0,
			vZeta = 0,
			squared = 0;
		for (let i = 0; i < s + 3; i++) {
			v[i] = roots[i] * roots[i] * (onUnit * unit[i] + norm * zeta[i]);
			onV += v[i] * unit[i];
			whole += v[i] * v[i];
		}
		for (let i = 0; i < s + 3; i++) {
			v[i] -= onV * unit[i];
			vZeta += v[i] * zeta[i];
			squared += v[i] * v[i];
		}
		const sigma = squared > TINY * whole ? sqrt(squared) : 0;
		// Products of the tokens with v are normals of deviation σ, but for one combination.
		let pEta = 0;
		for (let i = 0; i < n; i++) pEta += p[i] * (eta[i] = sigma * rng.normal());
		const cEta = (eta[0] - pEta) * inverse,
			shift = (vZeta - cEta) * inverse;
		let mean = 0;
		for (let i = 0; i < n; i++) mean += p[i] * (t[i] = onV * u[i] - shift * p[i] + eta[i]);
		mean += p[0] * shift;
		t[0] += shift;
		let tu = 0,
			tp = 0,
			tEta = 0,
			tt = 0;
		for (let i = 0; i < n; i++) {
			if (isSoftmax) t[i] = p[i] * (t[i] - mean);
			tu += t[i] * u[i];
			tp += t[i] * p[i];
			tEta += t[i] * eta[i];
			tt += t[i] * t[i];
		}
		// The gradient has the weights -2 (s₁ t + δ₁ t·s), s = length · u: known along `unit`,
		// along the error and along v. What is left meets a new vector.
		const weight = -2 * length,
			gC = weight * inverse * (u[0] * (t[0] - tp) + (1 - p[0]) * tu);
		const gEta = weight * (u[0] * tEta + eta[0] * tu),
			gg = weight * weight * (u[0] * (u[0] * tt + 2 * t[0] * tu) + tu * tu);
		const rest = sqrt(max(0, gg - gC * gC)),
			gU = 2 * weight * u[0] * tu;
		this.off(fresh, true);
		let freshV = 0;
		for (let i = 0; i < s + 3; i++) freshV += fresh[i] * v[i];
		const along = sigma > 0 ? (gEta - cEta * gC - rest * freshV) / (sigma * sigma) : 0;
		for (let i = 0; i <= s; i++)
			gradient[i] += gU * unit[i] + gC * zeta[i] + along * v[i] + rest * fresh[i];
		// In the bulk outside the frame, prompts have independent directions.
		const one = gC * zeta[s + 1] + along * v[s + 1] + rest * fresh[s + 1],
			two = rest * fresh[s + 2],
			far = one * one + two * two;
		const x = rng.normal(),
			y = d - s - 1 > 1 ? rng.chi(d - s - 2) : 0,
			cosine = x || y ? x / hypot(x, y) : 0,
			sum = gradient[s + 1];
		gradient[s + 1] = sqrt(max(0, sum * sum + 2 * sum * sqrt(far) * cosine + far));
	}

	// From n prompts: the mean squared gradient in the bulk, and the covariance of the gradient
	// along the eigenvectors and along μ's part in the bulk.
	moments(n) {
		const { s, roots, gradient } = this,
			size = s + 1,
			mean = new Float64Array(size),
			squares = new Float64Array(size * size);
		let bulk = 0;
		for (let prompt = 0; prompt < n; prompt++) {
			this.begin();
			this.prompt();
			bulk += (roots[s] ** 2 * (gradient[s] ** 2 + gradient[s + 1] ** 2)) / n;
			for (let i = 0; i < size; i++) {
				mean[i] += (roots[i] * gradient[i]) / n;
				for (let j = 0; j < size; j++)
					squares[size * i + j] += (roots[i] * gradient[i] * roots[j] * gradient[j]) / n;
			}
		}
		return {
			bulk,
			covariance: squares.map((sum, at) => sum - mean[floor(at / size)] * mean[at % size]),
		};
	}
}

// ---- theory ----
// With c = μᵀΣμ and scores c g₁ g_k of standard normals, the risk is
//   (b/c) A(c) + (τ - b/c) B(c),  A = E(g₁ - Σ p g)²,  B = E(1 - 2p₁ + Σ p²),  b = μᵀΣ²μ,
// for every number of tokens. A and B of softmax are integrals over g₁ and log s, computed in
// pieces of one g₁.
function pcaMeans(...all) {
	const work = pcaWork(...all);
	let piece;
	do piece = work.next();
	while (!piece.done);
	return piece.value;
}

function* pcaWork(c, nTokens, isSoftmax) {
	const n = nTokens - 1;
	if (!isSoftmax) {
		// Moments of g₁² (1, 3, 15) and of the sum S of n other squares (n, n² + 2n).
		const s1 = n,
			s2 = n * n + 2 * n;
		return [1 - 2 * c * (3 + s1) + c * c * (15 + 6 * s1 + s2), 1 - 2 * c + c * c * (3 + s1)];
	}
	if (c === 0) return [1 - 2 / nTokens + 1 / nTokens, 1 - 1 / nTokens];
	let A = 0,
		B = 0,
		total = 0;
	const m = new Float64Array(12),
		gapY = 0.25;
	for (let y = gapY / 2; y < 6; y += gapY) {
		const scale = c * y,
			self = c * y * y,
			rule = tiltRule(scale),
			gap = 0.5, // the weight of the query is fixed, and its exponential is sharp
			weight = bell(y);
		let onMean = 0,
			onSquare = 0,
			first = 0,
			squares = 0;
		const from = floor((-max(0, self) - LEFT - 3 * scale) / gap),
			to = ceil((3 + 3 * scale) / gap);
		for (let index = from; index <= to; index++) {
			tiltedMoments(index * gap, rule, m);
			const f = m[0],
				w = exp(index * gap + self),
				e = exp(-w);
			if (!(f ** n * e > 1e-14)) break;
			const two = n > 1 ? f ** (n - 2) : 0,
				one = f ** (n - 1),
				all = one * f,
				others = n * m[4] * one * e;
			onMean += w * y * e * all + others;
			onSquare +=
				w * y * (w * y * e * all + 2 * others) +
				e * (n * m[8] * one + n * (n - 1) * m[4] * m[4] * two);
			first += w * e * all;
			squares += w * w * e * all + e * n * m[6] * one;
		}
		A += weight * (y * y + gap * (onSquare - 2 * y * onMean));
		B += weight * (1 + gap * (squares - 2 * first));
		total += weight;
		yield;
	}
	return [A / total, B / total];
}

// A and B and their derivatives in c, from nodes that are computed one after the other.
const NODE_GAP = 0.05,
	STENCIL = 6,
	FIRST_NODES = 40; // up to c = 2

class PcaTable {
	constructor(nTokens, isSoftmax) {
		Object.assign(this, { nTokens, isSoftmax, nodes: [] });
	}

	// Compute one more piece of a node; return whether the first nodes are there.
	prepare() {
		const { nodes } = this;
		if (nodes.length < FIRST_NODES) {
			this.work ??= pcaWork(nodes.length * NODE_GAP, this.nTokens, this.isSoftmax);
			const { done, value } = this.work.next();
			if (done) {
				nodes.push(value);
				this.work = null;
			}
		}
		return nodes.length >= FIRST_NODES;
	}

	node(i) {
		return (this.nodes[i] ??= pcaMeans(i * NODE_GAP, this.nTokens, this.isSoftmax));
	}

	// [A, B, A', B'] by a polynomial through six nodes; exact for the linear head.
	at(c) {
		const x = min(c / NODE_GAP, 400),
			from = max(0, floor(x) - STENCIL / 2 + 1),
			out = [0, 0, 0, 0];
		for (let i = from; i < from + STENCIL; i++) {
			let value = 1,
				slope = 0;
			for (let j = from; j < from + STENCIL; j++)
				if (j !== i) {
					slope = (slope * (x - j) + value) / (i - j);
					value *= (x - j) / (i - j);
				}
			const [A, B] = this.node(i);
			out[0] += value * A;
			out[1] += value * B;
			out[2] += (slope * A) / NODE_GAP;
			out[3] += (slope * B) / NODE_GAP;
		}
		return out;
	}
}
export const pcaTable = recent((key) => new PcaTable(...JSON.parse(key)), 8);

// c = μᵀΣμ and b = μᵀΣ²μ of an order, and its squared length.
export function pcaForms(order, { roots, bulk }) {
	let c = 0,
		b = 0,
		square = 0;
	for (let i = 0; i <= roots.length; i++) {
		const value = (i < roots.length ? roots[i] : bulk) ** 2,
			part = order[i] * order[i];
		c += value * part;
		b += value * value * part;
		square += part;
	}
	return { c, b, square };
}

export function pcaRisk(order, law, table) {
	const { c, b } = pcaForms(order, law),
		[A, B] = table.at(c);
	return law.trace * B + (c > 0 ? (b / c) * (A - B) : 0);
}

// Gradient of the risk along the eigenvectors and along μ's part in the bulk.
function pcaGradient(order, law, table) {
	const { c, b } = pcaForms(order, law),
		[A, B, slopeA, slopeB] = table.at(c),
		{ roots, bulk, trace } = law;
	if (!(c > 0)) return order.map(() => 0);
	const byB = (A - B) / c,
		byC = (b / c) * (slopeA - slopeB - byB) + trace * slopeB;
	return Array.from({ length: roots.length + 1 }, (_, i) => {
		const value = (i < roots.length ? roots[i] : bulk) ** 2;
		return 2 * value * (byC + value * byB) * order[i];
	});
}

// The mean of an order after one update: the bulk part gains the noise of the gradients there.
// `bulkNoise` is the mean squared gradient of one prompt in the bulk, and `share` 1 / batch.
function pcaMove(order, gradient, alpha, share = 0, bulkNoise = 0) {
	const next = gradient.map((slope, i) => order[i] - alpha * slope),
		last = next.length - 1,
		extra = share * (bulkNoise - gradient[last] ** 2);
	next[last] = sqrt(max(0, next[last] ** 2 + alpha * alpha * extra));
	return next;
}

export function pcaStep(order, t, { law, batch, table, step, hold }) {
	const memo = order.memo ?? {
			until: t,
			wander: new Fluctuations(order.length),
			run: new PcaRun(law, 1, order, 0, 0),
		},
		alpha = step(t);
	if (t >= memo.until) {
		const { wander, run } = memo;
		if (memo.since !== undefined) wander.pass(t - memo.since);
		const { bulk, covariance } = run.put(order).moments(noiseSamples(law));
		const change = (y) =>
			pcaMove(y, pcaGradient(y, law, table), alpha, 1 / batch, bulk).map(
				(value, i) => value - y[i],
			);
		wander.added = covariance.map((entry) => (entry * alpha * alpha) / batch);
		for (let i = 0; i < order.length; i++) wander.renew([...order], change([...order]), change);
		Object.assign(memo, { bulk, since: t, until: t + hold(t) });
	}
	return Object.assign(
		pcaMove(order, pcaGradient(order, law, table), alpha, 1 / batch, memo.bulk),
		{ memo },
	);
}
export const pcaDescent = (order, t, { law, table, step }) =>
	pcaMove(order, pcaGradient(order, law, table), step(t));
