// Hides the lines of tables that lack one of the words in the search field, and says how many are left.
const field = document.getElementById("search"), said = document.querySelector(".found");
const texts = new Map();
const count = () => {
  const rows = [...document.querySelectorAll(".claims tbody tr")];
  const shown = rows.filter((row) => row.offsetParent !== null).length;
  said.textContent = shown === rows.length ? `${rows.length} lines` : `${shown} of ${rows.length} lines`;
};
const search = () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll(".claims tbody tr")) {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    row.hidden = !words.every((word) => texts.get(row).includes(word));
  }
  count();
};
field.addEventListener("input", search);
document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
for (const choice of document.querySelectorAll("select")) choice.addEventListener("change", count);
// A browser that goes back fills the fields again after the page has loaded.
window.addEventListener("pageshow", () => setTimeout(search));
