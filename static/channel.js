// The live channel: the server says that something has changed, and the page renews its region.
// One for a page that can be seen and shows something live; a hidden one rests. Where the channel
// does not come through, the page looks for itself, twelve times a minute.
"use strict";

(() => {
  const address = document.body.dataset.changes;
  // Milliseconds: until the server's first word, between two renewals, until a lost channel is told
  // of, between two looks without a channel, and until the channel is tried again.
  const FIRST_WORD = 10_000, BETWEEN = 1_000, PATIENCE = 3_000, LOOK_EVERY = 5_000, TRY_AGAIN = 60_000;
  // The server says every 20 s that it is there.
  const LONGEST_SILENCE = 50_000;
  const UNREACHABLE = "The console cannot be reached. Trying again.";

  let source = null;
  // The mark of what the page has heard of, to come back with.
  let seen = "";
  // Set while the region itself asks again, because it could not be read, and for good once what it
  // shows is gone.
  let isRefused = false;
  let looking = 0;
  let waiting = 0;
  let isLost = false;
  let renewing = 0;
  let renewedAt = 0;

  const canListen = () => address && document.getElementById("live") && !document.hidden;

  Perch.listen = () => {
    isRefused = false;
    if (source || looking || !canListen()) return;
    if (!window.EventSource) return look();
    const url = new URL(address, location.href);
    if (seen) url.searchParams.set("seen", seen);
    source = new EventSource(url);
    source.onmessage = heard;
    source.onerror = lost;
    waiting = setTimeout(look, FIRST_WORD);
  };

  function rest() {
    source?.close();
    source = null;
    clearTimeout(waiting);
    clearInterval(looking);
    looking = 0;
    isLost = false;
    if (renewing) forget();
  }

  // What was heard and has not come to be shown is asked for again.
  function forget() {
    clearTimeout(renewing);
    renewing = 0;
    seen = "";
  }

  function heard(message) {
    clearTimeout(waiting);
    waiting = setTimeout(startAfresh, LONGEST_SILENCE);
    isLost = false;
    Perch.trouble("");
    seen = message.lastEventId || seen;
    if (message.data === "changed") renewSoon();
  }

  // What changes in quick succession renews the page once a second.
  function renewSoon(least = 0) {
    clearTimeout(renewing);
    renewing = setTimeout(() => {
      renewing = 0;
      renewedAt = performance.now();
      Perch.renew();
    }, Math.max(least, renewedAt + BETWEEN - performance.now()));
  }

  function lost() {
    if (source.readyState === EventSource.CLOSED) return look();
    // The browser tries again and again by itself. It often ends only to begin anew.
    if (isLost) return;
    isLost = true;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      isLost = false;
      Perch.trouble(UNREACHABLE);
    }, PATIENCE);
  }

  function look() {
    rest();
    const began = performance.now();
    const once = () => {
      if (!document.getElementById("poll")?.hasAttribute("hx-trigger")) Perch.renew();
    };
    looking = setInterval(() => {
      if (performance.now() - began < TRY_AGAIN) return once();
      startAfresh();
    }, LOOK_EVERY);
    once();
  }

  function startAfresh() {
    rest();
    if (!isRefused) Perch.listen();
  }

  for (const failure of ["htmx:sendError", "htmx:responseError"]) {
    document.addEventListener(failure, ({ detail }) => {
      if (detail.target?.id !== "live" || !source) return;
      forget();
      renewSoon(LOOK_EVERY);
    });
  }

  document.addEventListener("perch:problem", () => {
    isRefused = true;
    rest();
  });
  document.addEventListener("perch:gone", () => {
    isRefused = true;
    rest();
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return rest();
    startAfresh();
    // What was gone may be back: nothing else asks for it.
    if (document.querySelector("main.gone")) Perch.renew();
  });
  window.addEventListener("offline", () => {
    Perch.trouble(UNREACHABLE);
    // A console on this machine is there all the same.
    startAfresh();
  });
  window.addEventListener("online", () => {
    startAfresh();
    // Nothing else would find that out here.
    if (!source && !looking) Perch.trouble("");
  });
  window.addEventListener("pagehide", rest);
  window.addEventListener("pageshow", (event) => {
    // Out of the browser's own memory, where nobody told it anything.
    if (event.persisted) startAfresh();
  });

  // Once the other scripts are there.
  document.addEventListener("DOMContentLoaded", Perch.listen);
})();
