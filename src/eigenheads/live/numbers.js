// Random numbers and special functions. No other file draws a number or knows erf.
"use strict";
var EH = globalThis.EH || (globalThis.EH = {});

(() => {
const TWO_OVER_ROOT_PI = 2 / Math.sqrt(Math.PI);

// ---- erf: Taylor polynomials of degree 7 around nodes 1/32 apart, rounding from there.
const STEP = 1 / 32, LAST = 6, DEGREE = 7, WIDTH = DEGREE + 1;
const table = new Float64Array((LAST / STEP + 2) * WIDTH);

function erfSeries(x) {
	// e^{-x²} Σ 2ⁿ x^{2n+1} / (2n+1)!!: all terms are positive.
	let term = x, sum = x;
	for (let n = 1; term > 1e-18 * sum; n++) sum += term *= (2 * x * x) / (2 * n + 1);
	return TWO_OVER_ROOT_PI * Math.exp(-x * x) * sum;
}

for (let node = 0; node * WIDTH < table.length; node++) {
	const x = node * STEP, at = node * WIDTH;
	table[at] = node ? erfSeries(x) : 0;
	// erf^{(n)} = ± H_{n-1}(x) e^{-x²} 2/√π, and the Taylor coefficient has 1/n!.
	let before = 0, hermite = 1, factorial = 1;
	for (let n = 1; n <= DEGREE; n++) {
		factorial *= n;
		const sign = n % 2 ? 1 : -1;
		table[at + n] = (sign * hermite * TWO_OVER_ROOT_PI * Math.exp(-x * x)) / factorial;
		[before, hermite] = [hermite, 2 * x * hermite - 2 * (n - 1) * before];
	}
}

function erf(x) {
	const size = x < 0 ? -x : x;
	if (!(size < LAST)) return x !== x ? x : x < 0 ? -1 : 1;
	const node = (size * 32 + 0.5) | 0, at = node * WIDTH, u = size - node * STEP;
	const value = table[at] + u * (table[at + 1] + u * (table[at + 2] + u * (table[at + 3]
		+ u * (table[at + 4] + u * (table[at + 5] + u * (table[at + 6] + u * table[at + 7]))))));
	return x < 0 ? -value : value;
}

// 1 - erf without cancellation: a continued fraction where x is large.
function erfc(x) {
	if (x < 2) return 1 - erf(x);
	let tail = x;
	for (let n = 120; n > 0; n--) tail = x + n / 2 / tail;
	return Math.exp(-x * x) / Math.sqrt(Math.PI) / tail;
}

// ---- Gauss-Legendre nodes and weights on [0, 1].
function gaussRule(n) {
	const nodes = [], weights = [];
	for (let i = 0; i < n; i++) {
		let x = Math.cos((Math.PI * (i + 0.75)) / (n + 0.5)), slope = 1;
		for (let turn = 0; turn < 20; turn++) {
			let p = 1, before = 0;
			for (let k = 1; k <= n; k++) [p, before] = [((2 * k - 1) * x * p - (k - 1) * before) / k, p];
			slope = (n * (x * p - before)) / (x * x - 1);
			x -= p / slope;
		}
		nodes.push((x + 1) / 2);
		weights.push(1 / ((1 - x * x) * slope * slope));
	}
	return { nodes, weights };
}

// ---- Ziggurat for the normal law: 128 layers of equal area, the edges X falling to 0.
const LAYERS = 128, TAIL = 3.442619855899, AREA = 9.91256303526217e-3;
const X = new Float64Array(LAYERS + 1), F = new Float64Array(LAYERS + 1);
X[0] = AREA / Math.exp(-0.5 * TAIL * TAIL);
X[1] = TAIL;
for (let i = 2; i < LAYERS; i++) {
	X[i] = Math.sqrt(-2 * Math.log(AREA / X[i - 1] + Math.exp(-0.5 * X[i - 1] * X[i - 1])));
}
for (let i = 0; i <= LAYERS; i++) F[i] = Math.exp(-0.5 * X[i] * X[i]);
const SCALE = X.map((x) => x / 2147483648); // of a signed word

// A stream depends on (seed, run) alone. The generator is sfc32: 128 bits of state, a
// counter among them, so that no stream can fall into a short cycle. The words live in
// an Int32Array, since whole numbers of 32 bits in fields are slow.
const A = 0, B = 1, C = 2, COUNTER = 3, LAYERS_LEFT = 4, LAYERS_WORD = 5;

class Stream {
	constructor(seed, run) {
		this.state = Int32Array.of(seed, run, 0x5eed1e55, 1, 0, 0);
		this.one = new Float64Array(1);
		for (let turn = 0; turn < 20; turn++) this.bits();
	}

	bits() {
		const s = this.state, c = s[C], sum = (s[A] + s[B] + s[COUNTER]) | 0;
		s[COUNTER] += 1;
		s[A] = s[B] ^ (s[B] >>> 9);
		s[B] = c + (c << 3);
		s[C] = ((c << 21) | (c >>> 11)) + sum;
		return sum;
	}

	uniform() {
		return ((this.bits() >>> 0) + 0.5) / 4294967296;
	}

	normal() {
		this.fill(this.one, 1);
		return this.one[0];
	}

	// Write n normals: the hot loop of the page, so the state is kept in local variables.
	fill(out, n) {
		const s = this.state;
		let a = s[A], b = s[B], c = s[C], counter = s[COUNTER], left = s[LAYERS_LEFT], word = s[LAYERS_WORD];
		for (let i = 0; i < n; i++) {
			// Layer and value come from different words: sharing bits would correlate them.
			if (left === 0) {
				word = (a + b + counter) | 0;
				counter = (counter + 1) | 0;
				a = b ^ (b >>> 9);
				b = (c + (c << 3)) | 0;
				c = (((c << 21) | (c >>> 11)) + word) | 0;
				left = 4;
			}
			const layer = word & 127;
			word >>>= 8;
			left -= 1;
			const sum = (a + b + counter) | 0;
			counter = (counter + 1) | 0;
			a = b ^ (b >>> 9);
			b = (c + (c << 3)) | 0;
			c = (((c << 21) | (c >>> 11)) + sum) | 0;
			const x = (sum + 0.5) * SCALE[layer];
			if ((x < 0 ? -x : x) < X[layer + 1]) {
				out[i] = x;
				continue;
			}
			s[A] = a; s[B] = b; s[C] = c; s[COUNTER] = counter;
			const accepted = this.edge(layer, x);
			a = s[A]; b = s[B]; c = s[C]; counter = s[COUNTER];
			if (accepted === 0) i -= 1; // a normal is never exactly 0 here: try again
			else out[i] = accepted;
		}
		s[A] = a; s[B] = b; s[C] = c; s[COUNTER] = counter; s[LAYERS_LEFT] = left; s[LAYERS_WORD] = word;
	}

	// The 2 % of draws that fall on a layer's edge: the normal, or 0 to draw again.
	edge(layer, x) {
		if (layer === 0) {
			let far, high;
			do {
				far = -Math.log(this.uniform()) / TAIL;
				high = -Math.log(this.uniform());
			} while (high + high < far * far);
			return x < 0 ? -TAIL - far : TAIL + far;
		}
		const height = F[layer] + this.uniform() * (F[layer + 1] - F[layer]);
		return height < Math.exp(-0.5 * x * x) ? x : 0;
	}

	// Length of a standard Gaussian vector with `dof` coordinates, a whole number.
	chi(dof) {
		if (dof <= 0) return 0;
		if (dof < 3) return dof === 1 ? Math.abs(this.normal()) : Math.hypot(this.normal(), this.normal());
		// Marsaglia and Tsang's rejection for the gamma law of shape dof/2; good for any size.
		const shape = dof / 2 - 1 / 3, c = 1 / Math.sqrt(9 * shape);
		for (;;) {
			const x = this.normal(), root = 1 + c * x;
			if (root <= 0) continue;
			const v = root * root * root;
			if (Math.log(this.uniform()) < 0.5 * x * x + shape * (1 - v + Math.log(v))) {
				return Math.sqrt(2 * shape * v);
			}
		}
	}
}

Object.assign(EH, { TWO_OVER_ROOT_PI, erf, erfc, gaussRule, Stream });
})();
