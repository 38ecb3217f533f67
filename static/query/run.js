// While a query runs: for how long, and its cancelling. Afterwards: the tree of tables is brought up
// to date, and the query can be run on another branch.
"use strict";

(() => {
  const form = document.getElementById("query");
  if (!form) return;
  const cancel = document.getElementById("cancel");
  const elapsed = document.getElementById("elapsed");
  const branches = document.getElementById("id_branch");
  const nameOf = (id) => [...branches.options].find((one) => one.value === id)?.text ?? id;
  // The query under way.
  let run = null;

  function newMarker() {
    const bytes = crypto.getRandomValues(new Uint8Array(12));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.elt !== form) return;
    form.elements.marker.value = newMarker();
    detail.parameters.marker = form.elements.marker.value;
    // htmx forgets the pressed button once its menu is closed.
    const { submitter } = detail.triggeringEvent ?? {};
    let other = submitter?.name === "other" ? submitter.value : "";
    if (other) detail.parameters.other = other;
    // The button in an answer names the branch on which the statements may now write.
    const confirmed = submitter?.name === "write" ? submitter.value.split(" ")[1] : "";
    if (confirmed === branches.value) form.elements.read_only.checked = false;
    else if (confirmed) other = confirmed;
    run = { sql: Perch.sql.text, other, branch: nameOf(other || branches.value), began: Date.now() };
  });

  function tick() {
    if (run) elapsed.textContent = Perch.elapsed((Date.now() - run.began) / 1000);
  }

  let ticking;
  document.addEventListener("htmx:beforeSend", ({ detail }) => {
    if (detail.elt !== form) return;
    cancel.hidden = elapsed.hidden = false;
    tick();
    ticking = setInterval(tick, 100);
  });

  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.elt !== form) return;
    clearInterval(ticking);
    // The button was disabled while the query was cancelled, and so lost the focus.
    const isLeft = run.isCancelled && [document.body, null].includes(document.activeElement);
    const hadFocus = isLeft || document.activeElement === cancel;
    cancel.hidden = elapsed.hidden = true;
    cancel.disabled = false;
    cancel.textContent = "Cancel";
    if (hadFocus) Perch.sql.focus();
    const answer = document.getElementById("answer");
    const { result, ms } = answer.dataset;
    const ended = { ...run, ms: Number(ms) || Date.now() - run.began, ok: result === "ok", cancelled: result === "cancelled" };
    run = null;
    if (!detail.successful) return;
    document.dispatchEvent(new CustomEvent("perch:ran", { detail: ended }));
    if (ended.other) answer.querySelector("h2, #run-writing")?.append(` on ${ended.branch}`);
    const isShown = document.querySelector("#tables [data-schema]");
    if (ended.ok && (!isShown || /\b(create|alter|drop)\b/i.test(ended.sql))) showTables();
  });

  // Cancelling. The query may not have reached Postgres yet, as while its endpoint wakes.

  const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

  async function ask(asked) {
    const body = new URLSearchParams(new FormData(form));
    if (asked.other) body.set("other", asked.other);
    const answer = await fetch(form.dataset.cancel, { method: "POST", body });
    return answer.json();
  }

  cancel.addEventListener("click", async () => {
    const asked = run;
    asked.isCancelled = true;
    cancel.disabled = true;
    cancel.textContent = "Cancelling…";
    while (run && run === asked) {
      const { cancelled, problem } = await ask(asked).catch(() => ({ problem: "Cannot reach the console." }));
      if (cancelled || run !== asked) return;
      if (problem) {
        Perch.failed(`The query was not cancelled. ${problem}`);
        cancel.disabled = false;
        cancel.textContent = "Cancel";
        cancel.focus();
        return;
      }
      await pause(500);
    }
  });

  // The address names what is chosen, so that a reload, a bookmark and Back lead to the same branch.

  function nameChosen({ target }) {
    const url = new URL(location);
    for (const name of ["branch", "database", "role"]) {
      const { value } = form.elements[name];
      // What was chosen on one branch may not exist on another.
      if (name === "branch" || target.name === name) url.searchParams.set(name, value);
      else if (target.name === "branch") url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
    const tables = document.getElementById("tab-tables");
    if (tables) tables.search = new URLSearchParams({ branch: form.elements.branch.value });
  }

  document.addEventListener("DOMContentLoaded", () => nameChosen({ target: form }));
  form.addEventListener("change", ({ target }) => {
    if (!["branch", "database", "role"].includes(target.name)) return;
    nameChosen({ target });
    // What is shown and allowed was chosen for another branch.
    if (target.name === "branch") form.elements.read_only.checked = true;
    document.querySelectorAll("#tables > :not(header)").forEach((one) => one.remove());
    document.getElementById("show-tables").textContent = "Show tables";
  });

  // The tree of tables.

  const showTables = () => document.getElementById("show-tables").click();
  document.addEventListener("DOMContentLoaded", () => {
    if (document.querySelector("#show-tables[data-at-once]")) showTables();
  });

  // The menu of the other branches is filled when it is opened.

  document.addEventListener("toggle", ({ target }) => {
    if (!target.matches("details[data-branches]") || !target.open) return;
    const others = [...branches.options].filter((one) => one.value !== branches.value);
    const items = others.map(({ value, text }) => {
      const item = document.createElement("li");
      item.append(Object.assign(document.createElement("button"), { name: "other", value, textContent: text }));
      return item;
    });
    const none = Object.assign(document.createElement("li"), {
      className: "faint", textContent: "No other branch has an endpoint.",
    });
    target.querySelector("ul").replaceChildren(...(items.length ? items : [none]));
  }, true);
})();
