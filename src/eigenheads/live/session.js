// A session: thirty runs and their theory, a few milliseconds at a time; records, data.
import { abs, floor, log2, max, min, sqrt } from "./numbers.js";
import { ESCAPE, MAX_RECORDS, mean, N_RUNS } from "./systems.js";

export class Session {
	constructor(system, P) {
		Object.assign(this, {
			system,
			P,
			setup: system.setup(P),
			step: 0,
			// Updates per record; it doubles as records become many.
			stride: 2 ** max(0, floor(log2(P.updates / (16 * MAX_RECORDS)))),
			records: [],
			cost: 0.02, // of an update of one run, and of a piece of theory or of a record, in ms
			piece: 0.3,
			recorder: null,
			turn: 0,
			broken: false,
		});
		this.runs = Array.from({ length: N_RUNS }, (_, run) => system.makeRun(P, this.setup, run));
		const first = this.runs.slice(0, system.nTheory?.(P) ?? N_RUNS);
		this.theory = first.map((run) => this.orderOf(run));
		// Theory without the noise of the gradients, where the system has both.
		this.plain = system.stepPlain ? this.theory.slice() : [];
		this.at = new Float64Array(N_RUNS + this.theory.length + this.plain.length);
		this.isReady = !system.prepare;
		if (this.isReady) this.record();
	}

	orderOf(run) {
		return this.system.orderOf?.(run, this.setup) ?? run.order();
	}

	// Compute what a session needs before its first record, as far as the deadline allows; return
	// whether all is there.
	prepare(deadline) {
		let now = performance.now();
		while (!this.isReady && now + this.piece < deadline) {
			this.isReady = this.system.prepare(this.setup);
			this.smooth(performance.now() - now);
			now = performance.now();
			if (this.isReady) this.record();
		}
		return this.isReady;
	}

	get done() {
		return this.step >= this.P.updates || this.broken;
	}
	get last() {
		return this.records.at(-1);
	}

	// Work until the deadline (ms); runs, then theory, reach a record one after the other.
	advance(deadline) {
		if (!this.prepare(deadline)) return;
		let tokens = 3e5; // a bound, because some clocks do not advance during a task
		do {
			const now = performance.now();
			if (this.recorder) {
				if (this.recorder.next().done) this.recorder = null;
				this.smooth(performance.now() - now);
				continue;
			}
			const target = min(this.P.updates, (floor(this.step / this.stride) + 1) * this.stride);
			const until = this.theory[this.turn - N_RUNS]?.memo?.until ?? Infinity;
			let chunk = min(target - this.at[this.turn], max(1, min(256, floor(0.3 / this.cost))));
			// Theory renews its integrals at most once before the clock is read again.
			if (until > this.at[this.turn]) chunk = min(chunk, until - this.at[this.turn]);
			else chunk = 1;
			this.push(this.turn, chunk);
			tokens -= chunk * this.P.tokens * (this.P.batch || 1);
			// Smoothed duration of a step, because clocks of browsers are coarse.
			const spent = performance.now() - now;
			if (this.turn < N_RUNS) this.cost = max(1e-4, 0.9 * this.cost + (0.1 * spent) / chunk);
			else this.smooth(spent);
			if (this.at[this.turn] < target) continue;
			this.turn = (this.turn + 1) % this.at.length;
			if (!this.turn) this.recorder = this.recording(target);
		} while (tokens > 0 && !this.done && performance.now() + this.next < deadline);
	}

	// Expected duration of the next piece of work. Pieces are long or short: the root mean square
	// is between. On a busy machine some take far longer, and are not expected again.
	get next() {
		return this.recorder || this.turn >= N_RUNS ? this.piece : this.cost;
	}
	smooth(spent) {
		this.piece = sqrt(0.9 * this.piece ** 2 + 0.1 * min(spent, 2) ** 2);
	}

	push(index, count) {
		const { system, setup, at, theory, plain } = this;
		const own = index - N_RUNS,
			other = own - theory.length;
		for (let i = 0; i < count; i++, at[index]++) {
			if (own < 0) system.stepRun(this.runs[index], at[index], setup);
			else if (other < 0) theory[own] = system.stepTheory(theory[own], at[index], setup);
			else plain[other] = system.stepPlain(plain[other], at[index], setup);
		}
	}

	record() {
		for (const _ of this.recording(this.step));
	}

	// Make the record of a step in pieces; the step counts as done at the end.
	*recording(step) {
		const { system, setup } = this,
			orders = this.runs.map((run) => this.orderOf(run)),
			theory = this.theory.slice(),
			isBroken = !orders.flat().every(Number.isFinite),
			table = [];
		for (const all of [orders, theory, this.plain]) {
			const rows = [];
			for (const order of all) {
				const sizes = order.slice(0, system.overlaps).map(abs);
				rows.push([...sizes, ...system.derive(order, step, setup)]);
				if (rows.length % 5 === 0) yield;
			}
			table.push(rows);
		}
		const [ours, theirs, quiet] = table;
		const stats = ours[0].map((_, i) => {
			const sorted = ours.map((row) => row[i]).sort((a, b) => a - b);
			return {
				mean: mean(sorted),
				low: sorted[3],
				high: sorted[N_RUNS - 4],
				theory: mean(theirs.map((row) => row[i])),
				plain: quiet.length ? mean(quiet.map((row) => row[i])) : null,
			};
		});
		// At few records, which outlive a longer stride.
		const isKept = step % (16 * this.stride) === 0 || step >= this.P.updates,
			isLate = isKept && step >= min(ESCAPE, this.P.updates / 2);
		let bands = {};
		if (!isBroken && system.bands) {
			bands = system.bands(theory, step, setup, { isKept, isLate });
			if (bands.next) bands = yield* bands;
		}
		yield;
		this.records.push({ step, orders, stats, theory, bands, levels: system.levels(step, setup) });
		Object.assign(this, { step, broken: this.broken || isBroken });
		if (this.records.length <= MAX_RECORDS) return;
		this.stride *= 2;
		this.records = this.records.filter((one) => one.step % this.stride === 0 || one.step === step);
	}

	csv() {
		const { system, P, setup } = this,
			lines = [
				`# Eigenheads live, ${system.name}: ${Object.entries(P)
					.map((pair) => pair.join("="))
					.join(" ")}`,
				["step", "run", ...system.columns, ...system.derived].join(),
			];
		for (const { step, orders, theory } of this.records) {
			const add = (kind) => (order, run) =>
				lines.push(
					[
						step,
						kind + run,
						...order.slice(0, system.columns.length),
						...system.derive(order, step, setup),
					].join(),
				);
			orders.forEach(add(""));
			theory.forEach(add("theory"));
		}
		return `${lines.join("\n")}\n`;
	}
}
