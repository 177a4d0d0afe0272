// A table that sorts by the column whose heading is pressed, and a field that shows only some of the photos.
"use strict";

for (const table of document.querySelectorAll(".sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const order = new Intl.Collator(undefined, { numeric: true });
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const turn = head.ariaSort === "ascending" ? -1 : 1;
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...body.rows].sort((a, b) => turn * order.compare(key(a), key(b)) || 0);
    const numbers = rows.every((row) => row.cells[column].dataset.value !== undefined);
    if (numbers) rows.sort((a, b) => turn * (key(a) - key(b)));
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
    body.append(...rows);
  }));
}

const field = document.getElementById("filter"), photos = [...document.querySelectorAll(".photos li")];
field?.addEventListener("input", () => {
  const wanted = field.value.trim().toLowerCase();
  for (const photo of photos) photo.hidden = !photo.dataset.classes.includes(wanted);
  const left = photos.filter((photo) => !photo.hidden).length;
  document.getElementById("filtered").textContent = wanted ? `${left} of ${photos.length} photos` : "";
});
