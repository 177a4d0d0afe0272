"use strict";
/* Pictures, answers, the steps of the map, the search. Names come from users and files: always textContent, never markup. */

const AT_A_TIME = 4; // requests with pictures; the server makes batches of them
const POLL = 4000; // ms between two looks for a new version
const AGAIN = 12; // pictures that are asked about again when there is a new version

const $ = (id) => document.getElementById(id);
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
const fixed = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const make = (tag, text = "", css = "") => Object.assign(document.createElement(tag), { textContent: text, className: css });

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { // in the link that `serve --teach` prints; not left in the address, which people copy
  sessionStorage.setItem("protodrift-token", given);
  history.replaceState(null, "", location.pathname);
}
let token = sessionStorage.getItem("protodrift-token") || "";
let model = null;
let map = null;
let recent = []; // the last pictures that were answered: {card, file}
const drawing = new DriftMap($("map"), describe);

async function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  if (response.status === 401 && options.method !== "POST") {
    $("token-form").hidden = false;
    $("about").textContent = token ? "That token is not the right one." : "";
    $("token").focus();
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    const detail = typeof body.detail === "string" ? body.detail : `the server answered ${response.status}.`;
    throw Object.assign(new Error(detail), { status: response.status });
  }
  return response.json();
}

async function load() {
  try {
    [model, map] = await Promise.all([ask("/model"), ask("/map")]);
  } catch (error) {
    if (error.status !== 401) $("about").textContent = `The model cannot be shown: ${error.message}`;
    return;
  }
  $("token-form").hidden = true;
  $("main").hidden = false;
  document.title = `${model.name} · protodrift`;
  $("name").textContent = model.name;
  $("about").textContent =
    `${plural(model.classes, "class", "classes")} learned in ${plural(model.tasks.length, "task")}. ` +
    "No old picture is needed to learn more: " +
    (drifts() ? "when the network moves, the classes it knows are moved after it." : "the network stays as it is, and so do the classes it knows.");
  document.documentElement.classList.toggle("still", !drifts());
  $("curl").textContent = `curl -F images=@a.jpg -F images=@b.jpg ${location.origin}/predict`;
  fillFacts();
  fillTasks();
  drawing.mark([]); // another version has another plane: renew()
  fillLegend();
  $("step").max = map.steps.length - 1;
  $("map-note").textContent =
    "Every dot is a class: the mean of its photos as the network sees them. Classes that look alike to it are close. " +
    (drifts() ? "Arrows show where drift compensation moved the old ones in a task, and circles how far off they may be after it. " : "") +
    `A flat map shows only a part, ${percent(map.variance_shown)} here: dots that lie together may still be apart.` +
    (map.steps[0].task > 1 ? ` Of the tasks before task ${map.steps[0].task} only numbers are kept.` : "");
  if (TEACHES) { knownClasses(map.classes); follow(); }
  drawing.selected = null;
  drawing.show(map);
  describe(null);
  stepped();
  renew(model.version);
}

/** What was asked is answered by the new version, too, and put on its map; what somebody is correcting is left alone. */
async function renew(version) {
  for (const { card, file } of [...recent]) {
    const input = card.querySelector(".correct input");
    if (input && (input.value || input === document.activeElement)) continue;
    try {
      const found = await predict(file);
      if (model.version !== version) return; // that version asks again
      fillAnswer(card, file, found, false);
    } catch { return; } // the old answer stays
  }
}

/** Whether anything moved in any task: where the network is left as it is, nothing is said about drift. */
function drifts() { return map.total_moved.some((moved) => moved > 0); }

function fillFacts() {
  const facts = {
    version: model.version,
    network: `${model.backbone}, ${(model.parameters / 1e6).toFixed(2)} million weights`,
    embedding: `${model.embedding_dim} numbers`,
    images: `${model.image_size} × ${model.image_size} pixels`,
    ...(drifts() ? { drift: model.drift ?? "none" } : {}),
    "read-out": model.readout,
  };
  $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const row = make("tr"), head = make("th", name);
    head.scope = "row";
    row.append(head, make("td", String(value)));
    return row;
  }));
}

