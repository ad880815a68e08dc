// Random numbers and special functions.

export const {
	abs,
	atan,
	ceil,
	cos,
	exp,
	floor,
	hypot,
	log,
	log10,
	log2,
	max,
	min,
	PI,
	round,
	sign,
	sqrt,
} = Math;
export const TWO_OVER_ROOT_PI = 2 / sqrt(PI);
export const clip = (x, low, high) => min(high, max(low, x));
export const tangentOf = (x) => sqrt(max(0, (1 - x) * (1 + x)));

// ---- erf: Taylor polynomials of degree 4 around nodes 1/512 apart, exact up to rounding.
const NODES_A_UNIT = 512,
	LAST = 6,
	nodes = new Float64Array(2 * (LAST * NODES_A_UNIT + 1)); // erf and its slope

for (let i = 0; i < nodes.length; i += 2) {
	const x = i / 2 / NODES_A_UNIT,
		slope = TWO_OVER_ROOT_PI * exp(-x * x);
	// erf(x) = 2/√π e^{-x²} Σ 2ⁿ x^{2n+1} / (2n+1)!!: all terms are positive.
	let term = x,
		sum = x;
	for (let n = 1; term > 1e-18 * sum; n++) sum += term *= (2 * x * x) / (2 * n + 1);
	nodes.set([slope * sum, slope], i);
}

export function erf(y) {
	const size = abs(y);
	if (!(size < LAST)) return sign(y);
	const node = (size * NODES_A_UNIT + 0.5) | 0,
		x = node / NODES_A_UNIT,
		u = size - x,
		xx = 2 * x * x;
	const value =
		nodes[2 * node] +
		u * nodes[2 * node + 1] * (1 - u * (x - (u * (xx - 1 - (u * x * (xx - 3)) / 2)) / 3));
	return y < 0 ? -value : value;
}

// ---- Gauss-Legendre rule on [0, 1]: pairs of node and weight.
export function gaussRule(n) {
	return Array.from({ length: n }, (_, i) => {
		let x = cos((PI * (i + 0.75)) / (n + 0.5)),
			slope = 1;
		for (let turn = 0; turn < 20; turn++) {
			let p = 1,
				before = 0;
			for (let k = 1; k <= n; k++) [p, before] = [((2 * k - 1) * x * p - (k - 1) * before) / k, p];
			slope = (n * (x * p - before)) / (x * x - 1);
			x -= p / slope;
		}
		return [(x + 1) / 2, 1 / ((1 - x * x) * slope * slope)];
	});
}

// ---- Ziggurat for the normal law: 128 layers of equal area, their edges falling to 0.
const TAIL = 3.442619855899,
	AREA = 9.91256303526217e-3;
export const bell = (x) => exp(-0.5 * x * x);
const edges = Float64Array.of(AREA / bell(TAIL), TAIL, ...Array(127).fill(0));
for (let i = 2; i < 128; i++) edges[i] = sqrt(-2 * log(AREA / edges[i - 1] + bell(edges[i - 1])));
const heights = edges.map(bell),
	scales = edges.map((x) => x / 2 ** 31); // of a signed word

// A stream depends on (seed, run) alone. The generator is sfc32: 128 bits of state, a
// counter among them, so that no stream can fall into a short cycle.
const VALUES = 1024;

export class Stream {
	constructor(seed, run) {
		this.state = Int32Array.of(seed, run, 0x5eed1e55, 1);
		// One word per number, then one byte per number for its layer: shared bits would
		// correlate the two.
		this.words = new Int32Array(VALUES * 1.25);
		this.layers = new Uint8Array(this.words.buffer, 4 * VALUES);
		this.refill();
		this.at = 20; // the first words still show the seed
	}

	// The state is kept in local variables: this loop is hot.
	refill() {
		const { words } = this;
		let [a, b, c, counter] = this.state;
		for (let i = 0; i < words.length; i++) {
			const sum = (a + b + counter) | 0;
			counter = (counter + 1) | 0;
			a = b ^ (b >>> 9);
			b = (c + (c << 3)) | 0;
			c = (((c << 21) | (c >>> 11)) + sum) | 0;
			words[i] = sum;
		}
		this.state.set([a, b, c, counter]);
		this.at = 0;
	}

	bits() {
		if (this.at === VALUES) this.refill();
		return this.words[this.at++];
	}

	uniform() {
		return ((this.bits() >>> 0) + 0.5) / 2 ** 32;
	}

	normal() {
		for (;;) {
			const word = this.bits(),
				layer = this.layers[this.at - 1] & 127,
				x = (word + 0.5) * scales[layer];
			if (abs(x) < edges[layer + 1]) return x;
			// Two draws in a hundred fall on a layer's edge.
			if (layer === 0) return sign(x) * this.beyond();
			if (heights[layer] + this.uniform() * (heights[layer + 1] - heights[layer]) < bell(x))
				return x;
		}
	}

	beyond() {
		for (;;) {
			const far = -log(this.uniform()) / TAIL;
			if (-2 * log(this.uniform()) >= far * far) return TAIL + far;
		}
	}

	fill(out, n) {
		for (let i = 0; i < n; i++) out[i] = this.normal();
	}

	// Length of a standard Gaussian vector with `dof` coordinates, a whole number.
	chi(dof) {
		if (dof < 3)
			return dof < 1 ? 0 : dof === 1 ? abs(this.normal()) : hypot(this.normal(), this.normal());
		// Marsaglia and Tsang's rejection for the gamma law of shape dof/2; good for any size.
		const shape = dof / 2 - 1 / 3,
			c = 1 / sqrt(9 * shape);
		for (;;) {
			const x = this.normal(),
				v = max(0, 1 + c * x) ** 3;
			if (log(this.uniform()) < 0.5 * x * x + shape * (1 - v + log(v))) return sqrt(2 * shape * v);
		}
	}
}
