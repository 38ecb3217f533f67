// The key “/” leads to a page's search.
"use strict";

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, select, textarea, [contenteditable]");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("dialog[open] input[type=search], main input[type=search]");
  if (!search || (document.querySelector("dialog[open]") && !search.closest("dialog"))) return;
  event.preventDefault();
  search.focus();
  search.select();
});
