// The page: controls, the loop, the address, downloads, the tour.
import { ceil, clip, log, min, round } from "./numbers.js";
import { fmt, systems } from "./systems.js";
import { Session } from "./session.js";
import { captions, summary, tourSteps, words } from "./texts.js";
import { between, closeUp, color, figures, prepare } from "./plots.js";

const BUDGET = 2.8; // ms per frame; with the work after the deadline, below 4
const TICKS = 400; // of a slider
const $ = (id) => document.getElementById(id);
const tell = (id, said) => Object.assign($(id), { textContent: said, hidden: !said });
const canvases = [...document.querySelectorAll("canvas")];
let system,
	P,
	session,
	text,
	playing = !matchMedia("(prefers-reduced-motion: reduce)").matches,
	dirty = true,
	tourAt = 0;

// ---- parameters and the address ----
function clamp({ min, max, whole, options, start }, given) {
	if (options) return Object.keys(options).includes(given) ? given : start;
	const value = clip(given.trim() ? +given : NaN, min, max);
	return Number.isNaN(value) ? start : whole ? round(value) : value;
}

// An address is text of strangers: values are checked, cut and shown as text only.
const cut = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);
const contract = ({ min, max, whole, options }) =>
	options
		? `one of ${Object.keys(options).join(", ")}`
		: `a ${whole ? "whole " : ""}number from ${fmt(min)} to ${fmt(max)}`;
const listed = (keys) => keys.join(", ");

function readAddress() {
	const given = new URLSearchParams(`${location.search.slice(1)}&${location.hash.slice(1)}`),
		said = [],
		changes = {};
	const name = given.get("system") ?? "location",
		known = systems[name] ? name : "location";
	if (name !== known) said.push(`There is no system “${cut(name)}”.`);
	given.delete("system");
	if (given.has("paused")) playing = false;
	given.delete("paused");
	for (const [key, value] of given) {
		const control = systems[known].controls.find((one) => one.key === key);
		if (!control) {
			said.push(`There is no parameter “${cut(key)}”.`);
			continue;
		}
		const used = (changes[key] = clamp(control, value));
		if (value !== used && !(value && +value === used))
			said.push(
				`${control.label} must be ${contract(control)}; got “${cut(value)}”. Using ${used}.`,
			);
	}
	choose(known, changes);
	tell(
		"notice",
		[...said.slice(0, 4), ...(said.length > 4 ? [`${said.length - 4} more.`] : [])].join(" "),
	);
}

// ---- parameters as text ----
const SHORT_NAMES = { __proto__: null, L: "tokens", B: "batch", T: "updates" };

// Read `name=value` pairs. Return {name, changes}, or {error}: one sentence, and nothing changed.
function readText(text, current) {
	const changes = {},
		pairs = text
			.replace(/\s*=\s*/g, "=")
			.split(/[\s,;&]+/)
			.filter(Boolean);
	let name = current;
	for (const pair of pairs) if (pair.startsWith("system=")) name = pair.slice(7);
	if (!systems[name])
		return {
			error: `There is no system “${cut(name)}”; choose one of ${listed(Object.keys(systems))}.`,
		};
	for (const pair of pairs) {
		const at = pair.indexOf("="),
			given = pair.slice(0, at),
			value = pair.slice(at + 1);
		if (at < 1)
			return {
				error: `“${cut(pair)}” is no parameter with a value; write name=value, for example d=1000.`,
			};
		if (given === "system") continue;
		const key = SHORT_NAMES[given] ?? given,
			control = systems[name].controls.find((one) => one.key === key);
		if (!control)
			return {
				error: `There is no parameter “${cut(given)}”; choose from ${listed(systems[name].controls.map((one) => one.key))}.`,
			};
		const number = value.replace(/^10\^/, "1e"),
			used = clamp(control, control.options ? value : number);
		if (control.options ? used !== value : !number || +number !== used)
			return {
				error: `${control.label} (${key}) must be ${contract(control)}; got “${cut(value)}”.`,
			};
		changes[key] = used;
	}
	return { name, changes };
}

function applyText() {
	const { error, name, changes } = readText($("typed-text").value, system.name);
	$("typed-text").ariaInvalid = Boolean(error);
	tell("typed-error", error);
	if (error) return;
	if (name === system.name) set(changes);
	else choose(name, changes);
}

// ---- controls ----
// Sliders are logarithmic, and rounded to two digits.
const toTick = ({ min, max }, v) => round((TICKS * log(v / min)) / log(max / min));

