// Texts of the page: introductions, captions, summaries, the tour.
import { abs, hypot, max, min } from "./numbers.js";
import { fmt, mean, N_RUNS } from "./systems.js";

const RUNS = [
	["blue", "━━", "mean of 30 runs; band: the middle 80 %"],
	["ink", "╍╍", "theory, mean"],
];
const RESTS = [
	["green", "●", "sink"],
	["purple", "■", "source"],
];

export const words = {
	location: {
		many: "heads",
		intro:
			"One token of each prompt decides the answer. A head must learn which token to attend to (key k) and what to read from it (value v).",
		titles: [
			"Thirty heads <span>and the theoretical flow</span>",
			"Overlaps: <span>|κ| blue, |ν| orange</span>",
			"Excess risk: <span>mean squared error minus ε²</span>",
			"Distance to the manifold: <span>√(θ²+η²+ρ²)</span>",
		],
		names: ["|\u2060κ|", "|\u2060ν|", "excess risk", "distance"],
		shown: [[0, 1], [0, 1], [2], [3]], // of these, in each figure
		key: [
			...RUNS,
			["ink", "──", "theory without noise"],
			["ink", "▒", "theory: the middle 80 % (erf: late in training)"],
			["orange", "━━", "|ν|"],
			["green", "┈┈", "oracle"],
			["grey", "╍╍", "best linear predictor"],
			["orange", "●", "current head"],
			...RESTS,
			["ink", "✕", "saddle"],
		],
		found({ last: { orders, theory } }) {
			const both = orders.filter(([kappa, nu]) => min(abs(kappa), abs(nu)) > 0.9).length;
			const isSwapped = (order) => abs(order[3]) > 0.9;
			const [ours, theirs] = [orders, theory].map((all) => all.filter(isSwapped).length);
			if (!(ours + theirs)) return `${both} of ${N_RUNS} heads have found both directions.`;
			// Swapped heads lower the mean of the runs, while theory's paths may all succeed.
			const others = ([all, name]) => {
				const rest = all.filter((order) => !isSwapped(order)),
					[kappa, nu] = [0, 1].map((i) => fmt(mean(rest.map((order) => abs(order[i])))));
				return rest.length ? `${name} |\u2060κ| ${kappa} and |\u2060ν| ${nu}` : `${name} none left`;
			};
			return `${both} of ${N_RUNS} heads have found both directions, ${ours} took the value for the key (theory: ${theirs} of ${theory.length}). Means without these: ${[
				[orders, "runs"],
				[theory, "theory"],
			]
				.map(others)
				.join(", ")}.`;
		},
		hint: (P) =>
			P.d < 50 * P.step * P.updates
				? ""
				: `A head learns d numbers, and each prompt gives one, so training at d = ${fmt(P.d)} takes about ${fmt((10 * P.d) / P.step, 1)} updates. ${
						P.start === "overlap"
							? "The page shows its beginning, magnified, with the theoretical curve."
							: "Heads that start at random, with overlap 1/√d, hardly move in the updates shown."
					}`,
	},
	heads: {
		many: "pairs",
		intro:
			"The answer is the sum of the values of two tokens, and each of them has a feature. Two softmax heads first look at both features, and then part: each takes one.",
		titles: [
			"Thirty pairs of heads <span>head 1 blue, head 2 orange</span>",
			"Overlaps: <span>own feature blue, other feature orange</span>",
			"Likeness of the heads: <span>k₁·k₂</span>",
			"Excess risk: <span>of new prompts, minus ε²</span>",
		],
		names: ["own feature", "other feature", "likeness", "excess risk"],
		shown: [[0, 1], [0, 1], [2], [3]],
		key: [
			...RUNS,
			["ink", "▒", "theory: the middle 80 %"],
			["orange", "━━", "other feature; head 2"],
			["green", "┈┈", "heads that equal the features"],
			["green", "●", "feature"],
		],
		found({ last: { orders } }) {
			const sides = orders.map(([a, b, c, d]) =>
					min(a, b) - max(c, d) > 0.3 ? 1 : min(c, d) - max(a, b) > 0.3 ? -1 : 0,
				),
				[kept, swapped] = [1, -1].map((side) => sides.filter((one) => one === side).length);
			return `${kept + swapped} of ${N_RUNS} pairs of heads have parted${swapped ? `, ${swapped} of them with exchanged features` : ""}.`;
		},
		hint: (P) =>
			P.d < 2 * P.step * P.updates
				? ""
				: `Training at d = ${fmt(P.d)} takes about ${fmt((10 * P.d) / P.step, 1)} updates, because a step is of size 1/d. The page shows its beginning; the theoretical curve is the same in all large dimensions, per d updates.`,
	},
	pca: {
		many: "heads",
		intro:
			"A head reconstructs its query, the first token of a prompt, from all tokens. Without any labels its direction μ becomes the first principal component of the tokens.",
		titles: [
			"Spectrum of the tokens <span>and thirty heads</span>",
			"Alignment: <span>|μ·u₁| / |μ|</span>",
			"Strength: <span>μᵀΣμ</span>",
			"Risk: <span>mean squared distance of query and output</span>",
		],
		names: ["alignment", "strength", "risk"],
		shown: [[0], [0], [1], [2]],
		key: [
			...RUNS,
			["ink", "──", "theory without noise"],
			["ink", "▒", "theory: the middle 80 %"],
			["green", "┈┈", "error of PCA with one component"],
			["grey", "╍╍", "output 0"],
			["grey", "▮", "eigenvalue"],
			["blue", "●", "share of one head"],
			["orange", "━━", "spectrum: mean share"],
		],
		found({ last: { stats, orders } }) {
			const found = orders.filter((order) => abs(order[0]) > 0.9 * hypot(...order)).length;
			return `${found} of ${N_RUNS} heads have an alignment above 0.9; on average ${fmt(100 * mean(orders.map((order) => order.at(-1) ** 2 / hypot(...order) ** 2)), 2)} % of |μ|² lie in the bulk.`;
		},
	},
	signal: {
		many: "queries",
		intro:
			"A few tokens share a direction u, with random signs; most are noise. A query maximises the length of its own attention output and so finds u.",
		titles: [
			"Thirty queries <span>find u or −u</span>",
			"Alignment: <span>|q·u|</span>",
			"Error: <span>1 − |q·u|</span>",
			"Methods that find u <span>by share and strength θ; click to choose</span>",
		],
		names: ["|q·u|", "error"],
		shown: [[0], [0], [1], []],
		key: [
			...RUNS,
			["ink", "▒", "theory: the middle 80 %"],
			["grey", "╍╍", "PCA of the same tokens"],
			["green", "┈┈", "noise floor of the step size"],
			["orange", "●", "current query"],
			...RESTS,
			["green", "▒", "map: head and PCA find u"],
			["purple", "▒", "map: only PCA finds u"],
		],
		found({
			last: { orders, levels },
			setup: {
				prompt: { pi, a },
			},
		}) {
			const [up, down] = [1, -1].map((side) => orders.filter(([t]) => side * t > 0.9).length);
			return `${up} of ${N_RUNS} queries have found u and ${down} have found −u; the alignment of PCA with all tokens so far would be ${fmt(levels.pca)}.${
				pi * a * a > 100
					? ` Because of the strong signal (πA² = ${fmt(pi * a * a)}), random signs move queries away from zero before the mean path leaves it; the grey band includes this.`
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
export const summary = (session) =>
	`Update ${fmt(session.step)} of ${fmt(session.P.updates)} at d = ${fmt(session.P.d)}. ${words[session.system.name].found(session)} Means: ${values(session).join(", ")}.`;

// Descriptions of the pictures as they are now, for screen readers.
export const captions = (session) =>
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

// Title, selector of the outlined part, and the text for each system.
export const tourSteps = [
	[
		"Thirty runs at once",
		"figure.hero",
		{
			location:
				"Each orange dot is a head in training. κ measures whether it attends to the right token, ν whether it reads the right value. Blue lines are its past.",
			signal:
				"Each orange dot is a query in training. Time runs upwards: all queries start near zero, and each moves to u or to −u.",
			heads:
				"Each run has a blue and an orange dot, its two heads. The axes are the overlaps with the two features. Both heads start at the same place, learn what is common, and then part.",
			pca: "Grey bars are the eigenvalues of the tokens' covariance. Blue dots show which share of its squared length each head has along each eigenvector. All of it moves to the first.",
		},
	],
	[
		"Theory in the same picture",
		"figure.hero",
		{
			location:
				"Arrows are the flow of the closed-form risk. Its fixed points are a saddle in the middle, two sinks (circles) and two sources (squares).",
			signal:
				"The curve at the top is the closed form of the objective. Zero is unstable (square), the ends are stable (circles).",
			heads:
				"Dashed lines are the mean path of stochastic gradient descent, computed without any simulation: the softmax means are integrals. The circles are the two features.",
			pca: "Dashed marks are the mean path from the same start, computed from the risk for this number of tokens. It includes the noise that gradients add in the bulk.",
		},
	],
	[
		"Curves of theory are dashed",
		"figure:nth-of-type(2)",
		{
			location:
				"The dashed line is the mean path of training with noise, from the same starts; heads that take the value for the key fall below it. The thin line is gradient descent without noise. Larger batches bring both together.",
			signal:
				"The dashed line is the mean path from the same starts, and the grey band should contain most runs. Signs that do not cancel in a prompt can move queries away from zero before the mean path. The grey dashed line is PCA of the same tokens.",
			heads:
				"The dashed line is the mean path, and the grey band should contain most runs. Where the heads part, small differences grow, and the band is wide.",
			pca: "The dashed line is the mean path with noise, and the grey band should contain most runs. The thin line is gradient descent on the risk, without noise.",
		},
	],
	[
		"Distance, risk, or the map of methods",
		"figure:nth-of-type(4)",
		{
			location:
				"Three other inner products should be zero. Late in training the noise of the gradients keeps most heads in the grey band. Heads above it have left the manifold: they take the value for the key, and lower the means of |κ| and |ν|.",
			signal:
				"The map shows share and strength of the signal. In the green part theory predicts that head and PCA find u in this number of updates, in the purple part only PCA. Click to choose a point.",
			heads:
				"The mean squared error of new prompts decreases twice: when the heads find both features together, and when they part. The dotted line belongs to heads that equal the features.",
			pca: "The risk falls to that of PCA with one component (dotted). With few tokens a softmax head stays above it, because it averages few tokens.",
		},
	],
	[
		"Any dimension",
		"#controls",
		{
			location:
				"Move the first slider. A step takes the same time at d = 10 and at 10⁹, and the simulation is exact. At 10⁹ training takes more updates, and the page shows its beginning.",
			signal:
				"Move the first slider. A step takes the same time at d = 10 and at 10⁹, and the simulation is exact. Even at 10⁹ training takes only a few hundred updates.",
			heads:
				"Move the slider of the dimension, or type parameters into the box. A step takes the same time at d = 10 and at 10⁹, but the number of updates grows with d.",
			pca: "Move the slider of the dimension, or type parameters into the box. A step takes the same time at d = 10 and at 10⁹: the bulk enters through its total variance.",
		},
	],
];
