// What the page says: introductions, captions, summaries, Python, the tour.
"use strict";

const RUNS = [["blue", "━━", "mean of 30 runs; band: the middle 80 %"], ["ink", "╍╍", "theory, mean"]];
const RESTS = [["green", "●", "sink"], ["purple", "■", "source"]];
const pythonRuns = (P) => `n_steps=updates, n_runs=${N_RUNS}, record_every=max(1, updates // 400), seed=${P.seed}`;

const words = {
	location: {
		intro: "One token of each prompt decides the answer. A head must learn where to look (key k) and what to read (value v): thirty heads train at once, against theory.",
		titles: ["Thirty heads <span>over theory's flow</span>", "Overlaps <span>|κ| blue, |ν| orange</span>", "Excess risk <span>mean squared error less ε²</span>", "Distance to the manifold <span>√(θ²+η²+ρ²)</span>"],
		names: ["|κ|", "|ν|", "excess risk", "distance"],
		shown: [[0, 1], [0, 1], [2], [3]], // of these, in each figure
		key: [...RUNS, ["orange", "━━", "|ν|"], ["green", "┈┈", "oracle"], ["grey", "╍╍", "best linear; predicting 0"], ["orange", "●", "head now"], ...RESTS, ["ink", "✕", "saddle"]],
		found({ last: { orders, theory } }) {
			const both = orders.filter(([kappa, nu]) => min(abs(kappa), abs(nu)) > 0.9).length;
			const [ours, theirs] = [orders, theory].map((all) => all.filter((order) => abs(order[3]) > 0.9).length);
			return `${both} of ${N_RUNS} heads have found both directions${ours + theirs ? `, ${ours} took the value for the key (theory: ${theirs} of ${theory.length})` : ""}.`;
		},
		hint: (P) => (P.d < 50 * P.step * P.updates ? "" : `A head learns d numbers from one a prompt, so training at d = ${fmt(P.d)} takes about ${fmt((10 * P.d) / P.step, 1)} updates: ${
			P.start === "overlap" ? "you see its first moves, magnified, on theory's curve." : "random starts, of overlap 1/√d, can hardly move here."}`),
		python: (P) => `import math
from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import location_start, simulate_location

d, updates = ${P.d}, ${P.updates}
paths = simulate_location(
    SingleLocation(d, n_tokens=${P.tokens}, noise=${P.noise}),
    inverse_temperature=lambda t: ${P.sharpness} / math.sqrt(d) / (1 + ${P.cooling - 1} * t / updates),
    step_size=lambda t: ${P.step} / d / (1 + ${P.decay - 1} * t / updates),
    batch_size=${P.batch}, ${pythonRuns(P)},
    start=${P.start === "overlap" ? "[0.3, 0.3, 0, 0, 0]" : `location_start(d, n_runs=${N_RUNS}, seed=${P.seed}, on_manifold=${P.start === "manifold" ? "True" : "False"})`},
)`,
	},
	signal: {
		intro: "A few tokens carry a direction u, with random signs; most are noise. A query climbs the length of its own attention output and so finds u: thirty queries train at once, against theory.",
		titles: ["Thirty queries <span>climb, and choose a sign</span>", "Alignment <span>|q·u|</span>", "Error <span>1 − |q·u|</span>", "Who finds u? <span>strength θ over share: click</span>"],
		names: ["|q·u|", "error"],
		shown: [[0], [0], [1], []],
		key: [...RUNS, ["grey", "╍╍", "PCA of the same tokens"], ["green", "┈┈", "noise floor of the step"], ["orange", "●", "query now"], ...RESTS, ["green", "▒", "map: head and PCA find u"], ["purple", "▒", "PCA alone"]],
		found({ last: { orders, levels }, setup: { prompt: { pi, a } } }) {
			const [up, down] = [1, -1].map((side) => orders.filter(([t]) => side * t > 0.9).length);
			return `${up} of ${N_RUNS} queries have found u and ${down} have found −u; PCA of all tokens so far would have ${fmt(levels.pca)}.${
				pi * a * a > 100 ? ` Strong prompts (πA² = ${fmt(pi * a * a)}) kick queries off zero before theory's path leaves it.` : ""}`;
		},
		hint: () => "",
		python: (P, law = signalLaw(P)) => `from eigenheads.datasets import SignalTokens
from eigenheads.dynamics import simulate_signal

updates = ${P.updates}
law = SignalTokens(${P.d}, n_informative=${law.nInformative}, n_nuisance=${law.nNuisance}, strength=${P.strength}, inverse_temperature=${law.beta})
paths = simulate_signal(
    law, step_size=lambda t: ${P.step * signalSteps(law).first} / (1 + ${P.decay - 1} * t / updates),
    ${pythonRuns(P)},
)`,
	},
};

const summary = (session, { step, P, system: { name }, last: { stats } } = session) => `Update ${fmt(step)} of ${fmt(P.updates)} at d = ${fmt(P.d)}. ${words[name].found(session)} Means: ${
	words[name].names.map((one, i) => `${one} ${fmt(stats[i].mean)} (theory ${fmt(stats[i].theory)})`).join(", ")}.`;

// What each picture shows now, for those who do not see it.
function captions({ step, P, system: { name, outcome }, last: { stats } }) {
	const { titles, names, shown } = words[name], said = names.map((one, i) => `${one}: mean ${fmt(stats[i].mean)}, most from ${fmt(stats[i].low)} to ${fmt(stats[i].high)}, theory ${fmt(stats[i].theory)}.`);
	const { head, pca } = outcome ? outcome(P, P.share, P.strength) : {}, finds = (yes) => (yes ? "finds" : "does not find");
	return titles.map((title, i) => `${title.replace(/<.*?>/g, "")}, after ${fmt(step)} updates. ${shown[i].map((at) => said[at]).join(" ")
		|| `Here theory says that the head ${finds(head)} u and that PCA ${finds(pca)} it; the sliders choose another place.`}`);
}

// Five steps: title, what is outlined, and the text for each system.
const tourSteps = [
	["Thirty runs at once", "figure.hero", {
		location: "Each orange dot is a head in training, at (κ, ν): how well it knows where to look and what to read. Blue lines are where it came from.",
		signal: "Each orange dot is a query in training. Time runs upwards: all begin near zero alignment, and each branches to u or to −u." }],
	["Theory underneath", "figure.hero", {
		location: "Arrows are the flow that the closed-form risk predicts. It rests at a saddle in the middle; two corners attract (circles), two repel (squares).",
		signal: "The curve on top is the closed form that a query climbs. Zero repels (square), the ends attract (circles); dashed lines are theory's mean paths." }],
	["Curves, theory dashed", "figure:nth-of-type(2)", {
		location: "Dashed is descent on the exact mean risk from the same starts. The noise of samples holds runs back or kicks them on, now and then to another end; larger batches bring both together.",
		signal: "Dashed is the mean path from the same starts, noise included. Signs that do not cancel in a prompt kick single queries, which may leave zero before it; grey is PCA of the same tokens." }],
	["The fourth picture", "figure:nth-of-type(4)", {
		location: "Three other inner products should vanish. Where this distance grows a head has left the manifold: some take the value for the key.",
		signal: "A map of share and strength. Green: theory says that head and PCA find u in this many updates; purple: PCA alone. Click to go there." }],
	["Any dimension", "#controls", {
		location: "Move the first slider. A step costs the same at d = 10 and at 10⁹ and is no approximation; but at 10⁹ training takes more updates, and you see its beginning magnified.",
		signal: "Move the first slider. A step costs the same at d = 10 and at 10⁹, and is no approximation: even there the whole training takes some hundred updates." }],
];