function fromTick({ min, max, whole }, tick) {
	const v = between([min, max], tick / TICKS);
	return clip(+v.toPrecision(v < 10 && whole ? 1 : 2), min, max);
}

function choose(name, changes = {}) {
	system = systems[name];
	text = words[name];
	P = Object.fromEntries(system.controls.map(({ key, start }) => [key, start]));
	$("controls").innerHTML = system.controls
		.map(({ key, label, help, options, number, min, max }) => {
			const common = `id="c-${key}" name="${key}" aria-describedby="h-${key}"`;
			const input = options
				? `<select ${common}>${Object.entries(options)
						.map(([value, said]) => `<option value="${value}">${said}</option>`)
						.join("")}</select>`
				: `<input ${common} ${number ? `type="number" min="${min}" max="${max}"` : `type="range" max="${TICKS}"`}>`;
			return `<div class="control"><label for="c-${key}">${label}</label><output></output>${input}
			<details><summary aria-label="What ${label} does">?</summary><p class="quiet" id="h-${key}">${help}</p></details></div>`;
		})
		.join("");
	for (const part of document.querySelectorAll("[data-of]")) part.hidden = part.dataset.of !== name;
	for (const button of $("systems").children) button.ariaPressed = button.value === name;
	tell("intro", `${text.intro} The page trains thirty ${text.many} and compares them with theory.`);
	canvases.forEach((canvas, i) => {
		canvas.previousElementSibling.innerHTML = text.titles[i];
	});
	$("key").innerHTML = text.key
		.map(
			([ink, sample, meaning]) =>
				`<span><i style="color: var(--${ink})" aria-hidden="true">${sample}</i> ${meaning}</span>`,
		)
		.join(" ");
	set(changes);
}

function edit({ target: { name, value } }) {
	const control = system.controls.find(({ key }) => key === name);
	set({
		[name]: control.options || control.number ? clamp(control, value) : fromTick(control, +value),
	});
}

// Change parameters, show them, and start again.
function set(changes) {
	Object.assign(P, changes);
	session = new Session(system, { ...P });
	history.replaceState(null, "", `#${new URLSearchParams({ system: system.name, ...P })}`);
	for (const control of system.controls) {
		const { key, options, number, unit } = control,
			input = $(`c-${key}`);
		input.value = options || number ? P[key] : toTick(control, P[key]);
		if (!options && !number)
			input.ariaValueText = input.previousElementSibling.textContent =
				fmt(P[key]) + (unit ? ` (${unit(P)})` : "");
	}
	tell("hint", text.hint?.(P));
	$("ways").hidden = $("hint").hidden || system.name !== "location";
	tell("notice", "");
	tell("typed-error", "");
	Object.assign($("typed-text"), {
		value: Object.entries(P)
			.map((pair) => pair.join("="))
			.join(" "),
		ariaInvalid: false,
	});
	play(playing);
}

// ---- the loop ----
function frame() {
	requestAnimationFrame(frame);
	const { step } = session;
	if (!session.isReady) {
		dirty = session.prepare(performance.now() + BUDGET);
	} else if (playing && !session.done) {
		session.advance(performance.now() + BUDGET);
		if (session.done) play(playing);
	}
	if (!session.isReady || !(dirty || step !== session.step)) return;
	draw();
	dirty = false;
}

function draw() {
	const close = closeUp(session),
		said = summary(session);
	figures[system.name].forEach((paint, i) => paint(canvases[i], session, close));
	$("progress").value = session.step / P.updates;
	tell("summary", said);
	if (session.broken) tell("notice", "The numbers overflowed. Choose a smaller step.");
	captions(session).forEach((caption, i) => {
		canvases[i].ariaLabel = caption;
	});
	$("announce").textContent = session.done ? said : "";
}

function play(on) {
	playing = on;
	$("play").textContent = session.done ? "Run again" : playing ? "Pause" : "Play";
	dirty = true;
}

// ---- downloads and sharing ----
function save(blob, kind) {
	const href = URL.createObjectURL(blob),
		download = `eigenheads-${system.name}-d${P.d}-seed${P.seed}.${kind}`;
	Object.assign(document.createElement("a"), { href, download }).click();
	setTimeout(() => URL.revokeObjectURL(href), 1000);
}

