// What the browser keeps of a person's queries, by account and project: saved ones, the history, and
// what is typed in this tab. Results are never kept, nor statements that set a password.
"use strict";

(() => {
  const form = document.getElementById("query");
  if (!form) return;
  const MOST_RUNS = 50, LONGEST = 20_000, SECRET = /\bpassword\b/i;
  const { account, project } = form.dataset;
  const KEY = `perch:queries:${account}:${project}`;
  // Each branch has a draft of its own, and so has a past moment: what was typed for the present may
  // be what it undoes. What is typed stays in the editor when another branch is chosen.
  const draft = () => ["perch:typed", account, project, form.elements.past_endpoint.value
    || form.elements.branch.value].join(":");
  const by = (id) => document.getElementById(id);

  // A browser may refuse storage, or it may be full. Then nothing is kept.
  function read() {
    try {
      const { history, saved } = JSON.parse(localStorage.getItem(KEY)) ?? {};
      return { history: history ?? [], saved: saved ?? [] };
    } catch {
      return { history: [], saved: [] };
    }
  }

  function write(kept) {
    try {
      localStorage.setItem(KEY, JSON.stringify(kept));
    } catch {
      Perch.failed("This browser does not keep queries.");
    }
    show();
  }

  function button(text, action, more = {}) {
    const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, ...more });
    made.addEventListener("click", action);
    return made;
  }

  const inALine = (sql) => sql.trim().replace(/\s+/g, " ").slice(0, 120);

  function use(sql) {
    Perch.sql.text = sql;
    Perch.sql.focus();
  }

  function row(name, sql, small, ...more) {
    const item = document.createElement("li");
    item.append(button(name, () => use(sql), { className: "link", title: sql.slice(0, 400) }), ...more);
    if (small) item.append(Object.assign(document.createElement("small"), { className: "faint", textContent: small }));
    return item;
  }

  function show() {
    const { history, saved } = read();
    by("saved").replaceChildren(...saved.map(({ name, sql }) => {
      const forget = button("", () => {
        write({ ...read(), saved: read().saved.filter((one) => one.name !== name) });
        by("save-query").focus();
      }, { className: "bare", ariaLabel: `Delete the saved query ${name}` });
      forget.textContent = "×";
      return row(name, sql, "", forget);
    }));
    by("history").replaceChildren(...history.map(({ sql, branch, at, ms, ok, cancelled }) => {
      const when = Perch.ago((Date.now() - at) / 1000);
      return row(inALine(sql), sql, `${ok ? "" : cancelled ? "Cancelled · " : "Failed · "}${branch} · ${when} · ${ms} ms`);
    }));
    by("clear-history").hidden = !history.length;
    for (const list of [by("saved"), by("history")]) list.nextElementSibling.hidden = list.childElementCount > 0;
  }

  document.addEventListener("perch:ran", ({ detail: { sql, branch, began, ms, ok, cancelled } }) => {
    if (!sql.trim() || sql.length > LONGEST || SECRET.test(sql)) return;
    const kept = read();
    const before = kept.history.filter((one) => one.sql !== sql || one.branch !== branch);
    write({ ...kept, history: [{ sql, branch, at: began, ms, ok, cancelled }, ...before].slice(0, MOST_RUNS) });
  });

  by("clear-history").addEventListener("click", () => {
    write({ ...read(), history: [] });
    Perch.announce("History cleared");
    Perch.sql.focus();
  });

  // Saving under a name; a query that has the name already is replaced.

  by("save-query").addEventListener("click", () => {
    by("save-as").hidden = false;
    by("save-name").focus();
  });

  function save() {
    const name = by("save-name").value.trim() || inALine(Perch.sql.text).slice(0, 80);
    if (!name) return by("save-name").focus();
    const kept = read();
    const saved = [...kept.saved.filter((one) => one.name !== name), { name, sql: Perch.sql.text }];
    write({ ...kept, saved: saved.sort((a, b) => a.name.localeCompare(b.name)) });
    by("save-as").hidden = true;
    by("save-name").value = "";
    by("save-query").focus();
    Perch.announce(`Saved ${name}`);
  }

  by("save-it").addEventListener("click", save);
  by("save-name").addEventListener("keydown", (event) => {
    // Enter would send the form.
    if (event.key === "Enter") {
      event.preventDefault();
      save();
    } else if (event.key === "Escape") {
      by("save-as").hidden = true;
      by("save-query").focus();
    }
  });

  // What is typed stays in this tab, such as for Back.

  document.addEventListener("perch:typed", () => {
    try {
      sessionStorage.setItem(draft(), SECRET.test(Perch.sql.text) ? "" : Perch.sql.text);
    } catch {
      // The page works without.
    }
  });

  document.addEventListener("DOMContentLoaded", () => {
    show();
    try {
      const typed = sessionStorage.getItem(draft());
      if (typed && !Perch.sql.text) Perch.sql.text = typed;
    } catch {
      // As above.
    }
  });
  addEventListener("storage", show);
})();