function fillTasks() {
  $("tasks").replaceChildren(...model.tasks.map((task) => {
    const row = make("tr"), head = make("th", task.source ? `${task.task} · ${task.source}` : `Task ${task.task}`);
    head.scope = "row";
    head.title = task.note;
    const accuracy = make("td");
    if (task.held_out_accuracy !== null) {
      const bar = make("progress", "", "cell-bar");
      bar.value = task.held_out_accuracy;
      bar.setAttribute("aria-hidden", "true");
      accuracy.append(bar);
    }
    accuracy.append(task.held_out_accuracy === null ? "not known" : `${percent(task.held_out_accuracy)} of ${task.held_out_images}`);
    const classes = String(task.classes) + (task.refreshed ? ` (+${task.refreshed} refreshed)` : "");
    row.append(head, make("td", classes), make("td", task.images.toLocaleString("en")), accuracy);
    row.append(make("td", fixed(task.mean_moved), "drift"), make("td", fixed(task.mean_uncertainty), "drift"));
    const step = map.steps.findIndex((one) => one.task === task.task);
    row.dataset.task = task.task;
    if (step >= 0) row.addEventListener("click", () => go(step));
    return row;
  }));
}

function fillLegend() {
  const entries = model.tasks.filter((task) => task.classes > 0).map((task) => {
    const entry = make("li"), dot = make("i", "", `pd-c${(task.task - 1) % COLORS}`);
    entry.append(dot, `task ${task.task}`);
    return entry;
  });
  if (drawing.asked.length) entries.push(make("li", drawing.asked.length > 1 ? "◆ your pictures" : "◆ your picture"));
  $("legend").replaceChildren(...entries);
}

/* -- the map's steps -- */

function go(step) {
  const to = Math.max(0, Math.min(map.steps.length - 1, step));
  if (to !== drawing.step) drawing.go(to);
  stepped();
}

function stepped() {
  const { task } = map.steps[drawing.step], last = map.steps.length - 1;
  $("step").value = drawing.step;
  $("step").setAttribute("aria-valuetext", `after task ${task}`);
  const known = map.steps[drawing.step].x.filter((x) => x !== null).length;
  $("step-name").textContent = `after task ${task}: ${plural(known, "class", "classes")}`;
  $("back").disabled = drawing.step === 0;
  $("on").disabled = drawing.step === last;
  for (const row of $("tasks").children) {
    if (Number(row.dataset.task) === task) row.setAttribute("aria-current", "step");
    else row.removeAttribute("aria-current");
  }
  describe(drawing.selected);
}

function describe(row) {
  const box = $("details");
  if (!map) return;
  if (row === null || row === undefined) {
    box.replaceChildren(make("h3", "No class chosen"), make("p", "Point at one, search, or use the arrow keys.", "note"));
    return;
  }
  const step = map.steps[drawing.step], list = make("dl");
  const facts = [["learned in", `task ${map.learned_in[row]}`], ["from", plural(map.images[row], "image")]];
  if (step.x[row] === null) facts.push(["here", "not learned yet"]);
  else if (map.learned_in[row] === step.task) facts.push(["here", "new in this task"]);
  else if (drifts()) facts.push(["moved", fixed(step.moved[row])], ["may be off by", fixed(step.uncertainty[row])]);
  if (drifts()) facts.push(["moved in all", fixed(map.total_moved[row])]);
  for (const [name, value] of facts) list.append(make("dt", name), make("dd", value));
  box.replaceChildren(make("h3", String(map.classes[row])), list);
}

function chooseClass(label) {
  const row = map.classes.indexOf(label);
  if (row < 0) return;
  if (map.steps[drawing.step].x[row] === null) go(map.steps.length - 1);
  drawing.select(row, true);
}

$("step").addEventListener("input", () => go(Number($("step").value)));
$("back").addEventListener("click", () => go(drawing.step - 1));
$("on").addEventListener("click", () => go(drawing.step + 1));
$("zoom-in").addEventListener("click", () => drawing.zoom(1.5));
$("zoom-out").addEventListener("click", () => drawing.zoom(1 / 1.5));
$("zoom-fit").addEventListener("click", () => drawing.fit());

