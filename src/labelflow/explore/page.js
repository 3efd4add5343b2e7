// The page: what is chosen, one question at a time to the server, and what its answer looks like.

import { curve } from "./curve.js";
import { makeBox, paint } from "./stage.js";

const find = (selector) => document.querySelector(selector);
const percent = (value) => `${Math.round(100 * value)}\u00a0%`;
const exact = (value) => `${(100 * value).toFixed(1)}\u00a0%`;

const tenths = (share) => Math.round(1000 * share) / 1000;
const both = (share) => [exact(tenths(share)), exact(1 - tenths(share))]; // which sum to 100 %

const chosen = { own: null, partner: null }; // ids of pictures
const pictures = { own: null, partner: null }; // loaded images
let answer = null;
let setup = null;
let box = () => null;

// ---- talking to the server ----

/** What the server answers; an Error in plain words if it refuses, or is not there. */
async function talk(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is labelflow explore still running?");
  }
  const told = await response.json().catch(() => ({ error: `the server answered with the error ${response.status}` }));
  if (!response.ok) throw new Error(sentence(told.error ?? response.statusText));
  return told;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

function complain(error, again) {
  find("#problem").hidden = false;
  find("#problem p").textContent = error.message;
  find("#problem button").hidden = !again;
  find("#problem button").onclick = again ?? null;
}

const calm = () => { find("#problem").hidden = true; };

const SLOW = 300; // milliseconds, after which the page says that it waits
const STATES = { fresh: "", busy: "Working it out …", stale: "Out of date" };
let busy = false, wanted = false, state = "fresh";

/** Whether the results are those of what is chosen; if not, they are dimmed. */
function mark(now) {
  if (now === state) return;
  state = now;
  find("#state").textContent = STATES[state];
  for (const part of document.querySelectorAll(".result")) {
    part.classList.toggle("dim", state !== "fresh");
    part.setAttribute("aria-busy", String(state === "busy"));
  }
  if (pictures.own) draw();
}

/** One question at a time; of those that come up meanwhile only the newest is asked. */
async function ask() {
  wanted = true;
  if (busy || !chosen.own || !chosen.partner) return;
  busy = true;
  while (wanted) {
    wanted = false;
    const { left, top, right, bottom } = box();
    const question = { model: Number(find("#model").value), ...chosen, box: [left, top, right, bottom] };
    const slow = setTimeout(mark, SLOW, "busy");
    try {
      answer = await talk("answer", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
      });
      calm();
      show();
      if (!wanted) mark("fresh");
    } catch (error) {
      complain(error, ask);
      mark(answer ? "stale" : "fresh");
    } finally {
      clearTimeout(slow);
    }
  }
  busy = false;
}

// ---- showing ----

const view = () => find("input[name=show]:checked").value;

/** The map that is looked at: of the labels after a layer, or of the presence of the tokens that came into it. */
function map() {
  const layer = Number(find("#layer").value);
  if (!answer) return null;
  return layer ? answer.layers[layer - 1][view()] : answer.start;
}

function draw() {
  const strength = find("#opacity").value / (state === "fresh" ? 100 : 300);
  paint(find("#canvas"), pictures.own, pictures.partner, box(), map(), view(), strength);
}

function show() {
  const slider = find("#layer"), depth = answer.layers.length;
  slider.max = depth;
  slider.min = view() === "labels" ? 0 : 1; // presence is a layer's
  const at = Number(slider.value);
  const name = at ? `${at} of ${depth}: ${answer.layers[at - 1].name}` : "start, before all layers";
  find("#layer-name").textContent = name;
  slider.setAttribute("aria-valuetext", name);
  find("#opacity-value").textContent = `${find("#opacity").value} %`;
  for (const scale of document.querySelectorAll(".scale")) scale.hidden = scale.dataset.show !== view();
  find("#means").textContent = means(map());
  find("#summary").textContent = summary();
  find("#curve").replaceChildren(curve(answer, at, find("#curve").clientWidth));
  find("#targets").replaceChildren(...Object.entries(answer.targets).map(row));
  draw();
  speak();
}

function means(shown) {
  const tell = view() === "labels" ? (value) => `${percent(value)} A` : (value) => value.toFixed(2);
  const places = [["inside the box", shown.inside], ["outside", shown.outside]].filter(([, value]) => value !== null);
  const told = places.map(([place, value]) => `${tell(value)} ${place}`).join(", ");
  return view() === "labels" ? `On average a token is ${told}.` : `Presence, how much of the layer’s output comes from a token: ${told}; 1 is an even part.`;
}

function summary() {
  const { area, targets, classes } = answer, aligned = targets["TL-Align"];
  const same = exact(area) === exact(aligned);
  const compared = same ? "as much as its area" : `${aligned > area ? "more" : "less"} than its area`;
  const seen = classes.map(({ name, chance }) => `${name} (${percent(chance)})`).join(" or ");
  return `A fills ${exact(area)} of the picture. What reaches the classifier is ${exact(aligned)} A, ${compared}. ` +
    `The model takes the mix for ${seen}.`;
}

