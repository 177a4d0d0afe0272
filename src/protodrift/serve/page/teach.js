"use strict";
/* Teaching: photos or the camera, a name, a queue, and undo. Loaded always, shown where the server lets people teach. */

const TEACHES = document.documentElement.hasAttribute("data-teaches");
const LOOK = 300; // ms between two looks at the queue while something is learned

const tray = []; // photos that will be taught: {file, entry}
let camera = null;
let looking = false;
let current = null; // newest version as the queue tells it
const told = new Set(); // jobs whose end was said

async function write(path, options = {}) {
  try {
    return await ask(path, { method: "POST", ...options });
  } catch (error) {
    if (error.status === 401) throw new Error("Teaching needs the token: open the link that the server printed when it started.");
    throw error;
  }
}

/** Have photos taught as a class; returns the finished job. */
async function teach(files, name) {
  const form = new FormData();
  for (const file of files) form.append("images", file, file.name || "photo.jpg");
  const { job, errors } = await write(`/teach?class=${encodeURIComponent(name)}`, { body: form });
  if (errors.length) say(`${errors.length} of ${files.length} could not be read: ${errors[0].file} ${errors[0].error}`);
  return finished(job.number);
}

async function finished(number) {
  for (;;) {
    const jobs = await look();
    const job = jobs.find((one) => one.number === number);
    if (!job) throw new Error("the server was started anew meanwhile. Look whether it was learned.");
    if (job.state === "done") { if (!model || model.version !== job.version) await load(); return job; }
    if (job.state === "failed") throw new Error(job.why);
    await new Promise((done) => setTimeout(done, LOOK));
  }
}

function say(text) { $("teach-said").textContent = text; }

/* -- the queue -- */

async function look() {
  const { version, jobs } = await ask("/jobs");
  current = version;
  fillJobs(jobs);
  return jobs;
}

async function follow() {
  if (looking) return;
  looking = true;
  try {
    while ((await look()).some((job) => job.state === "waiting" || job.state === "learning")) {
      await new Promise((done) => setTimeout(done, LOOK));
    }
  } catch { /* the next look will tell */ } finally { looking = false; }
}

function jobText(job) {
  const what = job.what === "undo" ? "going back one version" : `${job.class}: ${plural(job.images, "photo")}`;
  if (job.state === "waiting") return `${what} – waiting`;
  if (job.state === "learning") {
    return job.epochs ? `${what} – learning, ${job.epoch} of ${job.epochs} rounds` : `${what} – learning …`;
  }
  if (job.state === "failed") return `${what} – not learned: ${job.why}`;
  if (job.what === "undo") return `went back to version ${job.version}`;
  return `${what} – learned in ${job.seconds.toFixed(1)} s, version ${job.version}`;
}

function fillJobs(jobs) {
  $("jobs").replaceChildren(...jobs.slice(0, 8).map((job) => {
    const entry = make("li", "", job.state);
    entry.append(make("span", jobText(job)));
    if (job.state === "learning") {
      const bar = make("progress");
      if (job.epochs) { bar.max = job.epochs; bar.value = job.epoch; }
      bar.setAttribute("aria-label", `learning ${job.class ?? ""}`);
      entry.append(bar);
    }
    if (job.state === "done" && job.what === "teach" && job.version === current) {
      const button = make("button", "Undo");
      button.type = "button";
      button.setAttribute("aria-label", `Undo: ${job.class}`);
      button.addEventListener("click", () => undo(job, button));
      entry.append(button);
    }
    return entry;
  }));
  $("jobs-title").hidden = !jobs.length;
}

async function undo(job, button) {
  button.disabled = true;
  try {
    const { job: going } = await write(`/undo?version=${job.version}`);
    const gone = await finished(going.number);
    say(`Undone: the model is version ${gone.version} again.`);
  } catch (error) { say(error.message); button.disabled = false; }
}

/* -- photos to teach -- */

function addToTray(files) {
  for (const file of files) {
    const entry = make("li"), picture = make("img"), remove = make("button", "×");
    picture.src = URL.createObjectURL(file);
    picture.alt = file.name || "photo";
    picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
    remove.type = "button";
    remove.setAttribute("aria-label", `Take ${file.name || "this photo"} out`);
    const one = { file, entry };
    remove.addEventListener("click", () => { tray.splice(tray.indexOf(one), 1); entry.remove(); trayChanged(); });
    entry.append(picture, remove);
    tray.push(one);
    $("tray").append(entry);
  }
  trayChanged();
}

