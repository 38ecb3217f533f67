// Copying: a text that stands on the page, or a connection string, which the server is asked for
// when its button is pressed, so that it comes with its password though none is shown.
"use strict";

(() => {
  const announce = (words) => { document.getElementById("announce").textContent = words; };

  function copied(button) {
    button.classList.add("copied");
    announce("Copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  }

  // `text` is a promise: a browser lets a page write to the clipboard only while it handles the
  // press, so that the writing begins before the text is there.
  async function copy(text, button) {
    const clipboard = navigator.clipboard;
    try {
      if (typeof ClipboardItem === "function" && clipboard?.write) {
        const blob = text.then((words) => new Blob([words], { type: "text/plain" }));
        await clipboard.write([new ClipboardItem({ "text/plain": blob })]);
      } else {
        await clipboard.writeText(await text);
      }
      copied(button);
    } catch {
      await text.then((words) => copyByHand(words, button), (problem) => failed(problem.message));
    }
  }

  // Without https, and where the browser forbids it, the clipboard is out of a page's reach.
  function copyByHand(words, button) {
    document.querySelector(".copy-by-hand")?.remove();
    const box = document.createElement("div");
    const label = Object.assign(document.createElement("label"), { textContent: "Press Ctrl-C (on a Mac ⌘C) to copy" });
    const field = Object.assign(document.createElement("textarea"), { value: words, readOnly: true, rows: 3 });
    box.className = "copy-by-hand";
    field.setAttribute("aria-label", label.textContent);
    box.append(label, field);
    // A modal dialog lies above everything else.
    (document.querySelector("dialog[open]") ?? document.body).append(box);
    field.select();
    field.focus();
    const leave = () => { box.remove(); };
    field.addEventListener("blur", leave);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      button.focus();
    });
    field.addEventListener("copy", () => setTimeout(() => { button.focus(); copied(button); }));
  }

  async function asked(form) {
    const answer = await fetch(form.dataset.copies, { method: "POST", body: new FormData(form), redirect: "manual" })
      .catch(() => { throw new Error("The console cannot be reached. Nothing was copied."); });
    if (answer.type === "opaqueredirect") throw new Error("You are signed out. Sign in again, then copy.");
    const isText = answer.headers.get("Content-Type")?.startsWith("text/plain");
    const words = isText ? await answer.text() : "The console failed to answer. Nothing was copied.";
    if (!answer.ok || !isText) throw new Error(words);
    return words;
  }

  function failed(words) {
    const notice = document.createElement("div");
    notice.className = "notice failure";
    notice.setAttribute("role", "alert");
    notice.append(Object.assign(document.createElement("p"), { textContent: words }));
    document.getElementById("notices").append(notice);
    setTimeout(() => notice.remove(), 10000);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(Promise.resolve(button.dataset.copy), button);
  });

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-copies]")) return;
    event.preventDefault();
    copy(asked(event.target), event.target.querySelector("button"));
  });
})();
