// Exact simulation of training in any dimension: the vectors of length d are replaced by
// a few random numbers per token. The law is that of eigenheads.models.
import {
	erf,
	exp,
	floor,
	hypot,
	max,
	sqrt,
	Stream,
	tangentOf,
	TWO_OVER_ROOT_PI,
} from "./numbers.js";

export const TINY = 1e-14; // a squared length below this share of its vector's is rounding

// One step on the unit sphere against the gradient, in place.
function sphereStep(vector, gradient, step) {
	let radial = 0,
		squared = 0;
	for (let i = 0; i < vector.length; i++) radial += vector[i] * gradient[i];
	for (let i = 0; i < vector.length; i++) {
		vector[i] -= step * (gradient[i] - radial * vector[i]);
		squared += vector[i] * vector[i];
	}
	const inverse = 1 / sqrt(squared);
	for (let i = 0; i < vector.length; i++) vector[i] *= inverse;
}

// Two unit vectors that are trained by projected SGD, in a frame of two planted directions
// and the residuals of the two vectors. A subclass draws one sample and adds its gradients.
class PairRun {
	constructor(d, nTokens, batch, seed, run) {
		Object.assign(this, { d, nTokens, batch, rng: new Stream(seed, run) });
		// k and v along the planted directions, the residual of k, the residual of v, and two
		// directions that a step creates and removes again; then their gradients.
		for (const name of ["k", "v", "forK", "forV"]) this[name] = new Float64Array(6);
		// In the frame: gradients in k and in v; outside: their squares and product.
		this.sums = new Float64Array(11);
		this.x = new Float64Array(4 * nTokens);
		this.weights = [0, 1].map(() => new Float64Array(nTokens));
	}

	// Overlaps with the planted directions (k, v, v, k) and of the two vectors.
	order() {
		const { k, v } = this;
		return [k[0], v[1], v[0], k[1], k[0] * v[0] + k[1] * v[1] + k[2] * v[2] + k[3] * v[3]];
	}

	// Put the two vectors where they have these overlaps.
	put([kappa, nu, theta, eta, rho]) {
		const side = sqrt(max(0, 1 - kappa * kappa - eta * eta)),
			along = side > 0 ? (rho - kappa * theta - eta * nu) / side : 0;
		this.k.set([kappa, eta, side, 0, 0, 0]);
		this.v.set([theta, nu, along, sqrt(max(0, 1 - theta * theta - nu * nu - along * along)), 0, 0]);
		return this;
	}

	step(lambda, alpha) {
		const { sums, batch } = this;
		sums.fill(0);
		for (let sample = 0; sample < batch; sample++) this.sample(lambda, 2 / batch);
		this.move(alpha);
	}

	// Add the gradients Σ_i c_i x_i of tokens x with coefficients a (for k) and b (for v).
	add(a, b, first) {
		const { x, sums, nTokens } = this;
		for (let i = 0, at = 0; i < nTokens; i++, at += 4) {
			const onK = a[i],
				onV = b[i],
				square = i ? 1 : first;
			for (let axis = 0; axis < 4; axis++) {
				sums[axis] += onK * x[at + axis];
				sums[4 + axis] += onV * x[at + axis];
			}
			sums[8] += square * onK * onK;
			sums[9] += square * onK * onV;
			sums[10] += square * onV * onV;
		}
	}

	move(alpha) {
		const { k, v, d, rng, forK, forV, sums } = this,
			[kk, kv, vv] = sums.subarray(8);
		// Outside the frame the gradients have a Wishart Gram matrix: Bartlett's factor.
		const l11 = sqrt(kk),
			l21 = l11 > 0 ? kv / l11 : 0,
			rest = vv - l21 * l21;
		const l22 = rest > TINY * vv ? sqrt(rest) : 0,
			first = rng.chi(d - 4);
		forK.set(sums.subarray(0, 4));
		forV.set(sums.subarray(4, 8));
		forK[4] = l11 * first;
		forK[5] = 0;
		forV[4] = l21 * first + l22 * rng.normal();
		forV[5] = l22 * rng.chi(d - 5);
		sphereStep(k, forK, alpha);
		sphereStep(v, forV, alpha);
		this.reframe();
	}

