// Drawing: axes, curves, squares of overlaps, the spectrum, the signal's tree and map.
import {
	abs,
	ceil,
	clip,
	cos,
	exp,
	floor,
	hypot,
	log,
	log10,
	max,
	min,
	PI,
	round,
} from "./numbers.js";
import {
	LOCATION_FIXED_POINTS,
	locationField,
	SIGNAL_FIXED_POINTS,
	signalObjective,
} from "./theory.js";
import { recent, softmaxFixedPoints, softmaxSlopes } from "./softmax.js";
import { fmt, mean } from "./systems.js";

const style = getComputedStyle(document.documentElement);
export const color = (name) => style.getPropertyValue(`--${name}`); // follows the scheme

// Fit a canvas to its box and the screen's pixels, and clear it.
export function prepare(canvas) {
	const ratio = devicePixelRatio,
		c = canvas.getContext("2d"),
		{ clientWidth: width, clientHeight: height } = canvas;
	Object.assign(canvas, { key: "", width: round(width * ratio), height: round(height * ratio) });
	c.scale(ratio, ratio);
	c.font = "12px system-ui, sans-serif";
	return { c, width, height };
}

function write(c, text, x, y, textAlign = "left", textBaseline = "top") {
	Object.assign(c, { textAlign, textBaseline, fillStyle: color("quiet") });
	c.fillText(text, x, y);
}

function line(c, points, ink, { width = 1.5, dash = [], alpha = 1 } = {}) {
	Object.assign(c, { strokeStyle: color(ink), lineWidth: width, globalAlpha: alpha });
	c.setLineDash(dash);
	c.beginPath();
	for (const [x, y, jump] of points) jump ? c.moveTo(x, y) : c.lineTo(x, y);
	c.stroke();
	c.setLineDash([]);
	c.globalAlpha = 1;
}

function dot(c, x, y, radius, ink) {
	c.fillStyle = color(ink);
	c.beginPath();
	c.arc(x, y, radius, 0, 7);
	c.fill();
}

function mark(c, x, y, kind) {
	if (kind === "sink") return dot(c, x, y, 7, "green");
	if (kind === "source")
		return Object.assign(c, { fillStyle: color("purple") }).fillRect(x - 6, y - 6, 12, 12);
	for (const s of [5, -5])
		line(
			c,
			[
				[x - 5, y - s],
				[x + 5, y + s],
			],
			"ink",
			{ width: 3.5 },
		);
}

// ---- axes ----
function ticks([low, high], isLog, most) {
	const [a, b] = isLog ? [log10(low), log10(high)] : [low, high],
		rough = (b - a) / most,
		base = 10 ** floor(log10(rough));
	const gap = isLog ? max(1, ceil(rough)) : base * [1, 2, 5, 10].find((k) => k * base >= rough),
		found = [];
	for (let k = ceil(a / gap - 1e-9); k * gap <= b + 1e-9 * gap; k++)
		found.push(isLog ? 10 ** (k * gap) : k * gap);
	return isLog && found.length < 2 ? ticks([low, high], false, most) : found;
}

// Tick labels, with digits that tell them apart.
function labels(values, [low, high]) {
	const span = high - low,
		digits = clip(ceil(3 + log10(abs(low + high) / span)), 4, 15);
	return values.map((x) => fmt(abs(x) < 1e-9 * span ? 0 : x, digits));
}

