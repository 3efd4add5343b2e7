// The mixed picture, the box that is dragged over it, and the colours of its tokens.
// A box is { left, top, right, bottom } in parts of the picture.

const RED = [202, 0, 32], BLUE = [5, 113, 176], WHITE = [247, 247, 247], PURPLE = [94, 60, 153], ORANGE = [224, 130, 20];
const SMALLEST = 0.05;
const EDGES = [["left", "right"], ["top", "bottom"]];

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const rounded = (value) => Math.round(value * 1000) / 1000;

/** The box, moved as a whole, or only at some of its edges; it stays inside the picture. */
export function moved(box, right, down, edges = []) {
  const result = { ...box };
  for (const [axis, by] of [[0, right], [1, down]]) {
    const [low, high] = EDGES[axis];
    if (!edges.length) {
      const step = clamp(by, -box[low], 1 - box[high]);
      result[low] = rounded(box[low] + step);
      result[high] = rounded(box[high] + step);
    }
    if (edges.includes(low)) result[low] = rounded(clamp(box[low] + by, 0, Math.max(0, box[high] - SMALLEST)));
    if (edges.includes(high)) result[high] = rounded(clamp(box[high] + by, Math.min(1, box[low] + SMALLEST), 1));
  }
  return result;
}

/** Let people move the box: by pointer (corners resize it), arrow keys (with shift: resize) and numbers. */
export function makeBox(stage, element, inputs, change) {
  let box = { left: 0.375, top: 0.375, right: 0.875, bottom: 0.875 };
  let grip = null; // where a drag began: { x, y, box, edges }

  function set(next) {
    box = next;
    element.style.left = `${100 * box.left}%`;
    element.style.top = `${100 * box.top}%`;
    element.style.width = `${100 * (box.right - box.left)}%`;
    element.style.height = `${100 * (box.bottom - box.top)}%`;
    for (const input of inputs) {
      if (input !== document.activeElement) input.value = Math.round(100 * box[input.dataset.edge]);
    }
    change(box);
  }

  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    element.focus({ preventScroll: true });
    element.setPointerCapture(event.pointerId);
    grip = { x: event.clientX, y: event.clientY, box, edges: event.target.dataset.corner?.split(" ") ?? [] };
  });
  element.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const { width, height } = stage.getBoundingClientRect();
    set(moved(grip.box, (event.clientX - grip.x) / width, (event.clientY - grip.y) / height, grip.edges));
  });
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => { grip = null; });

  element.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    set(moved(box, 0.02 * step[0], 0.02 * step[1], event.shiftKey ? [step[0] ? "right" : "bottom"] : []));
  });
  for (const input of inputs) {
    input.addEventListener("input", () => {
      if (!input.validity.valid || input.value === "") return;
      const edge = input.dataset.edge, by = input.value / 100 - box[edge];
      set(edge === "left" || edge === "right" ? moved(box, by, 0, [edge]) : moved(box, 0, by, [edge]));
    });
    input.addEventListener("blur", () => { input.value = Math.round(100 * box[input.dataset.edge]); });
  }
  set(box);
  return () => box;
}

/** From one colour over white to another, for a value from 0 to 1. */
function colour(value, low, high) {
  const lean = clamp(2 * value - 1, -1, 1), end = lean > 0 ? high : low;
  return WHITE.map((white, channel) => white + (end[channel] - white) * Math.abs(lean));
}

/** A map of tokens, one pixel each. */
function tokens(map, show) {
  const [rows, columns] = map.grid, small = new OffscreenCanvas(columns, rows), context = small.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  map.values.forEach((value, place) => {
    const rgb = show === "labels" ? colour(value, BLUE, RED) : colour(value / 2, PURPLE, ORANGE);
    pixels.data.set([...rgb, 255], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  return small;
}

/** Picture A with a box of picture B, both loaded images or null, and the tokens' values over it. */
export function paint(canvas, own, partner, box, map, show, opacity) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  if (own) context.drawImage(own, 0, 0, width, height);
  if (partner) {
    const x = box.left * width, y = box.top * height, w = (box.right - box.left) * width, h = (box.bottom - box.top) * height;
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.drawImage(partner, 0, 0, width, height);
    context.restore();
  }
  if (!map) return;
  context.save();
  context.globalAlpha = Math.min(1, 2 * opacity); // colours speak of tokens, not of the picture
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "gray";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
  context.globalAlpha = opacity;
  context.imageSmoothingEnabled = false;
  context.drawImage(tokens(map, show), 0, 0, width, height);
  context.restore();
}