	// Turn the frame so that k needs three coordinates and v four.
	reframe() {
		const { k, v } = this,
			length = sqrt(k[2] * k[2] + k[3] * k[3] + k[4] * k[4] + k[5] * k[5]);
		const inverse = length > 0 ? 1 / length : 0;
		let along = 0,
			squared = 0;
		for (let i = 2; i < 6; i++) along += v[i] * k[i] * inverse;
		for (let i = 2; i < 6; i++) squared += (v[i] - along * k[i] * inverse) ** 2;
		k[2] = length;
		k[3] = k[4] = k[5] = 0;
		v[2] = along;
		v[3] = sqrt(squared);
		v[4] = v[5] = 0;
	}

	// From n samples: mean squared tangent gradients of one sample and their mean product, and
	// the covariance of the moves of the five overlaps per unit of step. Outside the frame the
	// mean over directions is taken exactly. At steps of order 1/d fluctuations of the squared
	// gradients count as much as those of the gradients: `ratio` is step over batch.
	moments(lambda, n, ratio = 0) {
		const { k, v, sums, d } = this,
			noise = [0, 0, 0],
			mean = new Float64Array(5),
			squares = new Float64Array(25),
			move = new Float64Array(5);
		const [kappa, nu, theta, eta, rho] = this.order();
		for (let sample = 0; sample < n; sample++) {
			sums.fill(0);
			this.sample(lambda, 2);
			let kK = 0,
				kV = 0,
				vK = 0,
				vV = 0,
				KK = (d - 4) * sums[8],
				KV = (d - 4) * sums[9],
				VV = (d - 4) * sums[10];
			for (let i = 0; i < 4; i++) {
				const K = sums[i],
					V = sums[4 + i];
				kK += k[i] * K;
				kV += k[i] * V;
				vK += v[i] * K;
				vV += v[i] * V;
				KK += K * K;
				KV += K * V;
				VV += V * V;
			}
			KK -= kK * kK;
			VV -= vV * vV;
			KV += kK * rho * vV - kK * kV - vV * vK;
			noise[0] += KK / n;
			noise[1] += VV / n;
			noise[2] += KV / n;
			const [growK, growV] = [(ratio * KK) / 2, (ratio * VV) / 2];
			move[0] = sums[0] - kK * kappa + growK * kappa;
			move[1] = sums[5] - vV * nu + growV * nu;
			move[2] = sums[4] - vV * theta + growV * theta;
			move[3] = sums[1] - kK * eta + growK * eta;
			move[4] = vK + kV - (kK + vV) * rho + (growK + growV) * rho - ratio * KV;
			for (let i = 0; i < 5; i++) {
				mean[i] += move[i] / n;
				for (let j = 0; j < 5; j++) squares[5 * i + j] += (move[i] * move[j]) / n;
			}
		}
		return {
			noise,
			covariance: squares.map((sum, at) => sum - mean[floor(at / 5)] * mean[at % 5]),
		};
	}
}

// Single-location regression. law: {d, nTokens, gamma, noise}
// start: "sphere", "manifold", or an overlap κ = ν on the manifold
export class LocationRun extends PairRun {
	constructor(law, batch, start, seed, run) {
		super(law.d, law.nTokens, batch, seed, run);
		Object.assign(this, { law, z: new Float64Array(4 * law.nTokens + 1) });
		this.place(start);
	}

	place(start) {
		const { rng, k, v, d } = this,
			other = () => (start === "sphere" ? rng.normal() : 0);
		if (typeof start === "number") {
			k.set([start, 0, tangentOf(start)]);
			v.set([0, start, 0, tangentOf(start)]);
		} else {
			k.set([rng.normal(), other(), rng.chi(d - 2)]);
			v.set([other(), rng.normal(), other(), rng.chi(d - 3)]);
		}
		for (const vector of [k, v]) sphereStep(vector, vector, 0); // a step of no length normalises
	}

