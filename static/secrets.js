// What is shown once stays in its dialog until its reader says that it is kept.
"use strict";

(() => {
  const dialog = document.getElementById("dialog");

  function asks() {
    const words = dialog.querySelector("[data-once] [data-once-words]");
    if (!words) return false;
    words.hidden = false;
    dialog.querySelector("[data-once] footer [role=button]").focus();
    return true;
  }

  dialog.addEventListener("keydown", (event) => {
    // A browser may close a dialog at a second Escape, whatever came of the first.
    if (event.key === "Escape" && asks()) event.preventDefault();
  });

  dialog.addEventListener("cancel", (event) => {
    if (asks()) event.preventDefault();
  });
})();