// All figures with captions, parameters and key on one canvas.
function picture() {
	const box = document.querySelector(".grid").getBoundingClientRect(),
		pad = 16,
		rows = ceil(1300 / box.width),
		top = 64 + 18 * rows;
	const canvas = document.createElement("canvas");
	Object.assign(canvas.style, {
		position: "fixed",
		width: `${box.width + 2 * pad}px`,
		height: `${box.height + 2 * top - 48}px`,
	});
	document.body.append(canvas);
	const { c, width, height } = prepare(canvas);
	canvas.remove();
	c.fillStyle = color("ground");
	c.fillRect(0, 0, width, height);
	const put = (said, x, y, font = 12, ink = "ink") => {
		Object.assign(c, { fillStyle: color(ink), font: `${font}px system-ui, sans-serif` });
		c.fillText(said, x, y, box.width);
		return c.measureText(said).width;
	};
	const flow = (items, y) => {
		let x = pad;
		for (const [ink, first, second] of items) {
			if (x + c.measureText(first + second).width > width - 2 * pad) [x, y] = [pad, y + 18];
			x += put(first, x, y, 12, ink) + 5;
			x += put(second, x, y) + pad;
		}
	};
	put(
		`Training of attention at d = ${fmt(P.d)}: thirty runs and theory`,
		pad,
		32,
		`bold ${min(20, width / 25)}`,
	);
	flow(
		[["quiet", "Eigenheads,", system.name], ...Object.entries(P).map((pair) => ["quiet", ...pair])],
		54,
	);
	for (const one of canvases) {
		const at = one.getBoundingClientRect(),
			x = at.left - box.left + pad,
			y = at.top - box.top + top;
		put(one.previousElementSibling.textContent, x, y - 8, "bold 13");
		c.drawImage(one, x, y, at.width, at.height);
	}
	flow(text.key, top + box.height + 20);
	return canvas;
}

async function share() {
	try {
		await navigator.clipboard.writeText(location.href);
		tell("notice", "The link is copied. It shows the same runs to others.");
	} catch {
		tell("notice", `Copy this address: ${location.href}`);
	}
}

// ---- the tour ----
function tour(at) {
	document.querySelector(".toured")?.classList.remove("toured");
	tourAt = at;
	$("tour").hidden = !tourSteps[at];
	if (!tourSteps[at]) return $("tour-open").focus();
	const [title, target, said] = tourSteps[at];
	tell("tour-title", `${at + 1} of ${tourSteps.length}: ${title}`);
	tell("tour-text", said[system.name]);
	tell("tour-next", tourSteps[at + 1] ? "Next" : "Done");
	$("tour-back").disabled = at === 0;
	const part = document.querySelector(target);
	part.classList.add("toured");
	part.scrollIntoView();
	return $("tour").focus();
}

// ---- wiring ----
const on = (target, event, act) => target.addEventListener(event, act);
for (const [id, act] of Object.entries({
	play: () => (session.done ? set({}) : play(!playing)),
	reset: () => set({}),
	reseed: () => set({ seed: (P.seed + 1) % 2 ** 32 }),
	share,
	csv: () => save(new Blob([session.csv()], { type: "text/csv" }), "csv"),
	png: () => picture().toBlob((blob) => save(blob, "png")),
	"tour-open": () => tour(0),
	"tour-back": () => tour(tourAt - 1),
	"tour-next": () => tour(tourAt + 1),
	"tour-close": () => tour(-1),
	"first-moves": () => set({ start: "overlap" }),
	"whole-here": () => choose("signal", { d: P.d }),
	"whole-small": () => choose("location"),
}))
	on($(id), "click", act);
on($("systems"), "click", ({ target }) => target.value && choose(target.value));
on($("controls"), "submit", (event) => event.preventDefault());
on($("typed"), "submit", (event) => {
	event.preventDefault();
	applyText();
});
on($("typed-text"), "keydown", (event) => {
	if (event.key !== "Enter" || event.shiftKey) return;
	event.preventDefault();
	applyText();
});
on($("controls"), "input", (event) => event.target.type === "number" || edit(event));
on($("controls"), "change", (event) => event.target.type === "number" && edit(event));
on(
	canvases[3],
	"click",
	({ offsetX, offsetY }) => system.outcome && set(canvases[3].pick(offsetX, offsetY) || {}),
);
on(document, "keydown", ({ key }) => key === "Escape" && !$("tour").hidden && tour(-1));
const redraw = () => {
	dirty = true;
};
on(matchMedia("(prefers-color-scheme: dark)"), "change", redraw);
new ResizeObserver(redraw).observe(document.body);
on(window, "hashchange", readAddress);
$("unbuilt")?.remove(); // the modules have been loaded
readAddress();
requestAnimationFrame(frame);