$("map").addEventListener("keydown", (event) => {
  if (!map || event.ctrlKey || event.metaKey || event.altKey) return;
  const directions = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  const others = {
    PageUp: () => go(drawing.step - 1),
    PageDown: () => go(drawing.step + 1),
    "+": () => drawing.zoom(1.5),
    "-": () => drawing.zoom(1 / 1.5),
    0: () => drawing.fit(),
    Escape: () => drawing.select(null),
  };
  if (directions[event.key]) drawing.select(drawing.neighbor(...directions[event.key]), true);
  else if (others[event.key]) others[event.key]();
  else return;
  event.preventDefault();
});

/* -- search -- */

let marked = -1;

function search() {
  const wanted = $("search").value.trim().toLowerCase(), list = $("found");
  const hits = wanted && map ? map.classes.filter((label) => String(label).toLowerCase().includes(wanted)).slice(0, 8) : [];
  marked = hits.length ? 0 : -1;
  list.replaceChildren(...hits.map((label, i) => {
    const entry = make("li", String(label));
    entry.id = `found-${i}`;
    entry.setAttribute("role", "option");
    entry.addEventListener("mousedown", (event) => { event.preventDefault(); take(label); });
    entry.label = label;
    return entry;
  }));
  if (wanted && !hits.length) {
    const none = make("li", "no such class");
    none.setAttribute("role", "option");
    none.setAttribute("aria-disabled", "true");
    list.append(none);
  }
  list.hidden = !wanted;
  $("search").setAttribute("aria-expanded", String(!list.hidden));
  markFound();
}

function markFound() {
  [...$("found").children].forEach((entry, i) => entry.setAttribute("aria-selected", String(i === marked)));
  if (marked >= 0) $("search").setAttribute("aria-activedescendant", `found-${marked}`);
  else $("search").removeAttribute("aria-activedescendant");
}

function take(label) {
  $("search").value = String(label);
  $("found").hidden = true;
  $("search").setAttribute("aria-expanded", "false");
  chooseClass(label);
}

$("search").addEventListener("input", search);
$("search").addEventListener("blur", () => { $("found").hidden = true; $("search").setAttribute("aria-expanded", "false"); });
$("search").addEventListener("keydown", (event) => {
  const count = $("found").querySelectorAll("[id]").length;
  if (event.key === "ArrowDown" && count) marked = (marked + 1) % count;
  else if (event.key === "ArrowUp" && count) marked = (marked + count - 1) % count;
  else if (event.key === "Enter" && marked >= 0 && !$("found").hidden) take($("found").children[marked].label);
  else if (event.key === "Escape") { $("found").hidden = true; return; }
  else return;
  event.preventDefault();
  markFound();
});

/* -- pictures -- */

async function predict(file) {
  for (let attempt = 0; ; attempt++) {
    const form = new FormData();
    form.append("images", file, file.name || "image");
    try {
      const { version, predictions } = await ask("/predict?top=3", { method: "POST", body: form });
      if (model && version !== model.version) await load(); // the map of the version that answered
      return predictions[0];
    } catch (error) {
      if (error.status !== 429 || attempt >= 20) throw error; // busy: ask again
      await new Promise((done) => setTimeout(done, 250 + 250 * Math.random()));
    }
  }
}

async function answer(files) {
  const pictures = [...files];
  if (!pictures.length) return;
  let next = 0, done = 0;
  drawing.mark([]);
  const cards = pictures.map((file) => {
    const card = make("li", "", "answer"), button = make("button", "", "shown"), picture = make("img");
    picture.alt = "";
    picture.src = URL.createObjectURL(file);
    picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
    button.type = "button";
    button.disabled = true; // until it is known where it is
    button.setAttribute("aria-label", `Show ${file.name || "this picture"} on the map`);
    button.append(picture);
    card.append(button, make("div", "…"));
    return card;
  });
  $("answers").prepend(...cards);
  while ($("answers").children.length > 200) $("answers").lastChild.remove();
  const worker = async () => {
    while (next < pictures.length) {
      const i = next++;
      try { fillAnswer(cards[i], pictures[i], await predict(pictures[i])); }
      catch (error) { fillWrong(cards[i], pictures[i].name, error.message); }
      done++;
      if (done < pictures.length) $("progress").textContent = `${done} of ${pictures.length}`;
      else $("progress").replaceChildren(`${plural(done, "picture")} answered · `, toMap());
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, worker));
}

