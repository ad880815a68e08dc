// The page: controls, the loop, the address, downloads, the tour.
"use strict";

(() => {
const { fmt, systems, Session, figures, texts } = EH, $ = (id) => document.getElementById(id);
const BUDGET = 3.2; // ms of computation a frame; with what follows the deadline it stays below 4
const canvases = [...document.querySelectorAll("canvas")];
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const words = () => texts[system.name];
let system, P, session, playing = !calm, zoom = true, dirty = true, drawnAt = 0, quarter = 0;

// ---- parameters and the address ----
const defaults = (of) => Object.fromEntries(of.controls.map(({ key, start }) => [key, start]));

function readAddress() {
	const given = new URLSearchParams(`${location.search.slice(1)}&${location.hash.slice(1)}`), said = [];
	const name = given.get("system") ?? "location";
	if (!Object.hasOwn(systems, name)) said.push(`There is no system “${name}”: showing “location”.`);
	system = Object.hasOwn(systems, name) ? systems[name] : systems.location;
	P = defaults(system);
	for (const control of system.controls) {
		const { key, label, min, max, options, whole, start } = control, text = given.get(key);
		if (text === null) continue;
		if (options) {
			if (Object.hasOwn(options, text)) P[key] = text;
			else said.push(`${label} “${text}” is none of ${Object.keys(options).join(", ")}: using ${start}.`);
			continue;
		}
		const value = text.trim() === "" ? NaN : Number(text), used = clamp(control, value);
		if (Number.isNaN(value)) said.push(`${label} “${text}” is not a number: using ${fmt(start)}.`);
		else if (value < min || value > max) said.push(`${label} ${fmt(value)} is outside ${fmt(min)} to ${fmt(max)}: using ${fmt(used)}.`);
		else if (whole && value !== used) said.push(`${label} ${text} is not whole: using ${fmt(used)}.`);
		P[key] = used;
	}
	const known = new Set(["system", "bench", "paused", ...system.controls.map(({ key }) => key)]);
	for (const key of new Set(given.keys())) if (key && !known.has(key)) said.push(`There is no parameter “${key}”.`);
	notice(said.join(" "));
	if (given.has("paused")) playing = false;
	return given;
}

function clamp({ min, max, whole, start }, value) {
	if (Number.isNaN(value)) return start;
	const inside = Math.min(max, Math.max(min, value));
	return whole ? Math.round(inside) : inside;
}

const address = () => `#${new URLSearchParams({ system: system.name, ...P })}`;

function notice(text) {
	$("notice").hidden = !text;
	$("notice").textContent = text;
}

// ---- controls ----
const TICKS = 400;
const toTick = ({ min, max, log }, v) => Math.round(TICKS * (log ? Math.log(v / min) / Math.log(max / min) : (v - min) / (max - min)));

function fromTick({ min, max, log, whole, grid }, tick) {
	const f = tick / TICKS, v = log ? min * (max / min) ** f : min + f * (max - min);
	if (grid) return +(Math.round(v / grid) * grid).toFixed(6);
	const rounded = +v.toPrecision(v < 10 && whole ? 1 : 2);
	return Math.min(max, Math.max(min, whole ? Math.round(rounded) : rounded));
}

function build() {
	$("controls").innerHTML = "<h2>Parameters</h2>" + system.controls.map(({ key, label, options, number, min, max }) => {
		const common = `id="c-${key}" name="${key}" aria-describedby="h-${key}"`;
		const input = options ? `<select ${common}>${Object.entries(options).map(([value, text]) => `<option value="${value}">${text}</option>`).join("")}</select>`
			: number ? `<input type="number" ${common} min="${min}" max="${max}" step="1">` : `<input type="range" ${common} min="0" max="${TICKS}" step="1">`;
		return `<div class="control"><label for="c-${key}">${label}</label><output for="c-${key}"></output>${input}<details><summary aria-label="What ${label} does">?</summary><p class="help" id="h-${key}">${words().help[key]}</p></details></div>`;
	}).join("");
	for (const control of system.controls) {
		const { key, options, number } = control;
		$(`c-${key}`).addEventListener(options || number ? "change" : "input", ({ target: { value } }) => {
			set({ [key]: options ? value : number ? clamp(control, value === "" ? NaN : +value) : fromTick(control, +value) });
		});
	}
	for (const part of document.querySelectorAll("[data-of]")) part.hidden = part.dataset.of !== system.name;
	for (const button of $("systems").children) button.setAttribute("aria-pressed", button.dataset.system === system.name);
	for (const id of ["intro", "why"]) $(id).textContent = words()[id];
	$("zoom").hidden = system.name !== "location";
	document.querySelectorAll("figcaption").forEach((caption, i) => { caption.innerHTML = words().titles[i]; });
	$("key").innerHTML = words().key.map(([color, style, text]) => `<span><i class="${/\w/.test(style) ? style : style ? "sign" : ""}" style="color: var(--${color})">${/\w/.test(style) ? "" : style}</i>${text}</span>`).join("");
	canvases[3].classList.toggle("clickable", system.name === "signal");
}

function show() {
	for (const control of system.controls) {
		const input = $(`c-${control.key}`), value = P[control.key];
		const output = input.parentElement.querySelector("output");
		if (control.options || control.number) input.value = value;
		else {
			const text = fmt(value) + (control.unit ? ` (${control.unit(P)})` : "");
			if (+input.value !== toTick(control, value)) input.value = toTick(control, value);
			input.setAttribute("aria-valuetext", text);
			output.textContent = text;
		}
	}
	$("python").textContent = words().python(P);
	const lost = system.name === "location" && P.start !== "overlap" && P.d / P.step > 30 * P.updates;
	$("hint").hidden = !lost;
	if (lost) $("hint").firstElementChild.textContent = words().hint(P);
}

function set(changes) {
	Object.assign(P, changes);
	notice("");
	restart();
}

function restart() {
	session = new Session(system, { ...P });
	quarter = 0;
	history.replaceState(null, "", address());
	show();
	setPlaying(playing);
}

function choose(name) {
	system = systems[name];
	P = defaults(system);
	build();
	set({});
}

// ---- the loop ----
const bench = { compute: [], draw: [] };

function frame() {
	requestAnimationFrame(frame);
	if (playing && !session.done) {
		const began = performance.now(), { step } = session;
		session.advance(began + BUDGET);
		bench.compute.push(performance.now() - began);
		dirty ||= step !== session.step;
		if (session.done) setPlaying(playing);
	}
	if (!dirty) return;
	dirty = false;
	const began = performance.now();
	draw();
	bench.draw.push(performance.now() - began);
}

// Milliseconds a frame, once the code is warm.
function measured() {
	const [compute, paint] = [bench.compute, bench.draw].map((list) => list.slice(list.length > 60 ? 20 : 0).sort((a, b) => a - b));
	const at = (list, share) => fmt(list[Math.floor(share * list.length)] ?? NaN);
	return `Computation a frame: ${at(compute, 0.5)} ms (median), ${at(compute, 0.99)} ms (99 %); drawing ${at(paint, 0.5)} ms; ${compute.length} frames.`;
}

function draw() {
	figures[system.name].forEach((paint, i) => paint(canvases[i], session, zoom));
	const share = Math.round((100 * session.step) / P.updates);
	$("progress").setAttribute("aria-valuenow", share);
	$("progress").firstElementChild.style.width = `${share}%`;
	if (session.broken) notice("The steps overflowed. Choose a smaller step.");
	$("summary").textContent = words().summary(session);
	if (performance.now() - drawnAt < 1000 && !session.done && playing) return;
	drawnAt = performance.now();
	words().say(session).forEach((text, i) => canvases[i].setAttribute("aria-label", text));
	if (Math.floor(share / 25) > quarter || (session.done && quarter < 4)) {
		quarter = session.done ? 4 : Math.floor(share / 25);
		announce(words().summary(session));
	}
}

const announce = (text) => { $("announce").textContent = text; };

function setPlaying(on) {
	playing = on;
	$("play").textContent = session.done ? "Run again" : playing ? "Pause" : "Play";
	dirty = true;
}

function toggle() {
	if (session.done) {
		restart();
		return setPlaying(true);
	}
	setPlaying(!playing);
	return announce(`${playing ? "Running" : "Paused"}. ${words().summary(session)}`);
}

// ---- downloads and sharing ----
function save(blob, kind) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(blob);
	link.download = `eigenheads-${system.name}-d${P.d}-seed${P.seed}.${kind}`;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function picture() {
	const ratio = globalThis.devicePixelRatio || 1, page = getComputedStyle(document.body), pad = 16 * ratio, caption = 22 * ratio;
	const box = $("pictures").querySelector(".grid").getBoundingClientRect(), top = 64 * ratio;
	const canvas = Object.assign(document.createElement("canvas"), { width: box.width * ratio + 2 * pad, height: box.height * ratio + top + 2 * pad });
	const c = canvas.getContext("2d"), font = (size, weight = "") => { c.font = `${weight} ${size * ratio}px system-ui, sans-serif`; };
	c.fillStyle = page.backgroundColor;
	c.fillRect(0, 0, canvas.width, canvas.height);
	c.fillStyle = page.color;
	c.textBaseline = "top";
	font(18, "bold");
	c.fillText(`${words().title}, d = ${fmt(P.d)}: thirty runs against theory`, pad, pad);
	font(12);
	c.fillText(`Eigenheads · ${Object.entries(P).map(([key, value]) => `${key} ${typeof value === "number" ? fmt(value) : value}`).join(" · ")}`, pad, pad + 28 * ratio, canvas.width - 2 * pad);
	for (const one of canvases) {
		const at = one.getBoundingClientRect(), x = (at.left - box.left) * ratio + pad, y = (at.top - box.top) * ratio + top + pad;
		font(13, "bold");
		c.fillText(one.previousElementSibling.textContent, x, y - caption, at.width * ratio);
		c.drawImage(one, x, y);
	}
	return canvas;
}

async function share() {
	try {
		await navigator.clipboard.writeText(globalThis.location.href);
		announce("Link copied.");
		$("share").textContent = "Copied";
	} catch {
		notice(`Copy this address: ${globalThis.location.href}`);
	}
	setTimeout(() => { $("share").textContent = "Copy link"; }, 2000);
}

// ---- the tour ----
let tourAt = 0;

function tour(at) {
	document.querySelector(".toured")?.classList.remove("toured");
	$("tour").hidden = at < 0 || at >= texts.tour.length;
	if ($("tour").hidden) return $("tour-open").focus();
	tourAt = at;
	const [title, target, text] = texts.tour[at];
	$("tour-title").textContent = title;
	$("tour-place").textContent = `Step ${at + 1} of ${texts.tour.length}`;
	$("tour-text").textContent = text[system.name];
	$("tour-back").disabled = at === 0;
	$("tour-next").textContent = at === texts.tour.length - 1 ? "Done" : "Next";
	document.querySelector(target).classList.add("toured");
	return $("tour").focus();
}

// ---- wiring ----
const acts = {
	play: toggle,
	reset: () => { restart(); setPlaying(!calm || playing); announce("Restarted."); },
	reseed: () => { set({ seed: (P.seed + 1) % 4294967296 }); setPlaying(!calm || playing); },
	zoom: () => { zoom = !zoom; $("zoom").setAttribute("aria-pressed", zoom); dirty = true; },
	share, csv: () => save(new Blob([session.csv()], { type: "text/csv" }), "csv"),
	png: () => picture().toBlob((blob) => save(blob, "png")),
	"tour-open": () => tour(0), "tour-back": () => tour(tourAt - 1), "tour-next": () => tour(tourAt + 1), "tour-close": () => tour(-1),
	"hint-do": () => set({ start: "overlap" }),
};
for (const [id, act] of Object.entries(acts)) $(id).addEventListener("click", act);
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("systems").addEventListener("click", ({ target }) => target.dataset.system && choose(target.dataset.system));
canvases[3].addEventListener("click", ({ offsetX, offsetY }) => {
	const found = system.name === "signal" && canvases[3].pick(offsetX, offsetY);
	if (found) set({ share: +found.share.toPrecision(2), strength: +found.strength.toPrecision(2) });
});
const KEYS = { " ": toggle, r: acts.reset, n: acts.reseed, z: acts.zoom, t: () => tour(0), 1: () => choose("location"), 2: () => choose("signal"), Escape: () => $("tour").hidden || tour(-1) };
document.addEventListener("keydown", (event) => {
	const own = event.target.closest("input, select, button, summary, a, pre") && event.key !== "Escape";
	const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
	if (!act || event.ctrlKey || event.metaKey || event.altKey || !$("keys").checked) return;
	if (own && (event.key === " " || event.target.matches("input, select"))) return;
	event.preventDefault();
	act();
});
const redraw = () => { EH.readColors(); dirty = true; };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(redraw).observe(document.body);
globalThis.addEventListener("hashchange", () => { readAddress(); build(); restart(); });
const docs = document.querySelector("meta[name=docs]")?.content;
for (const link of document.querySelectorAll("[data-docs]")) if (docs) link.href = docs + link.dataset.docs; else link.replaceWith("docs/theory in the source");

EH.page = { get session() { return session; }, get parameters() { return P; }, bench, measured, picture, frame: draw };
EH.readColors();
const given = readAddress();
build();
restart();
if (given.has("bench")) setInterval(() => { $("bench").textContent = measured(); }, 500);
requestAnimationFrame(frame);
})();
