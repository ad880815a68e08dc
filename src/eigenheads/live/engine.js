// Exact simulation of training in any dimension: what the vectors of length d would do,
// from a few random numbers a token. The law is that of eigenheads.dynamics.
"use strict";

(() => {
const { erf, TWO_OVER_ROOT_PI, Stream } = EH;
const TINY = 1e-14; // a squared length below this share of its vector's is rounding

// One step on the unit sphere against the gradient, in place.
function sphereStep(vector, gradient, step) {
	let radial = 0, squared = 0;
	for (let i = 0; i < vector.length; i++) radial += vector[i] * gradient[i];
	for (let i = 0; i < vector.length; i++) {
		vector[i] -= step * (gradient[i] - radial * vector[i]);
		squared += vector[i] * vector[i];
	}
	const inverse = 1 / Math.sqrt(squared);
	for (let i = 0; i < vector.length; i++) vector[i] *= inverse;
}

// Online SGD of the erf head on single-location regression.
// law: {d, nTokens, gamma, noise}; start: "sphere", "manifold", or an overlap κ = ν on the manifold.
class LocationRun {
	constructor(law, batch, start, seed, run) {
		this.law = law;
		this.batch = batch;
		this.rng = new Stream(seed, run);
		// k and v along k*, v*, the residual of k, the residual of v, and two directions
		// that a step creates and removes again.
		this.k = new Float64Array(6);
		this.v = new Float64Array(6);
		this.forK = new Float64Array(6);
		this.forV = new Float64Array(6);
		this.z = new Float64Array(4 * law.nTokens + 1);
		this.place(start);
	}

	place(start) {
		const { rng, k, v, law: { d } } = this, free = (x) => Math.sqrt((1 - x) * (1 + x));
		if (start === "sphere") {
			k.set([rng.normal(), rng.normal(), rng.chi(d - 2)]);
			v.set([rng.normal(), rng.normal(), rng.normal(), rng.chi(d - 3)]);
			for (const vector of [k, v]) {
				const norm = Math.hypot(...vector);
				vector.forEach((x, i) => { vector[i] = x / norm; });
			}
			return;
		}
		let kappa = start, nu = start;
		if (start === "manifold") {
			const first = rng.normal(), second = rng.normal();
			kappa = first / Math.hypot(first, rng.chi(d - 2));
			nu = second / Math.hypot(second, rng.chi(d - 3));
		}
		k.set([kappa, 0, free(kappa)]);
		v.set([0, nu, 0, free(nu)]);
	}

	order() {
		const { k, v } = this;
		return [k[0], v[1], v[0], k[1], k[0] * v[0] + k[1] * v[1] + k[2] * v[2] + k[3] * v[3]];
	}

	step(lambda, alpha) {
		const { k, v, z, rng, forK, forV, batch, law: { d, nTokens, gamma, noise } } = this;
		const k0 = k[0], k1 = k[1], k2 = k[2], v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
		const shift = Math.sqrt(d / 2), share = 1 / batch;
		let K0 = 0, K1 = 0, K2 = 0, K3 = 0, V0 = 0, V1 = 0, V2 = 0, V3 = 0, kk = 0, kv = 0, vv = 0;
		for (let sample = 0; sample < batch; sample++) {
			rng.fill(z, 4 * nTokens + 1);
			// The two gradients are sums of tokens, all with the factor 2(T - y), known at the end.
			let error = -(gamma * z[1] + noise * z[4 * nTokens]);
			let a0 = 0, a1 = 0, a2 = 0, a3 = 0, c0 = 0, c1 = 0, c2 = 0, c3 = 0, aa = 0, ac = 0, cc = 0;
			for (let token = 0, at = 0; token < nTokens; token++, at += 4) {
				const z0 = z[at], z1 = z[at + 1], z2 = z[at + 2], z3 = z[at + 3];
				let onKey = k0 * z0 + k1 * z1 + k2 * z2, onValue = v0 * z0 + v1 * z1 + v2 * z2 + v3 * z3;
				// The deciding token stands first: sums over tokens do not see the order.
				if (token === 0) {
					onKey = gamma * onKey + shift * k0;
					onValue = gamma * onValue + shift * v0;
				}
				const x = lambda * onKey, attention = erf(x);
				let a = Math.exp(-x * x) * onValue, c = attention;
				error += attention * onValue;
				if (token === 0) {
					a0 += shift * a;
					c0 += shift * c;
					a *= gamma;
					c *= gamma;
				}
				a0 += a * z0; a1 += a * z1; a2 += a * z2; a3 += a * z3;
				c0 += c * z0; c1 += c * z1; c2 += c * z2; c3 += c * z3;
				aa += a * a; ac += a * c; cc += c * c;
			}
			const forValue = 2 * share * error, forKey = forValue * lambda * TWO_OVER_ROOT_PI;
			K0 += forKey * a0; K1 += forKey * a1; K2 += forKey * a2; K3 += forKey * a3;
			V0 += forValue * c0; V1 += forValue * c1; V2 += forValue * c2; V3 += forValue * c3;
			kk += forKey * forKey * aa; kv += forKey * forValue * ac; vv += forValue * forValue * cc;
		}
		// Outside the frame the gradients have a Wishart Gram matrix: Bartlett's factor.
		const l11 = Math.sqrt(kk), l21 = l11 > 0 ? kv / l11 : 0, rest = vv - l21 * l21;
		const l22 = rest > TINY * vv ? Math.sqrt(rest) : 0, first = rng.chi(d - 4);
		forK[0] = K0; forK[1] = K1; forK[2] = K2; forK[3] = K3; forK[4] = l11 * first; forK[5] = 0;
		forV[0] = V0; forV[1] = V1; forV[2] = V2; forV[3] = V3;
		forV[4] = l21 * first + l22 * rng.normal();
		forV[5] = l22 * rng.chi(d - 5);
		sphereStep(k, forK, alpha);
		sphereStep(v, forV, alpha);
		this.reframe();
	}

	// Turn the frame so that k needs three coordinates and v four.
	reframe() {
		const { k, v } = this;
		const length = Math.sqrt(k[2] * k[2] + k[3] * k[3] + k[4] * k[4] + k[5] * k[5]);
		let along = 0, squared = 0;
		if (length > 0) for (let i = 2; i < 6; i++) along += (v[i] * k[i]) / length;
		for (let i = 2; i < 6; i++) squared += (v[i] - (length > 0 ? (along * k[i]) / length : 0)) ** 2;
		k[2] = length; k[3] = k[4] = k[5] = 0;
		v[2] = along; v[3] = Math.sqrt(squared); v[4] = v[5] = 0;
	}
}

// Projected stochastic gradient ascent of signal recovery, one prompt a step, random signs.
// law: {d, nInformative, nNuisance, strength, beta}.
class SignalRun {
	constructor(law, seed, run) {
		const n = law.nInformative + law.nNuisance;
		this.law = law;
		this.n = n;
		this.rng = new Stream(seed, run);
		const start = this.rng.normal();
		this.t = start / Math.hypot(start, this.rng.chi(law.d - 1));
		this.z = new Float64Array(3 * n);
		this.p = new Float64Array(n);
		this.meet = new Float64Array(n);
	}

	order() {
		return [this.t];
	}

	step(size) {
		const { rng, n, z, p, meet, t, law: { d, nInformative, strength, beta } } = this;
		const a = strength * Math.sqrt(d), s = Math.sqrt((1 - t) * (1 + t));
		rng.fill(z, 3 * n); // tokens along u, along the residual of q, along the output's new direction
		for (let i = 0; i < nInformative; i++) z[i] += rng.bits() < 0 ? a : -a;
		let top = -Infinity, total = 0;
		for (let i = 0; i < n; i++) {
			const logit = beta * (t * z[i] + s * z[n + i]);
			p[i] = logit;
			if (logit > top) top = logit;
		}
		for (let i = 0; i < n; i++) total += p[i] = Math.exp(p[i] - top);
		let o0 = 0, o1 = 0, square = 0, meets = 0;
		for (let i = 0; i < n; i++) {
			p[i] /= total;
			o0 += p[i] * z[i];
			o1 += p[i] * z[n + i];
			square += p[i] * p[i];
			meets += p[i] * z[2 * n + i];
		}
		// The output is p·χ long outside the frame, so the tokens' third coordinates are known along p.
		const norm = Math.sqrt(square), chi = rng.chi(d - 2), o2 = norm * chi, correct = chi / norm - meets / square;
		let squaredNorm = 0;
		for (let i = 0; i < n; i++) {
			z[2 * n + i] += correct * p[i];
			meet[i] = o0 * z[i] + o1 * z[n + i] + o2 * z[2 * n + i];
			squaredNorm += p[i] * meet[i];
		}
		let g0 = 0, g1 = 0, g2 = 0, cc = 0, cp = 0;
		for (let i = 0; i < n; i++) {
			const c = 2 * beta * p[i] * (meet[i] - squaredNorm);
			g0 += c * z[i];
			g1 += c * z[n + i];
			g2 += c * z[2 * n + i];
			cc += c * c;
			cp += (c * p[i]) / norm;
		}
		const left = cc - cp * cp, g3 = left > TINY * cc ? Math.sqrt(left) * rng.chi(d - 3) : 0;
		const radial = t * g0 + s * g1, q0 = t + size * (g0 - radial * t), q1 = s + size * (g1 - radial * s);
		this.t = q0 / Math.hypot(q0, q1, size * g2, size * g3);
	}
}

Object.assign(EH, { LocationRun, SignalRun });
})();
