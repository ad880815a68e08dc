// Signal recovery: the spread of queries around their mean paths. While a query escapes, small
// differences grow, and the noise of its prompts acts like another start: queries are spread
// like mean paths from random starts. Later differences shrink, and the noise is linear.
import {
	abs,
	ceil,
	clip,
	exp,
	floor,
	log,
	max,
	min,
	round,
	sqrt,
	Stream,
	tangentOf,
} from "./numbers.js";
import { signalAscent } from "./theory.js";
import { SignalRun } from "./engine.js";

// Variance of the gradient of one prompt that turns q towards u, as a function of |q·u|: from
// samples at a few nodes, and linear between them. It is computed in pieces.
const TURN_NODES = 9,
	TURN_TOKENS = 2 ** 16, // of a node; in pieces of an eighth
	TURN_PROMPTS = 32; // of a node, at least

export class SignalTurns {
	constructor(law) {
		const n = law.nInformative + law.nNuisance,
			count = ceil(max(TURN_PROMPTS, TURN_TOKENS / n));
		Object.assign(this, { run: new SignalRun(law, 0, 0), count, nodes: [], done: 0 });
		Object.assign(this, { piece: ceil(TURN_TOKENS / 8 / n), sum: 0, square: 0 });
	}

	// Compute one more piece; return whether all is there.
	prepare() {
		const { run, nodes, count, piece } = this;
		if (nodes.length === TURN_NODES) return true;
		run.t = nodes.length / (TURN_NODES - 1);
		const s = tangentOf(run.t);
		for (let i = 0; i < piece && this.done < count; i++, this.done++) {
			run.prompt();
			const turn = s * run.gradient[0] - run.t * run.gradient[1];
			this.sum += turn;
			this.square += turn * turn;
		}
		if (this.done === count) {
			nodes.push(this.square / count - (this.sum / count) ** 2);
			this.done = this.sum = this.square = 0;
		}
		return nodes.length === TURN_NODES;
	}

	at(t) {
		const x = abs(t) * (TURN_NODES - 1),
			i = min(floor(x), TURN_NODES - 2);
		return this.nodes[i] + (x - i) * (this.nodes[i + 1] - this.nodes[i]);
	}
}

// Mean paths from a grid of starts: where a query is now that began at any alignment.
const FIRST_START = 1e-7,
	LAST_START = 0.99,
	N_STARTS = 32;

export class SignalStarts {
	constructor(law, step) {
		const ratio = log(LAST_START / FIRST_START) / (N_STARTS - 1),
			now = Float64Array.from({ length: N_STARTS }, (_, i) => FIRST_START * exp(i * ratio));
		Object.assign(this, { law, step, ratio, now, at: 0 });
	}

	// Make the updates up to t.
	advance(t) {
		for (; this.at <= t; this.at++) {
			const size = this.step(this.at);
			for (let i = 0; i < N_STARTS; i++) this.now[i] = signalAscent(this.now[i], this.law, size);
		}
	}

	// artanh of the alignment now: a power of the start between two of the grid.
	from(start) {
		const x = log(max(start, 1e-15) / FIRST_START) / this.ratio,
			i = clip(floor(x), 0, N_STARTS - 2),
			[low, high] = [i, i + 1].map((k) =>
				log(Math.atanh(clip(abs(this.now[k]), 1e-15, 1 - 1e-15))),
			);
		return exp(low + min(x - i, 1) * (high - low));
	}
}

// One update of a mean path. It carries its start, its derivative in the start (`growth`), the
// variance of the noise as one of the start (`early`), and that of the noise since (`late`).
export function signalStep(order, t, { law, step, turns, starts }) {
	const [q] = order,
		{ start = q, growth = 1, early = 0, late = 0 } = order,
		a = step(t),
		next = signalAscent(q, law, a),
		nudge = min(1e-4, (1 - abs(q)) / 2) * (q > 0 ? -1 : 1),
		slope = nudge ? (signalAscent(q + nudge, law, a) - next) / nudge : 0,
		noise = a * a * (1 - q * q) * turns.at(q),
		isEarly = slope > 1;
	starts.advance(t);
	return Object.assign([next], {
		start,
		growth: growth * slope,
		early: early + (isEarly ? noise / (growth * slope) ** 2 : 0),
		late: slope * slope * late + (isEarly ? 0 : noise),
	});
}

// The middle 80 % of the alignment and of the error, around the paths of all starts.
export function signalBands(theory, { starts }) {
	const stream = new Stream(1, 0),
		sizes = theory.flatMap(({ 0: q, start = q, early = 0, late = 0 }) => {
			const deviation = sqrt(late) / max(1 - q * q, 1e-15);
			return Array.from({ length: 40 }, () => {
				const began = abs(start + sqrt(early) * stream.normal());
				return abs(starts.from(began) + deviation * stream.normal());
			});
		});
	sizes.sort((a, b) => a - b);
	const [low, high] = [0.1, 0.9].map((share) => sizes[round(share * sizes.length)]);
	return {
		0: [low, high].map(Math.tanh),
		1: [high, low].map((size) => max(2 / (exp(2 * size) + 1), 1e-16)),
	};
}
