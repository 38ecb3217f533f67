// What the console adds where scripts run; every page works without it. Here: dialogs, notices,
// menus. Beside it: live.js renews regions, focus.js keeps the focus, times.js lets times move on,
// copy.js copies. `Perch` is what they, and the other scripts of this folder, share.
"use strict";

window.Perch = {};

(() => {
  const dialog = document.getElementById("dialog");
  const notices = document.getElementById("notices");
  document.documentElement.classList.add("scripted");

  // Dialogs: a form that htmx fetched is shown in one. Nothing closes it but its own success and
  // its reader; what is open is never fetched again over what was typed.

  let isFetching = false;

  function moveNotices(into) {
    // What was announced is not announced again because it moves.
    for (const notice of notices.children) notice.removeAttribute("role");
    into.append(notices);
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.target !== dialog) return;
    if (dialog.open || isFetching) return event.preventDefault();
    isFetching = true;
    Perch.dialogOpener = event.detail.elt;
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.target === dialog) isFetching = false;
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && dialog.childElementCount && !dialog.open) {
      // A modal dialog lies above everything else: notices have to move into it to be seen.
      moveNotices(dialog);
      dialog.showModal();
    }
    expectTypedIds();
    fadeNotices();
  });

  document.addEventListener("htmx:oobAfterSwap", fadeNotices);

  dialog.addEventListener("close", () => {
    moveNotices(document.body);
    dialog.replaceChildren();
    Perch.returnFocus();
  });

  // What is shown once only is left by its button; who goes another way is told so.

  function keep(event) {
    const words = dialog.open && dialog.querySelector("[data-once-words]");
    if (!words) return;
    event.preventDefault();
    words.hidden = false;
    Perch.announce(words.textContent.trim());
    dialog.querySelector("footer [role=button]").focus();
  }

  dialog.addEventListener("cancel", keep);
  document.addEventListener("keydown", (event) => {
    // A browser may close a dialog at a second Escape, whatever came of the first.
    if (event.key === "Escape") keep(event);
  }, true);

  document.addEventListener("perch:changed", (event) => {
    if (dialog.contains(event.target)) dialog.close();
    Perch.renewAfterChange();
  });

  // Deleting: the button waits until the id has been typed.

  function expectTypedIds() {
    for (const input of document.querySelectorAll("input[data-expected]")) {
      const button = input.form.querySelector("button[type=submit]");
      button.disabled = ![input.value, input.value.trim()].includes(input.dataset.expected);
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches("input[data-expected]")) expectTypedIds();
  });

  // Clicks: closing, dismissing, and menus that close when one looks elsewhere.

  document.addEventListener("click", (event) => {
    const closing = event.target.closest("#dialog [data-close]");
    if (closing) {
      event.preventDefault();
      dialog.close();
    }
    event.target.closest("[data-dismiss]")?.closest(".notice").remove();
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      const chosen = event.target.closest("details.menu li a, details.menu li button");
      if (!menu.contains(event.target) || chosen) Perch.closeMenu(menu);
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.querySelectorAll("details.menu[open]").forEach(Perch.closeMenu);
  });

  // Notices.

  Perch.announce = (words) => {
    document.getElementById("announce").textContent = words;
  };

  Perch.failed = (words) => {
    // Said once, however often it happens meanwhile.
    for (const old of notices.querySelectorAll(".notice.failure")) {
      if (old.textContent === words) return;
    }
    const notice = document.createElement("div");
    notice.className = "notice failure";
    notice.setAttribute("role", "alert");
    notice.append(Object.assign(document.createElement("p"), { textContent: words }));
    notices.append(notice);
    setTimeout(() => notice.remove(), 10000);
  };

  // One line for what keeps the page from going on; "" where nothing does.
  Perch.trouble = (words) => {
    const line = document.getElementById("trouble");
    line.hidden = !words;
    if (line.textContent !== words) line.textContent = words;
  };

  function fadeNotices() {
    const fresh = document.querySelectorAll(".notice.success:not([data-fading])");
    if (fresh.length) document.querySelectorAll(".notice[data-fading]").forEach((old) => old.remove());
    for (const notice of fresh) {
      notice.dataset.fading = "";
      setTimeout(() => notice.remove(), 6000);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    expectTypedIds();
    fadeNotices();
  });
})();
