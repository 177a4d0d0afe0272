// Draws the figures of a page: as many panels side by side as there is room for, anew when the width changes.
"use strict";

const LEAST = 200, FRAME = 52, NARROW = 720;

function fitted(spec, width) {
  const own = { ...spec, config: { ...spec.config } };
  if (spec.concat) {
    const { columns, aspect } = spec.usermeta;
    own.columns = columns.find((count) => width / count >= LEAST) ?? columns.at(-1);
    const most = spec.concat.length === 1 ? 560 : 440;
    const side = Math.min(most, Math.floor(width / own.columns) - FRAME);
    own.concat = spec.concat.map((panel) => ({ ...panel, width: side, height: Math.round(side * aspect) }));
  } else {
    own.width = width;
  }
  if (spec.concat || width < NARROW) {
    const columns = Math.max(1, Math.floor(width / spec.usermeta.entry));
    own.config.legend = { ...spec.config.legend, orient: "bottom", columns };
  }
  return own;
}

async function draw(figure) {
  const place = figure.querySelector(".chart"), width = Math.floor(figure.clientWidth);
  if (!width || figure.width === width) return;
  figure.width = width;
  figure.spec ??= JSON.parse(figure.querySelector("script").textContent);
  figure.view?.finalize();
  const drawn = await vegaEmbed(place, fitted(figure.spec, width), {
    mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: { disableDefaultStyle: true },
  });
  figure.view = drawn.view;
  for (const entry of place.querySelectorAll(".role-legend-label text")) {
    // A legend can be clicked; let a keyboard do it too.
    entry.setAttribute("tabindex", "0");
    entry.setAttribute("role", "button");
    entry.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      entry.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    });
  }
}

async function drawAll() {
  for (const figure of document.querySelectorAll("figure")) {
    await draw(figure);
    await new Promise(requestAnimationFrame);
  }
  document.documentElement.dataset.drawn = "yes";
}

let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 200);
});
drawAll();
