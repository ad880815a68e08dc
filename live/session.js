// A session: thirty runs and their theory, a few milliseconds at a time; records, data.
import { abs, clip, floor, log2, max, min } from "./numbers.js";
import { ESCAPE, MAX_RECORDS, mean, N_RUNS } from "./systems.js";

export class Session {
	constructor(system, P) {
		const tokens = P.tokens * (P.batch || 1); // of an update
		Object.assign(this, {
			tokens,
			system,
			P,
			setup: system.setup(P),
			step: 0,
			// Updates per record; it doubles as records become many. Short prompts begin with more.
			stride: 2 ** max(0, floor(log2(min(P.updates / (16 * MAX_RECORDS), 1000 / tokens)))),
			records: [],
			// Expected times in ms: of an update of a run and of theory, of a renewal of theory's
			// integrals, of a piece of a record, and of a piece of the preparation.
			costs: { run: 0.02, theory: 0.02, renewal: 0.5, record: 0.1, prepare: 0.3 },
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

	// Compute what a session needs before its first record, one piece at least and others as far as
	// the deadline allows; return whether all is there.
	prepare(deadline) {
		let now = performance.now();
		while (!this.isReady) {
			this.isReady = this.system.prepare(this.setup);
			this.expect("prepare", performance.now() - now);
			now = performance.now();
			if (this.isReady) this.record();
			else if (now + this.costs.prepare >= deadline) break;
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
		let left = 3e5; // tokens: a bound, because some clocks do not advance during a task
		do {
			const now = performance.now(),
				{ kind, count } = this.next();
			if (this.recorder) {
				if (this.recorder.next().done) this.recorder = null;
				this.expect(kind, performance.now() - now);
				continue;
			}
			this.push(this.turn, count);
			this.expect(kind, (performance.now() - now) / count);
			left -= count * this.tokens;
			if (this.at[this.turn] < this.target) continue;
			this.turn = (this.turn + 1) % this.at.length;
			if (!this.turn) this.recorder = this.recording(this.target);
		} while (left > 0 && !this.done && performance.now() + this.next().time < deadline);
	}

	// The step of the next record.
	get target() {
		return min(this.P.updates, (floor(this.step / this.stride) + 1) * this.stride);
	}

	// The next piece of work: its kind, the number of updates, and how long it is expected to take.
	next() {
		const at = this.at[this.turn],
			{ until = Infinity, renew } = this.theory[this.turn - N_RUNS]?.memo ?? {},
			kind = this.recorder
				? "record"
				: this.turn < N_RUNS
					? "run"
					: renew || until <= at
						? "renewal"
						: "theory",
			isLong = kind === "record" || kind === "renewal",
			cost = this.costs[kind],
			count = isLong ? 1 : min(this.target - at, until - at, clip(floor(0.3 / cost), 1, 256));
		return { kind, count, time: cost * count };
	}

	// Learn from a duration. Updates take the same time, and clocks of browsers are coarse: smooth.
	// Other pieces differ: expect the longest of late, but not what a busy machine adds.
	expect(kind, spent) {
		const { costs } = this;
		if (kind === "run" || kind === "theory")
			costs[kind] = max(1e-4, 0.9 * costs[kind] + 0.1 * spent);
		else costs[kind] = max(0.95 * costs[kind], min(spent, 2));
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
		const isKeptBy = (records) => step % (records * this.stride) === 0 || step >= this.P.updates,
			isKept = isKeptBy(16),
			isOften = isKeptBy(4),
			isLate = isKept && step >= min(ESCAPE, this.P.updates / 2);
		let bands = {};
		if (!isBroken && system.bands) {
			bands = system.bands(theory, step, setup, { isKept, isLate, isOften });
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