// Draw axes and return the maps from numbers to pixels, with the box.
function axes(
	{ c, width, height },
	{ x, y, xLog, yLog, xLabel, square, isBare, top = square ? 24 : 8 },
) {
	// Within one decade the ticks are those of a linear axis, and the highest ones are too close.
	const yTicks = ticks(y, yLog, 4).filter(
			(v, i, all) => !yLog || i === 0 || log(v / all[i - 1]) > log(y[1] / y[0]) / 8,
		),
		yText = labels(yTicks, y);
	let [x0, x1, y0, y1] = [
		16 + max(...yText.map((text) => c.measureText(text).width)),
		width - (square ? 24 : 10),
		height - 34,
		top,
	];
	if (square) {
		const extra = (x1 - x0 - (y0 - y1)) / 2,
			[dx, dy] = [max(0, extra), max(0, -extra)];
		[x0, x1, y0, y1] = [x0 + dx, x1 - dx, y0 - dy, y1 + dy];
	}
	const scale =
		([a, b], isLog, from, to) =>
		(v) =>
			from + (isLog ? log(v / a) / log(b / a) : (v - a) / (b - a)) * (to - from);
	const X = scale(x, xLog, x0, x1),
		Y = scale(y, yLog, y0, y1),
		xTicks = isBare ? [] : ticks(x, xLog, max(2, floor((x1 - x0) / 90)));
	yTicks.forEach((v, i) => {
		line(
			c,
			[
				[x0, Y(v)],
				[x1, Y(v)],
			],
			"line",
			{ width: 1 },
		);
		write(c, yText[i], x0 - 6, Y(v), "right", "middle");
	});
	labels(xTicks, x).forEach((text, i) => {
		const at = X(xTicks[i]);
		line(
			c,
			[
				[at, y0],
				[at, y1],
			],
			"line",
			{ width: 1 },
		);
		write(c, text, min(at, width - 2 - c.measureText(text).width / 2), y0 + 5, "center");
	});
	write(c, xLabel, (x0 + x1) / 2, y0 + 19, "center");
	return { X, Y, x0, x1, y0, y1 };
}

// A range that holds all numbers, a little wider.
function around(values) {
	const low = min(...values),
		high = max(...values),
		pad = max((high - low) * 0.08, 1e-12);
	return [low - pad, high + pad];
}

// ---- curves: mean and band of each part, theory dashed, levels ----
const curves =
	(parts, { levels = [], yLog, band, range = [-0.02, 1.05] } = {}) =>
	(canvas, { records, step }, close) => {
		const frame = prepare(canvas),
			{ c } = frame,
			banded = (i) => (band ? records.filter((one) => one.bands[i]) : []),
			shown = parts
				.flatMap((i) =>
					records.flatMap(({ stats: { [i]: s } }) => [s.low, s.high, s.mean, s.theory]),
				)
				.concat(parts.flatMap((i) => banded(i).flatMap((one) => one.bands[i])));
		const lines = close ? [] : levels;
		let y = close || yLog ? around(shown) : range === "seen" ? around([...shown, 0]) : range;
		if (yLog) {
			const [low, high] = around(
				[...shown, ...lines.flatMap(([key]) => records.map((one) => one.levels[key]))]
					.filter((v) => v > 1e-17)
					.map(log),
			);
			y = low < high ? [low - 0.1, high + 0.1].map(exp) : [0.1, 1];
		}
		const isLog = yLog && y[1] > 2 * y[0],
			{ X, Y } = axes(frame, { x: [0, max(1, step)], y, yLog: isLog, xLabel: "updates" });
		const path = (f, some = records) =>
			some.map((one) => [X(one.step), Y(isLog ? max(f(one), y[0]) : f(one))]);
		for (const i of parts) {
			const ink = i > parts[0] ? "orange" : "blue";
			Object.assign(c, { fillStyle: color(ink), globalAlpha: 0.2 });
			c.beginPath();
			for (const [px, py] of [
				...path((one) => one.stats[i].low),
				...path((one) => one.stats[i].high).reverse(),
			])
				c.lineTo(px, py);
			c.fill();
			line(
				c,
				path((one) => one.stats[i].mean),
				ink,
				{ width: 2.4 },
			);
			if (records[0].stats[i].plain !== null) {
				const plain = path((one) => one.stats[i].plain);
				line(c, plain, "ink", { width: 0.8, alpha: 0.6 });
			}
			line(
				c,
				path((one) => one.stats[i].theory),
				"ink",
				{ dash: [6, 4] },
			);
		}
		for (const i of parts) {
			const [low, high] = [0, 1].map((side) => path((one) => one.bands[i][side], banded(i)));
			Object.assign(c, { fillStyle: color("ink"), globalAlpha: 0.13 });
			c.beginPath();
			for (const [px, py] of [...low, ...high.reverse()]) c.lineTo(px, py);
			c.fill();
			for (const edge of [low, high]) line(c, edge, "ink", { width: 0.8, dash: [3, 3] });
		}
		for (const [key, ink, dash] of lines)
			line(
				c,
				path((one) => one.levels[key]),
				ink,
				{ dash },
			);
	};

