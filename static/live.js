// Live regions. While something in `#live` is unfinished, htmx polls for it; otherwise the live
// channel says when something has changed. An answer is morphed into the page, so that the focus,
// open menus, what was typed, the selection and the scroll position stay.
"use strict";

(() => {
  const region = () => document.getElementById("live");

  // Morphing.

  const callbacks = {
    beforeNodeMorphed(old, fresh) {
      if (old.nodeType !== Node.ELEMENT_NODE) return true;
      if (old.matches("input:not([type=hidden]), select, textarea")) return !isTouched(old);
      // The browser has updated its words since.
      return !(old.matches("time") && old.dateTime === fresh.dateTime && old.title === fresh.title);
    },
    beforeAttributeUpdated(name, element) {
      if (name === "open") return false;
      // Keep what htmx has set while the request of a form or link is under way. The attributes of
      // a renewal's own request are on the body or the poll, and are replaced.
      const isHtmx = name === "class" || name.includes("disabled");
      return !(isHtmx && element.closest(".htmx-request:not(body, #poll)"));
    },
  };

  function isTouched(field) {
    if (field === document.activeElement) return true;
    if (field.matches("select")) {
      return [...field.options].some((option) => option.selected !== option.defaultSelected);
    }
    if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
    return field.value !== field.defaultValue;
  }

  htmx.defineExtension("morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap(style, target, fragment) {
      if (style !== "morph") return false;
      return Idiomorph.morph(target, fragment.children, { morphStyle: "outerHTML", callbacks });
    },
  });

  // Renewing. Only one renewal or poll is under way at a time, because each of two answers would
  // announce the end of an operation. If more is asked for meanwhile, another renewal follows. An
  // answer is dropped if a newer one is shown already, or if the user has changed, searched or
  // filtered something since its request.

  let isRenewing = false;
  // The request of the poll under way.
  let polling = null;
  let isAskedAgain = false;
  // The requests of the region by number, and the number up to which answers are dropped.
  let sent = 0;
  let outdated = 0;
  const numbers = new WeakMap();
  // The requests under way that search or filter.
  const steering = new Set();
  // The requests sent while a problem is shown. An answer to one of them hides the problem.
  const sentInTrouble = new WeakSet();
  // The ETag of what the region shows. If there is nothing else to show, the answer is a 304.
  let shown = "";
  // How many times in a row the region has polled; the server slows it down by that.
  let turn = 0;
  // The newest operation before the user's own change. The end of the user's is to be announced.
  let known = null;

  Perch.renew = () => {
    const live = region();
    if (!live) return;
    if (isRenewing || polling) {
      isAskedAgain = true;
      return;
    }
    isRenewing = true;
    const over = () => {
      isRenewing = false;
      renewIfAsked();
    };
    htmx.ajax("GET", live.dataset.live, { target: "#live", swap: "morph" }).then(over, over);
  };

  function renewIfAsked() {
    if (!isAskedAgain) return;
    isAskedAgain = false;
    Perch.renew();
  }

  Perch.renewAfterChange = () => {
    known ??= document.getElementById("poll")?.dataset.newest ?? "";
    outdated = sent;
    Perch.renew();
    // The answer under way would be dropped, so the next request need not wait for it.
    if (isAskedAgain) polling ? polling.abort() : htmx.trigger(document.body, "htmx:abort");
  };

  // Check regularly while the page says that the service is down, and while the owner of a new project
  // has yet to connect: a connection is no change of which the server tells the page.
  setInterval(() => {
    const isDown = document.getElementById("service")?.hasChildNodes();
    // The region polls by itself, or it is deleted or not accessible any more.
    const isSettled = document.querySelector("#poll[hx-trigger], #poll [role=alert]");
    const isExpected = isDown || document.getElementById("step-project_connect");
    if (isExpected && !isSettled && !document.hidden && !Perch.isPolling()) Perch.renew();
  }, 5_000);

  const isRenewal = ({ target }) => target?.id === "live";

  document.addEventListener("htmx:configRequest", (event) => {
    const { detail } = event;
    if (!isRenewal(detail)) return;
    if (shown) detail.headers["If-None-Match"] = shown;
    if (detail.elt.id !== "poll") {
      // This is not a poll. These parameters let the server announce the end of operations.
      const isPolling = document.getElementById("poll")?.hasAttribute("hx-trigger");
      const added = isPolling ? `n=${Math.max(turn, 1)}` : known !== null && `known=${known}`;
      if (added) detail.path += `${detail.path.includes("?") ? "&" : "?"}${added}`;
      return;
    }
    turn = Math.max(turn + 1, Number(/[?&]n=(\d+)/.exec(detail.path)?.[1] ?? 0));
    detail.path = detail.path.replace(/([?&]n=)\d+/, `$1${turn}`);
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    // The answer to a poll would replace that of a renewal or search under way.
    if (event.detail.elt.id === "poll" && (document.hidden || isRenewing || steering.size)) event.preventDefault();
  });

  document.addEventListener("htmx:beforeSend", ({ detail }) => {
    if (isRenewal(detail) && detail.elt.matches("form")) steer(detail);
    if (detail.elt.id === "poll") follow(detail.xhr);
    numbers.set(detail.xhr, ++sent);
    if (!document.getElementById("trouble").hidden) sentInTrouble.add(detail.xhr);
  });

  function follow(poll) {
    polling = poll;
    // An event of htmx would be lost if its element has been removed.
    poll.addEventListener("loadend", () => {
      polling = null;
      renewIfAsked();
    });
  }

  // Once a search or a filter is sent, whatever its answer, the region is requested with it, and
  // answers to earlier requests are dropped.
  function steer({ xhr, requestConfig }) {
    const { dataset } = region();
    const filled = [...requestConfig.formData].filter(([, value]) => value);
    const query = filled.length ? `?${new URLSearchParams(filled)}` : "";
    dataset.live = dataset.live.replace(/\?.*|$/, query);
    outdated = sent;
    steering.add(xhr);
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target } = event.detail;
    // A reverse proxy answered instead of the console: do not show its answer in the page.
    const isStrange = xhr.status >= 400 && xhr.status !== 422 && !xhr.getResponseHeader("HX-Reswap");
    if (isStrange) {
      event.detail.shouldSwap = false;
      if (target.id === "live") Perch.trouble("The console returned an error. Retrying.");
      else Perch.failed("The console returned an error. Try again.");
    } else if (xhr.status === 304 || (isOutdated(event.detail) && !steering.has(xhr))) {
      event.detail.shouldSwap = false;
      if (xhr.status === 304 && isRegions(target)) outdate(xhr);
    }
  });

  const isOutdated = ({ target, xhr }) => isRegions(target) && numbers.get(xhr) <= outdated;

  // What was requested before this answer, which is shown, is older.
  const outdate = (xhr) => { outdated = Math.max(outdated, numbers.get(xhr)); };

  // The region or, if it could not be read, its status line.
  const isRegions = (target) => ["live", "poll"].includes(target.id);

  document.addEventListener("htmx:afterSwap", (event) => {
    const { target, xhr } = event.detail;
    if (!isRegions(target)) return;
    const isProblem = target.id === "poll";
    shown = xhr.getResponseHeader("ETag") ?? "";
    if (!isProblem) {
      known = null;
      // The title tells the state, such as that of an endpoint.
      document.title = region().dataset.title ?? document.title;
      comeBack();
      Perch.listen();
    }
    const poll = document.getElementById("poll");
    if (!poll?.hasAttribute("hx-trigger")) turn = 0;
    // Morphing may have removed its trigger, which htmx notices only by this call.
    if (poll) htmx.process(poll);
    document.dispatchEvent(new CustomEvent("perch:renewed"));
    Perch.keepFocus();
    // The answer to a search is shown even if it is outdated, as the page's address comes with it.
    if (steering.has(xhr) && isOutdated(event.detail)) Perch.renew();
    outdate(xhr);
  });

  document.addEventListener("perch:gone", () => {
    const main = document.getElementById("main");
    main.classList.add("gone");
    // Disable what would change the deleted thing, or connect to it.
    const ways = ".actions, form, .connection, [hx-target='#dialog']";
    for (const part of main.querySelectorAll(ways)) part.inert = true;
  });

  function comeBack() {
    const gone = document.querySelector("main.gone");
    if (!gone) return;
    gone.classList.remove("gone");
    for (const part of gone.querySelectorAll("[inert]")) part.inert = false;
  }

  // A failed request is reported in one line, until another request succeeds.

  const UNREACHABLE = "Cannot reach the console.";

  document.addEventListener("htmx:sendError", (event) => {
    const { detail } = event;
    if (isRenewal(detail)) return Perch.trouble(`${UNREACHABLE} Retrying.`);
    const isChange = detail.requestConfig.verb !== "get";
    Perch.failed(isChange ? `${UNREACHABLE} The change may not have been made.` : UNREACHABLE);
  });

  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    steering.delete(detail.xhr);
    const { status } = detail.xhr;
    if (status && status < 500 && sentInTrouble.has(detail.xhr)) Perch.trouble("");
  });
})();