function toMap() {
  const link = make("a", "◆ where on the map");
  link.href = "#map";
  return link;
}

/** Why a picture is unknown, in a sentence. */
function whyUnknown(found) {
  const nearest = found.top[0].class;
  return found.novelty === null
    ? `It is far from everything known; ${nearest} is the nearest.`
    : `It is ${found.novelty.toFixed(found.novelty < 1.1 ? 2 : 1)} times as far from ${nearest}, the nearest class, as nearly all photos of ${nearest} are.`;
}

/** Show an answer; choose: whether its class becomes the chosen one on the map. */
function fillAnswer(card, file, found, choose = true) {
  const box = make("div"), bars = make("ul", "", "bars"), name = file.name;
  card.classList.toggle("unknown", found.unknown);
  box.append(make("h3", found.unknown ? "unknown" : String(found.class)), make("p", name, "file"));
  for (const one of found.top) {
    const entry = make("li"), button = make("button"), bar = make("progress");
    button.type = "button";
    button.title = "Show on the map";
    bar.value = one.confidence;
    bar.setAttribute("aria-hidden", "true");
    const nearest = found.unknown && one === found.top[0] ? "nearest: " : "";
    button.append(make("span", nearest + one.class), make("span", percent(one.confidence)), bar);
    button.addEventListener("click", () => { chooseClass(one.class); $("map").focus(); });
    entry.append(button);
    bars.append(entry);
  }
  if (found.unknown) box.append(make("p", whyUnknown(found), "why"));
  box.append(bars);
  card.querySelector(":scope > div").replaceWith(box);
  addCorrection(card, file, async () => fillAnswer(card, file, await predict(file)));
  const button = card.querySelector(".shown"), place = { place: found.place, name }, { version } = model;
  button.disabled = !found.place;
  button.title = "Show on the map";
  button.onclick = async () => {
    if (version !== model.version) fillAnswer(card, file, await predict(file)); // places of another version say nothing
    else drawing.mark([...drawing.asked.filter((one) => one !== place), place]);
    chooseClass(found.top[0].class);
    $("map").focus();
  };
  recent = [...recent.filter((one) => one.card !== card), { card, file }].slice(-AGAIN);
  if (choose && !found.unknown && map) chooseClass(found.class);
  if (found.place) drawing.mark([...drawing.asked.slice(-49), place]);
  fillLegend();
}

function fillWrong(card, name, why) {
  const box = make("div");
  card.classList.add("wrong");
  box.append(make("h3", "no answer"), make("p", name, "file"), make("p", why));
  card.querySelector(":scope > div").replaceWith(box);
}

$("pick").addEventListener("change", () => { answer($("pick").files); $("pick").value = ""; });
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault(); // a picture dropped beside the box must not replace the page
    $("drop").classList.toggle("over", kind === "dragover" && !$("teach").contains(event.target));
    if (TEACHES) $("teach-drop").classList.toggle("over", kind === "dragover" && $("teach").contains(event.target));
    if (kind !== "drop" || !model) return;
    if (TEACHES && $("teach").contains(event.target)) addToTray([...event.dataTransfer.files]);
    else answer(event.dataTransfer.files);
  });
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("protodrift-token", token);
  load();
});

/* -- a new version -- */

const watching = async () => {
  if (!model || document.hidden) return;
  try {
    if (TEACHES) follow();
    const { version } = await ask("/healthz");
    if (version === model.version) return;
    await load();
    $("notice").hidden = TEACHES; // there the list of what was taught says it
    $("notice").textContent = `The model has learned: version ${version} answers now.`;
  } catch { /* the server is away; the next look will tell */ }
};

addEventListener("DOMContentLoaded", () => { // teach.js is there then
  setInterval(watching, POLL);
  load();
});