	// The erf head: all weights are independent, and one loop over the tokens suffices.
	sample(lambda, share) {
		const {
			k,
			v,
			z,
			rng,
			sums,
			law: { d, nTokens, gamma, noise },
		} = this;
		const k0 = k[0],
			k1 = k[1],
			k2 = k[2],
			v0 = v[0],
			v1 = v[1],
			v2 = v[2],
			v3 = v[3],
			m = sqrt(d / 2);
		rng.fill(z, 4 * nTokens + 1);
		// The two gradients are sums of tokens, all with the factor 2(T - y), known at the end.
		let error = -(gamma * z[1] + noise * z[4 * nTokens]);
		let a0 = 0,
			a1 = 0,
			a2 = 0,
			a3 = 0,
			c0 = 0,
			c1 = 0,
			c2 = 0,
			c3 = 0,
			aa = 0,
			ac = 0,
			cc = 0;
		for (let at = 0; at < 4 * nTokens; at += 4) {
			// The deciding token stands first: sums over tokens do not see the order.
			const scale = at ? 1 : gamma,
				shift = at ? 0 : m;
			const z0 = scale * z[at] + shift,
				z1 = scale * z[at + 1],
				z2 = scale * z[at + 2],
				z3 = scale * z[at + 3];
			const x = lambda * (k0 * z0 + k1 * z1 + k2 * z2),
				onValue = v0 * z0 + v1 * z1 + v2 * z2 + v3 * z3;
			const a = exp(-x * x) * onValue,
				c = erf(x),
				s = scale * scale;
			error += c * onValue;
			a0 += a * z0;
			a1 += a * z1;
			a2 += a * z2;
			a3 += a * z3;
			c0 += c * z0;
			c1 += c * z1;
			c2 += c * z2;
			c3 += c * z3;
			aa += s * a * a;
			ac += s * a * c;
			cc += s * c * c;
		}
		const forValue = share * error,
			forKey = forValue * lambda * TWO_OVER_ROOT_PI;
		sums[0] += forKey * a0;
		sums[1] += forKey * a1;
		sums[2] += forKey * a2;
		sums[3] += forKey * a3;
		sums[4] += forValue * c0;
		sums[5] += forValue * c1;
		sums[6] += forValue * c2;
		sums[7] += forValue * c3;
		sums[8] += forKey * forKey * aa;
		sums[9] += forKey * forValue * ac;
		sums[10] += forValue * forValue * cc;
	}
}

// The same task with softmax weights.
export class SoftmaxLocationRun extends LocationRun {
	sample(lambda, share) {
		const {
			k,
			v,
			z,
			x,
			rng,
			weights: [p, values],
			law: { d, nTokens, gamma, noise },
		} = this;
		const k0 = lambda * k[0],
			k1 = lambda * k[1],
			k2 = lambda * k[2],
			v0 = v[0],
			v1 = v[1],
			v2 = v[2],
			v3 = v[3];
		rng.fill(z, 4 * nTokens + 1);
		for (let at = 0; at < 4; at++) x[at] = gamma * z[at];
		x[0] += sqrt(d / 2);
		for (let at = 4; at < 4 * nTokens; at++) x[at] = z[at];
		for (let i = 0, at = 0; i < nTokens; i++, at += 4) {
			p[i] = k0 * x[at] + k1 * x[at + 1] + k2 * x[at + 2];
			values[i] = v0 * x[at] + v1 * x[at + 1] + v2 * x[at + 2] + v3 * x[at + 3];
		}
		const output = softmaxMean(p, values),
			error = share * (output - x[1] - noise * z[4 * nTokens]);
		for (let i = 0; i < nTokens; i++) {
			const weight = error * p[i];
			p[i] = lambda * weight * (values[i] - output);
			values[i] = weight;
		}
		this.add(p, values, gamma * gamma);
	}
}

// Replace scores by their softmax, and return the mean of the values under it.
export function softmaxMean(p, values) {
	let top = -Infinity,
		total = 0,
		sum = 0;
	for (let i = 0; i < p.length; i++) top = max(top, p[i]);
	for (let i = 0; i < p.length; i++) total += p[i] = exp(p[i] - top);
	for (let i = 0; i < p.length; i++) {
		p[i] /= total;
		sum += p[i] * values[i];
	}
	return sum;
}

// Two softmax heads that share a task: each token has a value, and the answer is the sum of
// the values of two tokens, one with the feature f₁ and one with f₂. Heads know the values,
// and learn their keys. law: {d, nTokens, amplitude, noise}; start: [own, other] overlaps.
export class HeadsRun extends PairRun {
	constructor(law, batch, [own, other], seed, run) {
		super(law.d, law.nTokens, batch, seed, run);
		Object.assign(this, { law, values: new Float64Array(law.nTokens + 1), losses: 0, samples: 0 });
		this.put([own, own, other, other, 2 * own * other]); // residuals are orthogonal
	}

	// Mean squared error of the prompts since the last call, without the noise ε².
	loss() {
		const {
			losses,
			samples,
			law: { noise },
		} = this;
		this.losses = this.samples = 0;
		return samples ? losses / samples - noise * noise : null;
	}

