// Drawing: axes, curves with bands, the (κ, ν) square, the signal's tree and its map.
"use strict";

(() => {
const { fmt } = EH;
let colors = {};

function readColors() {
	const style = getComputedStyle(document.documentElement);
	for (const name of ["card", "ink", "quiet", "line", "field", "blue", "orange", "green", "purple", "grey"]) {
		colors[name] = style.getPropertyValue(`--${name}`).trim();
	}
}

// Fit a canvas to its box and the screen's pixels.
function prepare(canvas) {
	const ratio = globalThis.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
	const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
	if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
	const context = canvas.getContext("2d");
	context.setTransform(ratio, 0, 0, ratio, 0, 0);
	context.clearRect(0, 0, width, height);
	context.font = "12px system-ui, sans-serif";
	return { context, width, height };
}

function ticks([low, high], isLog, count) {
	const found = [];
	if (isLog) {
		const [a, b] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
		const every = Math.max(1, Math.ceil((b - a) / count));
		for (let e = a; e <= b; e += every) found.push(10 ** e);
		if (found.length > 1) return found;
		found.length = 0;
	}
	const rough = (high - low) / count, base = 10 ** Math.floor(Math.log10(rough));
	const gap = base * [1, 2, 5, 10].find((k) => k * base >= rough);
	for (let k = Math.ceil(low / gap - 1e-9); k * gap <= high + 1e-9 * gap; k++) found.push(k * gap);
	return found;
}

// Tick labels; where all digits that differ come late, only the difference to the middle.
function labels(values, range) {
	const middle = (range[0] + range[1]) / 2, span = range[1] - range[0];
	if (span > 2e-3 * Math.abs(middle)) return values.map((x) => fmt(Math.abs(x) < 1e-9 * span ? 0 : x, 4));
	const base = +middle.toPrecision(Math.max(1, Math.floor(Math.log10(Math.abs(middle) / span))));
	return values.map((x) => fmt(base, 9) + (Math.abs(x - base) < 1e-6 * span ? "" : (x < base ? "−" : "+") + fmt(Math.abs(x - base), 2)));
}

// Draw axes in a box and return the two maps from numbers to pixels.
function axes({ context: c, width, height }, { x, y, xLog, yLog, xLabel, yLabel, square, box = [0, height] }) {
	const yTicks = ticks(y, yLog, 4), yText = labels(yTicks, y);
	const left = 12 + Math.max(...yText.map((text) => c.measureText(text).width)), bottom = box[1] - (xLabel ? 34 : 20);
	let [x0, x1, y0, y1] = [left + 4, width - (square ? 24 : 10), bottom, box[0] + (square ? 24 : 8)];
	if (square) {
		const side = Math.min(x1 - x0, y0 - y1), [dx, dy] = [(x1 - x0 - side) / 2, (y0 - y1 - side) / 2];
		[x0, x1, y0, y1] = [x0 + dx, x1 - dx, y0 - dy, y1 + dy];
	}
	const scale = ([a, b], isLog, from, to) => {
		const f = isLog ? Math.log : (v) => v;
		return (v) => from + ((f(v) - f(a)) / (f(b) - f(a))) * (to - from);
	};
	const X = scale(x, xLog, x0, x1), Y = scale(y, yLog, y0, y1);
	c.strokeStyle = colors.line;
	c.fillStyle = colors.quiet;
	c.lineWidth = 1;
	c.beginPath();
	c.textAlign = "right";
	c.textBaseline = "middle";
	yTicks.forEach((v, i) => {
		c.moveTo(x0, Y(v)); c.lineTo(x1, Y(v));
		c.fillText(yText[i], x0 - 6, Y(v));
	});
	const xTicks = ticks(x, xLog, Math.max(2, Math.floor((x1 - x0) / 90))), xText = labels(xTicks, x);
	c.textAlign = "center";
	c.textBaseline = "top";
	xTicks.forEach((v, i) => {
		c.moveTo(X(v), y0); c.lineTo(X(v), y1);
		c.fillText(xText[i], Math.min(X(v), width - 2 - c.measureText(xText[i]).width / 2), y0 + 5);
	});
	c.stroke();
	if (xLabel) c.fillText(xLabel, (x0 + x1) / 2, y0 + 19);
	c.textAlign = "left";
	if (yLabel) c.fillText(yLabel, x0 + 4, y1 + 2);
	return { X, Y, x0, x1, y0, y1 };
}

function line(c, points, color, { width = 1.8, dash = [], alpha = 1 } = {}) {
	c.strokeStyle = color; c.lineWidth = width; c.globalAlpha = alpha;
	c.setLineDash(dash);
	c.beginPath();
	points.forEach(([x, y], i) => (i ? c.lineTo(x, y) : c.moveTo(x, y)));
	c.stroke();
	c.setLineDash([]);
	c.globalAlpha = 1;
}

function dot(c, x, y, radius, color) {
	c.fillStyle = color;
	c.beginPath();
	c.arc(x, y, radius, 0, 7);
	c.fill();
}

function mark(c, x, y, kind) {
	const color = { sink: colors.green, saddle: colors.orange, source: colors.purple }[kind];
	if (kind === "sink") return dot(c, x, y, 6.5, color);
	if (kind === "source") {
		c.fillStyle = color;
		return c.fillRect(x - 5.5, y - 5.5, 11, 11);
	}
	line(c, [[x - 5, y - 5], [x + 5, y + 5]], color, { width: 3.5 });
	return line(c, [[x - 5, y + 5], [x + 5, y - 5]], color, { width: 3.5 });
}

// A range that holds all numbers, a little wider; `least` if they hardly differ.
function around(values, least = 1e-12) {
	let low = Infinity, high = -Infinity;
	for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
	const pad = Math.max((high - low) * 0.08, least);
	return [low - pad, high + pad];
}

// Curves of a session: for each {index, color, level?} mean and band, theory dashed, levels dotted.
function curves(canvas, session, { parts, levels = [], yLog, full, zoom }) {
	if (zoom && yLog) levels = [];
	const frame = prepare(canvas), c = frame.context, { records } = session;
	const shown = [...parts.flatMap(({ index }) => records.flatMap(({ stats }) => [stats[index].low, stats[index].high, stats[index].theory]))];
	for (const { key } of levels) if (yLog) shown.push(...records.map((one) => one.levels[key]));
	let y = zoom || !full ? around(shown) : full;
	if (yLog) {
		const positive = shown.filter((v) => v > 1e-17);
		y = positive.length ? [Math.min(...positive) / 1.3, Math.max(...positive) * 1.3] : [0.1, 1];
		if (y[1] / y[0] < 3 && !zoom) y = [y[0] / 2, y[1] * 2];
	}
	const isLog = yLog && y[1] / y[0] > 2;
	const { X, Y } = axes(frame, { x: [0, Math.max(1, session.step)], y, yLog: isLog, xLabel: "updates" });
	const at = (f) => records.map((one) => [X(one.step), Y(Math.max(f(one), isLog ? y[0] : -Infinity))]);
	for (const { index, color } of parts) {
		c.fillStyle = colors[color];
		c.globalAlpha = 0.2;
		c.beginPath();
		at((one) => one.stats[index].low).forEach(([px, py]) => c.lineTo(px, py));
		at((one) => one.stats[index].high).reverse().forEach(([px, py]) => c.lineTo(px, py));
		c.fill();
		c.globalAlpha = 1;
		line(c, at((one) => one.stats[index].mean), colors[color], { width: 2.2 });
		line(c, at((one) => one.stats[index].theory), colors.ink, { width: 1.5, dash: [6, 4] });
	}
	for (const { key, color, dash } of levels) line(c, at((one) => one.levels[key]), colors[color], { width: 1.5, dash });
}

const some = (records) => records.filter((_, i) => i % 2 === 0 || records.length < 150 || i === records.length - 1);

// The (κ, ν) square: the flow's arrows, fixed points, thirty paths, theory dashed.
function square(canvas, session, zoom) {
	const frame = prepare(canvas), c = frame.context, { setup, step, theory } = session, records = some(session.records);
	let [x, y] = [[-1.06, 1.06], [-1.06, 1.06]];
	if (zoom) {
		const [a, b] = [0, 1].map((i) => around(records.flatMap(({ orders, theory: paths }) => [...orders, ...paths].map((o) => o[i]))));
		const half = 0.55 * Math.max(a[1] - a[0], b[1] - b[0], 1e-9);
		if (half < 0.2) [x, y] = [a, b].map(([low, high]) => [(low + high) / 2 - half, (low + high) / 2 + half]);
	}
	const { X, Y, x0, x1, y0, y1 } = axes(frame, { x, y, xLabel: "κ = k·k*  (where to look)", yLabel: "", square: true });
	c.save();
	c.beginPath();
	c.rect(x0 - 8, y1 - 8, x1 - x0 + 16, y0 - y1 + 16);
	c.clip();
	const lambda = setup.lambda(step), n = 19, gap = (x1 - x0) / n;
	c.strokeStyle = colors.field;
	c.lineWidth = 1.1;
	c.beginPath();
	for (let i = 0; i < n * n; i++) {
		const px = x0 + ((i % n) + 0.5) * gap, py = y1 + (Math.floor(i / n) + 0.5) * gap;
		const kappa = x[0] + ((px - x0) / (x1 - x0)) * (x[1] - x[0]), nu = y[1] - ((py - y1) / (y0 - y1)) * (y[1] - y[0]);
		if (Math.max(Math.abs(kappa), Math.abs(nu)) > 1) continue;
		const [u, v] = EH.locationField(kappa, nu, setup.law, lambda), speed = Math.hypot(u, v);
		if (!(speed > 0)) continue;
		const size = (0.16 + 0.26 * Math.min(1, speed / 0.6)) * gap, [dx, dy] = [(u / speed) * size, (-v / speed) * size];
		c.moveTo(px - dx, py - dy); c.lineTo(px + dx, py + dy);
		c.moveTo(px + 0.35 * dx - 0.4 * dy, py + 0.35 * dy + 0.4 * dx); c.lineTo(px + dx, py + dy);
		c.lineTo(px + 0.35 * dx + 0.4 * dy, py + 0.35 * dy - 0.4 * dx);
	}
	c.stroke();
	for (const { kappa, nu, kind } of EH.locationFixedPoints(setup.law, lambda)) mark(c, X(kappa), Y(nu), kind);
	const many = theory.length > 1;
	for (let run = 0; run < theory.length; run++) {
		line(c, records.map((one) => [X(one.theory[run][0]), Y(one.theory[run][1])]), colors.ink, { width: many ? 0.8 : 2, dash: [5, 4], alpha: many ? 0.5 : 1 });
	}
	for (let run = 0; run < EH.N_RUNS; run++) {
		line(c, records.map((one) => [X(one.orders[run][0]), Y(one.orders[run][1])]), colors.blue, { width: 1.1, alpha: 0.65 });
		dot(c, X(session.last.orders[run][0]), Y(session.last.orders[run][1]), 3.6, colors.orange);
	}
	c.restore();
	c.fillStyle = colors.quiet;
	c.textBaseline = "top";
	c.fillText(x[1] < 1 ? `ν = v·v* · zoomed ${fmt(2.12 / (x[1] - x[0]), 2)} times` : "ν = v·v*  (what to read)", x0 + 4, y1 - 18);
}

// The signal's tree: alignment across, time upwards; above it the landscape with a ball a run.
function tree(canvas, session) {
	const frame = prepare(canvas), c = frame.context, { setup, step, last } = session, records = some(session.records);
	const cut = frame.height * 0.3, x = [-1.06, 1.06];
	const { X, Y, y1 } = axes(frame, { x, y: [0, Math.max(1, step)], xLabel: "alignment t = q·u", box: [cut + 6, frame.height] });
	c.textBaseline = "top";
	c.fillText("updates", X(-0.97), y1 + 2);
	const height = (t) => EH.signalObjective(Math.max(-1, Math.min(1, t)), setup.law);
	const [low, high] = [height(0), height(1)], J = (t) => cut - 14 - ((height(t) - low) / (high - low)) * (cut - 36);
	const grid = Array.from({ length: 161 }, (_, i) => -1 + i / 80);
	line(c, grid.map((t) => [X(t), J(t)]), colors.grey, { width: 2 });
	c.fillStyle = colors.quiet;
	c.textAlign = "center";
	c.fillText("what the query climbs: |output|²", X(0), 2);
	for (const { alignment, kind } of EH.signalFixedPoints()) mark(c, X(alignment), J(alignment), kind);
	for (let run = 0; run < EH.N_RUNS; run += 3) {
		line(c, records.map((one) => [X(one.theory[run][0]), Y(one.step)]), colors.ink, { width: 0.9, dash: [5, 4], alpha: 0.6 });
	}
	for (let run = 0; run < EH.N_RUNS; run++) {
		line(c, records.map((one) => [X(one.orders[run][0]), Y(one.step)]), colors.blue, { width: 1.1, alpha: 0.65 });
		dot(c, X(last.orders[run][0]), Y(step), 3.2, colors.orange);
		dot(c, X(last.orders[run][0]), J(last.orders[run][0]), 3.6, colors.orange);
	}
}

// Who finds u, over share and strength: theory's regions, and where the page stands.
const MAP = { share: [0.001, 0.5], strength: [1e-4, 3] };
let cached = { key: "" };

function map(canvas, session) {
	const frame = prepare(canvas), c = frame.context, { P, system } = session;
	const { X, Y, x0, x1, y0, y1 } = axes(frame, { x: MAP.share, y: MAP.strength, xLog: true, yLog: true, xLabel: "informative share", yLabel: "" });
	const columns = 72, rows = 48, key = JSON.stringify([P.d, P.tokens, P.updates, P.sharpness]);
	const value = ([a, b], f) => a * (b / a) ** f;
	if (cached.key !== key) {
		cached = { key, cells: Array.from({ length: columns * rows }, (_, i) => system.outcome(P, value(MAP.share, ((i % columns) + 0.5) / columns), value(MAP.strength, 1 - (Math.floor(i / columns) + 0.5) / rows))) };
	}
	const px = (k) => Math.round(x0 + (k * (x1 - x0)) / columns), py = (k) => Math.round(y1 + (k * (y0 - y1)) / rows);
	cached.cells.forEach(({ head, pca }, i) => {
		if (!head && !pca) return;
		c.globalAlpha = head && pca ? 0.5 : 0.75;
		c.fillStyle = head ? (pca ? colors.green : colors.orange) : colors.purple;
		const [a, b] = [i % columns, Math.floor(i / columns)], [left, top] = [px(a), py(b)];
		c.fillRect(left, top, px(a + 1) - left, py(b + 1) - top);
	});
	c.globalAlpha = 1;
	dot(c, X(P.share), Y(P.strength), 7, colors.card);
	dot(c, X(P.share), Y(P.strength), 5, colors.ink);
	canvas.pick = (ex, ey) => {
		const [fx, fy] = [(ex - x0) / (x1 - x0), (y0 - ey) / (y0 - y1)];
		return fx >= 0 && fx <= 1 && fy >= 0 && fy <= 1 ? { share: value(MAP.share, fx), strength: value(MAP.strength, fy) } : null;
	};
}

// What each of the four figures is, for each system.
const panel = (parts, more) => (canvas, s, zoom) => curves(canvas, s, { parts, zoom: zoom && moved(s) < 0.2, ...more });
const level = (key, color, dash) => ({ key, color, dash });
// How far the runs have come: levels and the whole range are shown once they can be seen.
const moved = (s) => (s.system.name === "location" ? s.last.stats[1].high - s.records[0].stats[1].low : 1);
const blue = (index) => ({ index, color: "blue" });
EH.figures = {
	location: [square, panel([blue(0), { index: 1, color: "orange" }], { full: [-0.02, 1.05] }),
		panel([blue(2)], { yLog: true, levels: [level("oracle", "green", [2, 3]), level("linear", "grey", [8, 3]), level("null", "grey", [8, 3])] }),
		panel([blue(3)], { yLog: true })],
	signal: [tree, panel([blue(0)], { full: [-0.02, 1.05], levels: [level("pca", "grey", [8, 3])] }),
		panel([blue(1)], { yLog: true, levels: [level("floor", "green", [2, 3])] }), map],
};

Object.assign(EH, { readColors, colors });
})();
