// The ratio curve: A's share after every layer and at the classifier, beside what each method would train on.

const HEIGHT = 260, LEFT = 46, RIGHT = 150, TOP = 12, BOTTOM = 36;
const GAP = 18; // between the lines of text at the right
const CLOSE = 14; // to the last number below
const percent = (value) => `${(100 * value).toFixed(1)} %`;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Heights that are at least GAP apart, near the ones that are wanted, and inside the picture. */
export function apart(wanted) {
  const order = wanted.map((_, place) => place).sort((one, two) => wanted[one] - wanted[two]);
  const placed = [];
  order.forEach((place, rank) => { placed[place] = Math.max(wanted[place], rank ? placed[order[rank - 1]] + GAP : 0); });
  let lowest = HEIGHT - BOTTOM + 4;
  for (const place of order.toReversed()) {
    placed[place] = Math.min(placed[place], lowest);
    lowest = placed[place] - GAP;
  }
  return placed;
}

/** The curve of an answer, with the chosen layer marked, so many pixels wide. */
export function curve(answer, chosen, width) {
  const depth = answer.layers.length, end = depth + 1; // the classifier: layers that put out no tokens may come before it
  const lines = {
    labels: [[0, answer.area], ...answer.layers.map((layer, place) => [place + 1, layer.aligned]), [end, answer.targets["TL-Align"]]],
    resemblance: answer.layers.map((layer, place) => [place + 1, layer.similarity]),
  };
  const levels = Object.entries(answer.targets).filter(([name]) => name !== "TL-Align"); // where its line ends
  const all = [...Object.values(lines).flat().map(([, value]) => value), ...levels.map(([, value]) => value)];
  const low = Math.max(0, Math.floor(20 * (Math.min(...all) - 0.01)) / 20);
  const high = Math.min(1, Math.max(Math.ceil(20 * (Math.max(...all) + 0.01)) / 20, low + 0.1));
  const x = (layer) => LEFT + (layer / end) * (width - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);

  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  const told = Object.entries(answer.targets).map(([name, value]) => `${name} ${percent(value)}`).join(", ");
  svg.append(element("title", {}, `A's share after each of ${depth} layers; at the end ${told}`));
  const step = high - low > 0.5 ? 0.2 : high - low > 0.25 ? 0.1 : 0.05;
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + 1e-9; tick += step) {
    svg.append(element("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    svg.append(element("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, `${Math.round(100 * tick)} %`));
  }
  const every = Math.ceil(depth / 12);
  for (let layer = 0; layer <= depth && x(end) - x(layer) > CLOSE; layer += every) {
    svg.append(element("text", { x: x(layer), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, layer || "start"));
  }
  svg.append(element("text", { x: x(end) - 4, y: HEIGHT - BOTTOM + 18 }, "classifier"));
  svg.append(element("line", { class: "here", x1: x(chosen), x2: x(chosen), y1: TOP, y2: HEIGHT - BOTTOM }));
  levels.forEach(([, value], place) => {
    const group = element("g", { class: `level-${place}` });
    group.append(element("line", { class: "level", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(group);
  });
  for (const [name, points] of Object.entries(lines)) {
    const group = element("g", { class: name });
    group.append(element("polyline", { class: "line", points: points.map(([at, value]) => `${x(at)},${y(value)}`).join(" ") }));
    for (const [at, value] of points) {
      const place = name === "labels" ? { cx: x(at), cy: y(value), r: at === chosen ? 5.5 : 3.2 }
        : { x: x(at) - 3.5, y: y(value) - 3.5, width: 7, height: 7 };
      group.append(element(name === "labels" ? "circle" : "rect", { class: "mark", ...place }));
    }
    svg.append(group);
  }
  const ends = [
    ["labels", "Labels (TL-Align)", lines.labels.at(-1)[1]],
    ["resemblance", "Resemblance", lines.resemblance.at(-1)[1]],
    ...levels.map(([name, value], place) => [`level-${place}`, name, value]),
  ];
  const heights = apart(ends.map(([, , value]) => y(value) + 5));
  ends.forEach(([kind, name, value], place) => {
    const group = element("g", { class: kind });
    const from = kind === "resemblance" ? x(depth) : width - RIGHT; // where its line ends
    group.append(element("path", { class: "leader", d: `M${from} ${y(value)}L${width - RIGHT + 14} ${heights[place] - 5}` }));
    group.append(element("text", { class: "name", x: width - RIGHT + 18, y: heights[place] }, name));
    svg.append(group);
  });
  return svg;
}