function trayChanged() {
  $("teach-button").textContent = tray.length ? `Teach ${plural(tray.length, "photo")}` : "Teach";
  const name = $("class-name").value.trim();
  $("teach-button").disabled = !tray.length || !name;
  $("teach-hint").textContent = nextStep(name);
}

/** What to do next, or what will happen. */
function nextStep(name) {
  if (!tray.length) return name ? "Now choose photos of it." : "";
  if (!name) return "Now say what they show.";
  const known = map ? map.classes.map(String) : [];
  if (known.includes(name)) return `It knows ${name}: these photos are added to what it knows of it.`;
  const alike = known.find((label) => plain(label) === plain(name));
  return alike ? `It knows ${alike}. Choose that name if you mean it; ${name} would be another class.` : `${name} is new to it.`;
}

function plain(label) { return label.toLowerCase().replace(/[\s_-]+/g, " "); }

async function teachTray() {
  const name = $("class-name").value.trim(), files = tray.map((one) => one.file);
  if (!name || !files.length) return;
  tray.length = 0;
  $("tray").replaceChildren();
  $("class-name").value = "";
  trayChanged();
  say(`Learning ${name} …`);
  follow();
  try {
    const job = await teach(files, name);
    say(`The model knows ${job.class} now, ${job.seconds.toFixed(1)} s later. No photo was kept. Try it above with another photo.`);
    chooseClass(job.class);
  } catch (error) {
    say(`${name} was not learned: ${error.message}`);
    addToTray(files);
    if (!$("class-name").value) { $("class-name").value = name; trayChanged(); }
  }
}

/* -- the camera -- */

async function openCamera() {
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
  } catch (error) {
    say(`The camera cannot be used (${error.name}). Choose photos instead.`);
    return;
  }
  $("video").srcObject = camera;
  await $("video").play();
  $("camera").hidden = false;
  $("camera-open").hidden = true;
  $("shoot").focus();
}

function closeCamera() {
  camera?.getTracks().forEach((track) => track.stop());
  camera = null;
  $("video").srcObject = null;
  $("camera").hidden = true;
  $("camera-open").hidden = false;
  $("camera-open").focus();
}

function shot() {
  const video = $("video"), canvas = make("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((done) => canvas.toBlob((blob) => done(new File([blob], `camera ${new Date().toLocaleTimeString("en-GB")}.jpg`, { type: "image/jpeg" })), "image/jpeg", 0.92));
}

/* -- "wrong: it is X" -- */

/** Add to an answer a form that says what it really is; askAgain is called when that was learned. */
function addCorrection(card, file, askAgain) {
  if (!TEACHES) return;
  card.querySelector(".correct")?.remove();
  const form = make("form", "", "correct"), input = make("input"), button = make("button", "Teach");
  input.setAttribute("aria-label", `What ${file.name || "it"} really shows`);
  input.placeholder = "Wrong? It is …";
  input.setAttribute("list", "known-classes");
  input.maxLength = 100;
  input.required = true;
  form.append(input, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) return;
    button.disabled = input.disabled = true;
    say(`Learning ${name} …`);
    follow();
    try {
      const job = await teach([file], name);
      say(`Learned: ${job.class}. The photo is asked about again.`);
      await askAgain();
    } catch (error) {
      say(`${name} was not learned: ${error.message}`);
      button.disabled = input.disabled = false;
    }
  });
  card.append(form);
}

function knownClasses(classes) {
  $("known-classes").replaceChildren(...classes.map((label) => Object.assign(make("option"), { value: String(label) })));
}

if (TEACHES) {
  $("teach").hidden = false;
  $("camera-open").hidden = !navigator.mediaDevices?.getUserMedia;
  $("class-name").addEventListener("input", trayChanged);
  $("teach-form").addEventListener("submit", (event) => { event.preventDefault(); teachTray(); });
  $("teach-pick").addEventListener("change", () => { addToTray([...$("teach-pick").files]); $("teach-pick").value = ""; });
  $("camera-open").addEventListener("click", openCamera);
  $("camera-close").addEventListener("click", closeCamera);
  $("shoot").addEventListener("click", async () => addToTray([await shot()]));
  $("shoot-ask").addEventListener("click", async () => answer([await shot()]));
  if (!token) say("Here you can ask. To teach, open the link that the server printed for it: it ends in #token=….");
  trayChanged();
}