// Draw the paths of runs, and a third of the theoretical paths as dashed lines below them.
// `place` returns the pixel of the order parameters at a step.
function paths(c, { records, last }, place) {
	const trace = (kind, run, ink, look) =>
			line(
				c,
				records.map((one) => place(one[kind][run], one.step)),
				ink,
				look,
			),
		few = last.theory.length < 2;
	last.theory.forEach(
		(_, run) =>
			run % 3 ||
			trace("theory", run, "ink", { width: few ? 2 : 0.9, dash: [5, 4], alpha: few ? 1 : 0.5 }),
	);
	last.orders.forEach((_, run) => trace("orders", run, "blue", { width: 1.1, alpha: 0.65 }));
	for (const order of last.orders) dot(c, ...place(order, last.step), 3.6, "orange");
}

// Return the part of the square that the runs have visited, if it is small.
export function closeUp({ records, system }) {
	if (system.name !== "location") return null;
	const some = records.filter((_, i) => i % 8 === 0 || i === records.length - 1),
		ranges = [0, 1].map((i) =>
			around(some.flatMap(({ orders, theory }) => [...orders, ...theory].map((o) => o[i]))),
		);
	const half = 0.55 * max(...ranges.map(([a, b]) => b - a), 1e-9);
	return half < 0.2 && ranges.map(([a, b]) => [(a + b) / 2 - half, (a + b) / 2 + half]);
}

// The flow and where it rests. On the manifold the slopes of softmax are linear in ν, so that
// two values of ν suffice for each κ; they are kept until λ has changed by two hundredths.
const erfFlow = ({ law, lambda }, step) => ({
	flow: (kappa, nu) => locationField(kappa, nu, law, lambda(step)),
	points: LOCATION_FIXED_POINTS,
});
function softmaxFlow({ law, lambda }, step) {
	const level = 1.02 ** round(log(lambda(step)) / log(1.02));
	return keptFlow(JSON.stringify([law, level]));
}
const keptFlow = recent((key) => {
	const [law, level] = JSON.parse(key),
		ends = recent(
			(kappa) => [1, -1].map((nu) => softmaxSlopes([kappa, nu, 0, 0, 0], law, level)),
			100,
		);
	const flow = (kappa, nu) => {
		const [up, down] = ends(kappa),
			slopes = up.map((value, i) => (value * (1 + nu) + down[i] * (1 - nu)) / 2);
		return locationField(kappa, nu, law, level, () => slopes);
	};
	return { flow, points: softmaxFixedPoints(law, level) };
}, 2);

// The (κ, ν) square: the flow's arrows, fixed points, thirty paths.
function square(canvas, session, close) {
	const frame = prepare(canvas),
		{ c } = frame,
		{ setup, step } = session,
		[x, y] = close || [
			[-1.06, 1.06],
			[-1.06, 1.06],
		];
	const { X, Y, x0, x1, y0, y1 } = axes(frame, {
		x,
		y,
		xLabel: "κ = k·k*  (where to look)",
		square: true,
	});
	write(
		c,
		`ν = v·v*  ${close ? `· magnified ${fmt(+(2.12 / (x[1] - x[0])).toPrecision(2))} times` : "(what to read)"}`,
		x0 + 4,
		y1 - 20,
	);
	c.save();
	c.beginPath();
	c.rect(x0 - 8, y1 - 8, x1 - x0 + 16, y0 - y1 + 16);
	c.clip();
	const { flow, points } = setup.isSoftmax ? softmaxFlow(setup, step) : erfFlow(setup, step);
	const n = 19,
		gap = (x1 - x0) / n,
		at = ([a, b], i) => a + ((i + 0.5) / n) * (b - a);
	const arrow = [
			[-1, 0, true],
			[1, 0],
			[0.35, 0.4],
			[1, 0],
			[0.35, -0.4],
		],
		arrows = [];
	for (let i = 0; i < n * n; i++) {
		const kappa = at(x, i % n),
			nu = at(y, floor(i / n));
		if (max(abs(kappa), abs(nu)) > 1) continue;
		const [u, v] = flow(kappa, nu),
			speed = hypot(u, v) || 1;
		const size = (0.16 + 0.26 * min(1, speed / 0.6)) * gap,
			[dx, dy] = [(u / speed) * size, (-v / speed) * size];
		for (const [f, g, jump] of arrow)
			arrows.push([X(kappa) + f * dx - g * dy, Y(nu) + f * dy + g * dx, jump]);
	}
	line(c, arrows, "field", { width: 1.1 });
	for (const [kappa, nu, kind] of points) mark(c, X(kappa), Y(nu), kind);
	paths(c, session, ([kappa, nu]) => [X(kappa), Y(nu)]);
	c.restore();
}