function row([name, share]) {
  const line = document.createElement("tr"), title = document.createElement("th"), bar = document.createElement("td");
  title.scope = "row";
  title.textContent = name;
  bar.className = "bar";
  const whole = document.createElement("div"), own = document.createElement("i");
  own.style.width = `${100 * share}%`;
  whole.append(own);
  bar.append(whole);
  const numbers = both(share).map((told) => {
    const cell = document.createElement("td");
    cell.textContent = told;
    return cell;
  });
  line.append(title, bar, ...numbers);
  return line;
}

let pause = 0;

/** The summary for screen readers, once things have come to rest. */
function speak() {
  clearTimeout(pause);
  pause = setTimeout(() => { find("#spoken").textContent = `${find("#summary").textContent} ${find("#means").textContent}`; }, 800);
}

/** The value of the token under the pointer. */
function point(event) {
  const shown = map(), place = find("#stage").getBoundingClientRect();
  if (!shown) return;
  const [rows, columns] = shown.grid;
  const row = Math.floor(((event.clientY - place.top) / place.height) * rows);
  const column = Math.floor(((event.clientX - place.left) / place.width) * columns);
  if (row < 0 || row >= rows || column < 0 || column >= columns) return;
  const value = shown.values[row * columns + column];
  const told = view() === "labels" ? `${both(value)[0]} A, ${both(value)[1]} B` : `presence ${value.toFixed(2)}`;
  find("#cell").textContent = `Token in row ${row + 1}, column ${column + 1}: ${told}`;
}

// ---- choosing ----

async function choose(role, id) {
  chosen[role] = id;
  for (const button of document.querySelectorAll(`[data-role=${role}] button`)) {
    button.setAttribute("aria-pressed", String(button.dataset.id === id));
  }
  ask();
  const image = new Image();
  image.src = `picture/${id}`;
  try {
    await image.decode();
  } catch {
    return complain(new Error("The picture could not be loaded. Is labelflow explore still running?"), () => choose(role, id));
  }
  if (chosen[role] === id) {
    pictures[role] = image;
    draw();
  }
}

function offer(role, id, name) {
  const button = document.createElement("button"), image = document.createElement("img");
  button.type = "button";
  button.dataset.id = id;
  button.title = name;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => choose(role, id));
  image.src = `picture/${id}`;
  image.alt = name;
  button.append(image);
  find(`[data-role=${role}] .choices`).append(button);
}

async function upload(role, file) {
  try {
    if (file.size > 1e6 * setup.megabytes) throw new Error(`${file.name} is larger than ${setup.megabytes} MB; choose a smaller file.`);
    const { id } = await talk("images", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
    calm();
    for (const each of ["own", "partner"]) offer(each, id, file.name);
    choose(role, id);
  } catch (error) {
    complain(error);
  }
}

function listen() {
  for (const part of document.querySelectorAll("[data-role]")) {
    const input = part.querySelector("input[type=file]");
    input.addEventListener("change", () => {
      if (input.files.length) upload(part.dataset.role, input.files[0]);
      input.value = "";
    });
    part.addEventListener("dragover", (event) => { event.preventDefault(); part.classList.add("over"); });
    part.addEventListener("dragleave", () => part.classList.remove("over"));
    part.addEventListener("drop", (event) => {
      event.preventDefault();
      part.classList.remove("over");
      if (event.dataTransfer.files.length) upload(part.dataset.role, event.dataTransfer.files[0]);
    });
  }
  for (const id of ["#layer", "#opacity"]) find(id).addEventListener("input", () => answer && show());
  for (const radio of document.querySelectorAll("input[name=show]")) radio.addEventListener("change", () => answer && show());
  find("#stage").addEventListener("pointermove", point);
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // or it is opened
  window.addEventListener("resize", () => answer && show());
  find("#model").addEventListener("change", () => { note(); ask(); });
}

const note = () => { find("#note").textContent = setup.models[find("#model").value].note; };

async function begin() {
  try {
    setup = await talk("setup");
  } catch (error) {
    return complain(error, begin);
  }
  calm();
  find("#model").replaceChildren(...setup.models.map(({ name }, place) => new Option(name, place)));
  note();
  for (const role of ["own", "partner"]) for (const { id, name } of setup.images) offer(role, id, name);
  const inputs = [...document.querySelectorAll("[data-edge]")];
  box = makeBox(find("#stage"), find("#box"), inputs, () => { if (pictures.own) draw(); ask(); });
  listen();
  choose("own", setup.images[0].id);
  choose("partner", setup.images[1].id);
}

begin();
