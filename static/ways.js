// Ways around: the query page's keys, the palette, and single keys.
"use strict";

(() => {
  // The query page: Ctrl-Enter runs, another branch brings its roles, an error is selected.

  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("[data-run]");
    if (!field || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const button = field.form.querySelector("#run");
    if (!button.disabled) button.click();
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose]")) document.getElementById("choose-branch").click();
  });

  document.addEventListener("htmx:afterSwap", () => {
    const [start, end] = document.querySelector("[data-mark]")?.dataset.mark.split(",") ?? [];
    const field = document.activeElement;
    if (start && field.matches("[data-run]")) field.setSelectionRange(start, end);
  });
})();