// Two heads: overlap with one feature to the right, with the other upwards. Both heads of
// every run are in one picture, and part towards the two corners.
function parting(canvas, { records, last }) {
	const frame = prepare(canvas),
		{ c } = frame,
		range = [-0.3, 1.08];
	const { X, Y, x0, y1 } = axes(frame, {
		x: range,
		y: range,
		xLabel: "overlap with feature 1",
		square: true,
	});
	write(c, "overlap with feature 2", x0 + 4, y1 - 20);
	line(
		c,
		Array.from({ length: 61 }, (_, i) => [X(cos((PI * i) / 120)), Y(cos((PI * (60 - i)) / 120))]),
		"grey",
		{ width: 1, dash: [2, 3] },
	);
	line(
		c,
		[
			[X(0), Y(0)],
			[X(0.78), Y(0.78)],
		],
		"grey",
		{ width: 1, dash: [2, 3] },
	);
	for (const [x, y] of [
		[1, 0],
		[0, 1],
	])
		mark(c, X(x), Y(y), "sink");
	// Places of the two heads in an order (k·f₁, v·f₂, v·f₁, k·f₂).
	const heads = [([a, , , b]) => [X(a), Y(b)], ([, b, a]) => [X(a), Y(b)]];
	heads.forEach((place, head) => {
		const ink = head ? "orange" : "blue";
		last.orders.forEach((_, run) =>
			line(
				c,
				records.map((one) => place(one.orders[run])),
				ink,
				{ width: 1, alpha: 0.5 },
			),
		);
		for (const order of last.orders) dot(c, ...place(order), 3.4, ink);
	});
	for (const place of heads)
		line(
			c,
			records.map((one) => place(one.theory[0])),
			"ink",
			{ width: 2, dash: [5, 4] },
		);
}

// The spectrum, and beside every eigenvalue the share of the heads' squared length there.
function spectrum(canvas, { last, setup: { law } }) {
	const frame = prepare(canvas),
		{ c } = frame,
		s = law.roots.length,
		names = [...law.roots.map((_, i) => `${i + 1}`), "bulk"];
	const { X, Y, x0, x1, y0 } = axes(frame, {
		x: [0, s + 1],
		y: [0, 1.05],
		xLabel: "eigenvector",
		top: 26,
		isBare: true,
	});
	write(c, "eigenvalue (bars), share of |μ|² (dots)", x0 + 4, 6);
	const total = law.trace - law.roots.reduce((sum, root) => sum + root * root, 0);
	const share = (order, i) =>
		order[i] ** 2 / (order.reduce((sum, x, k) => sum + (k <= s ? x * x : 0), 0) || 1);
	names.forEach((name, i) => {
		const left = X(i + 0.1),
			right = X(i + 0.48),
			height = min(1.05, i < s ? law.roots[i] ** 2 : total);
		Object.assign(c, { fillStyle: color(i < s ? "field" : "line") });
		c.fillRect(left, Y(height), right - left, y0 - Y(height));
		write(c, name, X(i + 0.5), y0 + 5, "center");
		const shares = last.orders.map((order) => share(order, i)),
			middle = X(i + 0.72);
		shares.forEach((value, run) =>
			dot(c, middle + (((run % 10) - 4.5) * 0.02 * (x1 - x0)) / (s + 1), Y(value), 2.6, "blue"),
		);
		const level = Y(mean(shares)),
			theory = Y(share(last.theory[0], i)),
			[from, to] = [X(i + 0.55), X(i + 0.92)];
		line(
			c,
			[
				[from, level],
				[to, level],
			],
			"orange",
			{ width: 3 },
		);
		line(
			c,
			[
				[from, theory],
				[to, theory],
			],
			"ink",
			{ width: 2, dash: [5, 4] },
		);
	});
}

