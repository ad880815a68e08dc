// Texts of the page: introductions, captions, summaries, the tour.
"use strict";

const RUNS = [
	["blue", "━━", "mean of 30 runs; band: the middle 80 %"],
	["ink", "╍╍", "theory, mean"],
];
const RESTS = [
	["green", "●", "sink"],
	["purple", "■", "source"],
];

const words = {
	location: {
		intro:
			"One token of each prompt decides the answer. A head must learn where to look (key k) and what to read (value v).",
		titles: [
			"Thirty heads <span>over theory's flow</span>",
			"Overlaps: <span>|κ| blue, |ν| orange</span>",
			"Excess risk: <span>mean squared error less ε²</span>",
			"Distance to the manifold: <span>√(θ²+η²+ρ²)</span>",
		],
		names: ["|\u2060κ|", "|\u2060ν|", "excess risk", "distance"],
		shown: [[0, 1], [0, 1], [2], [3]], // of these, in each figure
		key: [
			...RUNS,
			["ink", "──", "theory without noise"],
			["orange", "━━", "|ν|"],
			["green", "┈┈", "oracle"],
			["grey", "╍╍", "best linear"],
			["orange", "●", "head now"],
			...RESTS,
			["ink", "✕", "saddle"],
		],
		found({ last: { orders, theory } }) {
			const both = orders.filter(([kappa, nu]) => min(abs(kappa), abs(nu)) > 0.9).length;
			const [ours, theirs] = [orders, theory].map(
				(all) => all.filter((order) => abs(order[3]) > 0.9).length,
			);
			return `${both} of ${N_RUNS} heads have found both directions${ours + theirs ? `, ${ours} took the value for the key (theory: ${theirs} of ${theory.length})` : ""}.`;
		},
		hint: (P) =>
			P.d < 50 * P.step * P.updates
				? ""
				: `A head learns d numbers from one a prompt, so training at d = ${fmt(P.d)} takes about ${fmt((10 * P.d) / P.step, 1)} updates: ${
						P.start === "overlap"
							? "you see its first moves, magnified, on theory's curve."
							: "random starts, of overlap 1/√d, can hardly move here."
					}`,
	},
	signal: {
		intro:
			"A few tokens carry a direction u, with random signs; most are noise. A query climbs the length of its own attention output and so finds u.",
		titles: [
			"Thirty queries <span>climb, and choose a sign</span>",
			"Alignment: <span>|q·u|</span>",
			"Error: <span>1 − |q·u|</span>",
			"Who finds u? <span>strength θ over share: click</span>",
		],
		names: ["|q·u|", "error"],
		shown: [[0], [0], [1], []],
		key: [
			...RUNS,
			["grey", "╍╍", "PCA of the same tokens"],
			["green", "┈┈", "noise floor of the step"],
			["orange", "●", "query now"],
			...RESTS,
			["green", "▒", "map: head and PCA find u"],
			["purple", "▒", "PCA alone"],
		],
		found({
			last: { orders, levels },
			setup: {
				prompt: { pi, a },
			},
		}) {
			const [up, down] = [1, -1].map((side) => orders.filter(([t]) => side * t > 0.9).length);
			return `${up} of ${N_RUNS} queries have found u and ${down} have found −u; PCA of all tokens so far would have ${fmt(levels.pca)}.${
				pi * a * a > 100
					? ` Strong prompts (πA² = ${fmt(pi * a * a)}) kick queries off zero before theory's path leaves it.`
					: ""
			}`;
		},
	},
};

const values = ({ system: { name }, last: { stats } }, band) =>
	words[name].names.map((one, i) => {
		const [middle, low, high, theory] = ["mean", "low", "high", "theory"].map((key) =>
			fmt(stats[i][key]),
		);
		return `${one} ${middle} (theory ${theory}${band ? `, most from ${low} to ${high}` : ""})`;
	});
const summary = (session) =>
	`Update ${fmt(session.step)} of ${fmt(session.P.updates)} at d = ${fmt(session.P.d)}. ${words[session.system.name].found(session)} Means: ${values(session).join(", ")}.`;

// Descriptions of the pictures as they are now, for screen readers.
const captions = (session) =>
	words[session.system.name].titles.map((title, i) => {
		const {
				P,
				system: { name, outcome },
			} = session,
			{ head, pca } = outcome?.(P, P.share, P.strength) ?? {},
			finds = (yes) => (yes ? "finds" : "does not find");
		return `${title.replace(/<.*?>/g, "")}, after ${fmt(session.step)} updates. ${
			words[name].shown[i].map((at) => values(session, true)[at]).join(", ") ||
			`According to theory, the head ${finds(head)} u and PCA ${finds(pca)} it`
		}.`;
	});

// Title, what is outlined, and the text for each system.
const tourSteps = [
	[
		"Thirty runs at once",
		"figure.hero",
		{
			location:
				"Each orange dot is a head in training, at (κ, ν): how well it knows where to look and what to read. Blue lines are its past.",
			signal:
				"Each orange dot is a query in training. Time runs upwards: all begin near zero, and each branches to u or to −u.",
		},
	],
	[
		"Theory underneath",
		"figure.hero",
		{
			location:
				"Arrows are the flow of the closed-form risk. It rests at a saddle in the middle; two corners attract (circles), two repel (squares).",
			signal:
				"The curve on top is the closed form that a query climbs. Zero repels (square), the ends attract (circles).",
		},
	],
	[
		"Curves, theory dashed",
		"figure:nth-of-type(2)",
		{
			location:
				"Dashed is the mean path of training with its noise, from the same starts; thin is descent without noise. Larger batches bring both together.",
			signal:
				"Dashed is the mean path from the same starts. Signs that do not cancel in a prompt may kick queries off zero before it; grey is PCA of the same tokens.",
		},
	],
	[
		"The fourth picture",
		"figure:nth-of-type(4)",
		{
			location:
				"Three other inner products should vanish. Where this distance grows a head has left the manifold: some take the value for the key.",
			signal:
				"Share and strength of the signal. Green: theory says that head and PCA find u in this many updates; purple: PCA alone. Click to go there.",
		},
	],
	[
		"Any dimension",
		"#controls",
		{
			location:
				"Move the first slider. A step costs the same at d = 10 and at 10⁹ and is exact; but there training takes more updates, and you see its beginning.",
			signal:
				"Move the first slider. A step costs the same at d = 10 and at 10⁹ and is exact; even there training takes only some hundred updates.",
		},
	],
];
