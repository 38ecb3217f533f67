// The live channel: the server says that something has changed, and the page renews its region.
// One for a page that can be seen and shows something live; a hidden one rests. Where the channel
// does not come through, the page looks for itself, twelve times a minute.
"use strict";

(() => {
  const address = document.body.dataset.changes;
  // Milliseconds: until the server's first word, between two renewals, until a lost channel is told
  // of, between two looks without a channel, and until the channel is tried again.
  const FIRST_WORD = 10_000, BETWEEN = 1_000, PATIENCE = 3_000, LOOK_EVERY = 5_000, TRY_AGAIN = 60_000;

  let source = null;
  // The mark of what the page has heard of, to come back with.
  let seen = "";
  // Set while the region itself asks again, because it could not be read, and for good once what it
  // shows is gone.
  let isRefused = false;
  let looking = 0;
  let waiting = 0;
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
  }

  function heard(message) {
    clearTimeout(waiting);
    Perch.trouble("");
    seen = message.lastEventId || seen;
    if (message.data === "changed") renewSoon();
  }

  // What changes in quick succession renews the page once a second.
  function renewSoon() {
    clearTimeout(renewSoon.timer);
    const pause = Math.max(0, renewedAt + BETWEEN - performance.now());
    renewSoon.timer = setTimeout(() => {
      renewedAt = performance.now();
      Perch.renew();
    }, pause);
  }

  function lost() {
    clearTimeout(waiting);
    if (source.readyState === EventSource.CLOSED) return look();
    // The browser comes back by itself. It often ends only to begin anew.
    waiting = setTimeout(() => Perch.trouble("The console cannot be reached. Trying again."), PATIENCE);
  }

  function look() {
    rest();
    const began = performance.now();
    const once = () => {
      if (!document.getElementById("poll")?.hasAttribute("hx-trigger")) Perch.renew();
    };
    looking = setInterval(() => {
      if (performance.now() - began < TRY_AGAIN) return once();
      rest();
      Perch.listen();
    }, LOOK_EVERY);
    once();
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
    if (document.hidden) rest();
    else if (!isRefused) Perch.listen();
  });
  window.addEventListener("pagehide", rest);
  window.addEventListener("pageshow", (event) => {
    // Out of the browser's own memory, where nobody told it anything.
    if (event.persisted) Perch.listen();
  });

  // Once the other scripts are there.
  document.addEventListener("DOMContentLoaded", Perch.listen);
})();
