// Exact simulation of training in any dimension: the vectors of length d are replaced by
// a few random numbers per token. The law is that of eigenheads.dynamics.
"use strict";

const TINY = 1e-14; // a squared length below this share of its vector's is rounding

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

// Online SGD of the erf head on single-location regression.
// law: {d, nTokens, gamma, noise}
// start: "sphere", "manifold", or an overlap κ = ν on the manifold
class LocationRun {
	constructor(law, batch, start, seed, run) {
		Object.assign(this, {
			law,
			batch,
			rng: new Stream(seed, run),
			z: new Float64Array(4 * law.nTokens + 1),
		});
		// k and v along k*, v*, the residual of k, the residual of v, and two directions
		// that a step creates and removes again; then their gradients.
		for (const name of ["k", "v", "forK", "forV"]) this[name] = new Float64Array(6);
		this.place(start);
	}

	place(start) {
		const {
				rng,
				k,
				v,
				law: { d },
			} = this,
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

	order() {
		const { k, v } = this;
		return [k[0], v[1], v[0], k[1], k[0] * v[0] + k[1] * v[1] + k[2] * v[2] + k[3] * v[3]];
	}

	step(lambda, alpha) {
		const {
			k,
			v,
			z,
			rng,
			forK,
			forV,
			batch,
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
		let K0 = 0,
			K1 = 0,
			K2 = 0,
			K3 = 0,
			V0 = 0,
			V1 = 0,
			V2 = 0,
			V3 = 0,
			kk = 0,
			kv = 0,
			vv = 0;
		for (let sample = 0; sample < batch; sample++) {
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
			const forValue = (2 * error) / batch,
				forKey = forValue * lambda * TWO_OVER_ROOT_PI;
			K0 += forKey * a0;
			K1 += forKey * a1;
			K2 += forKey * a2;
			K3 += forKey * a3;
			V0 += forValue * c0;
			V1 += forValue * c1;
			V2 += forValue * c2;
			V3 += forValue * c3;
			kk += forKey * forKey * aa;
			kv += forKey * forValue * ac;
			vv += forValue * forValue * cc;
		}
		// Outside the frame the gradients have a Wishart Gram matrix: Bartlett's factor.
		const l11 = sqrt(kk),
			l21 = l11 > 0 ? kv / l11 : 0,
			rest = vv - l21 * l21;
		const l22 = rest > TINY * vv ? sqrt(rest) : 0,
			first = rng.chi(d - 4);
		forK.set([K0, K1, K2, K3, l11 * first, 0]);
		forV.set([V0, V1, V2, V3, l21 * first + l22 * rng.normal(), l22 * rng.chi(d - 5)]);
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
}

// Projected stochastic gradient ascent of signal recovery, one prompt per step, random signs.
class SignalRun {
	constructor(law, seed, run) {
		const n = law.nInformative + law.nNuisance,
			rng = new Stream(seed, run),
			start = rng.normal();
		const t = start / hypot(start, rng.chi(law.d - 1)),
			[z, p, meet] = [3 * n, n, n].map((size) => new Float64Array(size));
		Object.assign(this, { law, n, rng, t, z, p, meet });
	}

	order() {
		return [this.t];
	}

	step(size) {
		const {
			rng,
			n,
			z,
			p,
			meet,
			t,
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
		const left = cc - cp * cp,
			g3 = left > TINY * cc ? sqrt(left) * rng.chi(d - 3) : 0;
		const radial = t * g0 + s * g1,
			q0 = t + size * (g0 - radial * t),
			q1 = s + size * (g1 - radial * s);
		this.t = q0 / hypot(q0, q1, size * g2, size * g3);
	}
}