	sample(lambda, share) {
		const {
			k,
			v,
			x,
			rng,
			values,
			weights: [p, q],
			law: { nTokens, amplitude, noise },
		} = this;
		const k0 = lambda * k[0],
			k1 = lambda * k[1],
			k2 = lambda * k[2];
		const v0 = lambda * v[0],
			v1 = lambda * v[1],
			v2 = lambda * v[2],
			v3 = lambda * v[3];
		rng.fill(x, 4 * nTokens);
		rng.fill(values, nTokens + 1);
		x[0] += amplitude;
		x[5] += amplitude;
		for (let i = 0, at = 0; i < nTokens; i++, at += 4) {
			p[i] = k0 * x[at] + k1 * x[at + 1] + k2 * x[at + 2];
			q[i] = v0 * x[at] + v1 * x[at + 1] + v2 * x[at + 2] + v3 * x[at + 3];
		}
		const one = softmaxMean(p, values),
			two = softmaxMean(q, values);
		const gap = one + two - values[0] - values[1] - noise * values[nTokens],
			error = share * lambda * gap;
		this.losses += gap * gap;
		this.samples++;
		for (let i = 0; i < nTokens; i++) {
			p[i] *= error * (values[i] - one);
			q[i] *= error * (values[i] - two);
		}
		this.add(p, q, 1);
	}
}

// Projected stochastic gradient ascent of signal recovery, one prompt per step, random signs.
export class SignalRun {
	constructor(law, seed, run) {
		const n = law.nInformative + law.nNuisance,
			rng = new Stream(seed, run),
			start = rng.normal();
		const t = start / hypot(start, rng.chi(law.d - 1)),
			[z, p, meet, gradient] = [3 * n, n, n, 4].map((size) => new Float64Array(size));
		Object.assign(this, { law, n, rng, t, z, p, meet, gradient });
	}

	order() {
		return [this.t];
	}

	step(size) {
		const { t, gradient } = this,
			s = tangentOf(t);
		this.prompt();
		const radial = t * gradient[0] + s * gradient[1],
			q0 = t + size * (gradient[0] - radial * t),
			q1 = s + size * (gradient[1] - radial * s);
		this.t = q0 / hypot(q0, q1, size * gradient[2], size * gradient[3]);
	}

	// Write the gradient of one prompt: along u, along the residual of q, along two new directions.
	prompt() {
		const {
			rng,
			n,
			z,
			p,
			meet,
			t,
			gradient,
			law: { d, nInformative, strength, beta },
		} = this;
		const a = strength * sqrt(d),
			s = tangentOf(t);
		rng.fill(z, 3 * n); // tokens along u, along the residual of q, along the output's new direction
		for (let i = 0; i < nInformative; i++) z[i] += rng.bits() < 0 ? a : -a;
		let top = -Infinity,
			total = 0;
		for (let i = 0; i < n; i++) top = max(top, (p[i] = beta * (t * z[i] + s * z[n + i])));
		for (let i = 0; i < n; i++) total += p[i] = exp(p[i] - top);
		let o0 = 0,
			o1 = 0,
			square = 0,
			meets = 0;
		for (let i = 0; i < n; i++) {
			p[i] /= total;
			o0 += p[i] * z[i];
			o1 += p[i] * z[n + i];
			square += p[i] * p[i];
			meets += p[i] * z[2 * n + i];
		}
		// The output is p·χ long outside the frame, so the tokens' third coordinates are known along p.
		const norm = sqrt(square),
			chi = rng.chi(d - 2),
			o2 = norm * chi,
			correct = chi / norm - meets / square;
		let squaredNorm = 0;
		for (let i = 0; i < n; i++) {
			z[2 * n + i] += correct * p[i];
			meet[i] = o0 * z[i] + o1 * z[n + i] + o2 * z[2 * n + i];
			squaredNorm += p[i] * meet[i];
		}
		let g0 = 0,
			g1 = 0,
			g2 = 0,
			cc = 0,
			cp = 0;
		for (let i = 0; i < n; i++) {
			const c = 2 * beta * p[i] * (meet[i] - squaredNorm);
			g0 += c * z[i];
			g1 += c * z[n + i];
			g2 += c * z[2 * n + i];
			cc += c * c;
			cp += (c * p[i]) / norm;
		}
		const left = cc - cp * cp;
		gradient[0] = g0;
		gradient[1] = g1;
		gradient[2] = g2;
		gradient[3] = left > TINY * cc ? sqrt(left) * rng.chi(d - 3) : 0;
	}
}