// Signal recovery: alignment to the right, time upwards; above, the objective with one
// ball per run.
function tree(canvas, session) {
	const frame = prepare(canvas),
		{ c } = frame,
		{
			setup: { law },
			step,
			last,
		} = session,
		cut = frame.height * 0.3;
	const { X, Y, y1 } = axes(frame, {
		x: [-1.06, 1.06],
		y: [0, max(1, step)],
		xLabel: "alignment t = q·u",
		top: cut + 10,
	});
	const [low, high] = [0, 1].map((t) => signalObjective(t, law)),
		J = (t) => cut - 16 - ((signalObjective(t, law) - low) / (high - low)) * (cut - 40);
	write(c, "updates", 4, y1 - 14);
	write(c, "objective: |output|²", X(0), 4, "center");
	line(
		c,
		Array.from({ length: 161 }, (_, i) => [X(i / 80 - 1), J(i / 80 - 1)]),
		"grey",
		{ width: 2 },
	);
	for (const [t, kind] of SIGNAL_FIXED_POINTS) mark(c, X(t), J(t), kind);
	paths(c, session, ([t], at) => [X(t), Y(at)]);
	for (const [t] of last.orders) dot(c, X(t), J(t), 3.6, "orange");
}

// ---- map of share and strength: where theory predicts success, and the current point ----
const MAP = { x: [0.001, 0.5], y: [1e-4, 3], xLog: true, yLog: true, xLabel: "informative share" },
	COLUMNS = 72,
	ROWS = 48;
export const between = ([a, b], f) => a * (b / a) ** f;

function map(canvas, { P, system }) {
	const key = [
		canvas.clientWidth,
		canvas.clientHeight,
		color("card"),
		P.d,
		P.tokens,
		P.updates,
		P.sharpness,
		P.share,
		P.strength,
	].join();
	if (canvas.key === key) return; // runs do not change it, and it is the dearest figure
	const frame = prepare(canvas),
		{ c } = frame,
		{ X, Y, x0, x1, y0, y1 } = axes(frame, MAP);
	const px = (k) => round(x0 + (k / COLUMNS) * (x1 - x0)),
		py = (k) => round(y0 - (k / ROWS) * (y0 - y1));
	for (let i = 0; i < COLUMNS * ROWS; i++) {
		const a = i % COLUMNS,
			b = floor(i / COLUMNS),
			{ head, pca } = system.outcome(
				P,
				between(MAP.x, (a + 0.5) / COLUMNS),
				between(MAP.y, (b + 0.5) / ROWS),
			);
		Object.assign(c, {
			globalAlpha: head || pca ? 0.6 : 0,
			fillStyle: color(head ? (pca ? "green" : "orange") : "purple"),
		});
		c.fillRect(px(a), py(b), px(a + 1) - px(a), py(b + 1) - py(b));
	}
	c.globalAlpha = 1;
	canvas.key = key;
	dot(c, X(P.share), Y(P.strength), 7, "card");
	dot(c, X(P.share), Y(P.strength), 5, "ink");
	canvas.pick = (left, top) => {
		const [fx, fy] = [(left - x0) / (x1 - x0), (y0 - top) / (y0 - y1)];
		return (
			min(fx, fy, 1 - fx, 1 - fy) >= 0 && {
				share: +between(MAP.x, fx).toPrecision(2),
				strength: +between(MAP.y, fy).toPrecision(2),
			}
		);
	};
}

// The four figures of each system.
const DOTTED = [2, 3],
	LONG = [8, 3];
export const figures = {
	location: [
		square,
		curves([0, 1]),
		curves([2], {
			yLog: true,
			levels: [
				["oracle", "green", DOTTED],
				["linear", "grey", LONG],
			],
		}),
		curves([3], { yLog: true, band: true }),
	],
	heads: [
		parting,
		curves([0, 1], { band: true, range: [-0.32, 1.05] }),
		curves([2], { band: true, range: [-0.52, 1.05] }),
		curves([3], { yLog: true, levels: [["best", "green", DOTTED]] }),
	],
	pca: [
		spectrum,
		curves([0], { band: true }),
		curves([1], { band: true, range: "seen" }),
		curves([2], {
			yLog: true,
			band: true,
			levels: [
				["pca", "green", DOTTED],
				["null", "grey", LONG],
			],
		}),
	],
	signal: [
		tree,
		curves([0], { band: true, levels: [["pca", "grey", LONG]] }),
		curves([1], { yLog: true, band: true, levels: [["floor", "green", DOTTED]] }),
		map,
	],
};
