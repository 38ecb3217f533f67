// One stream of changes for all windows of a sign-in: browsers open only six connections to a server
// of HTTP/1.1. One window leads: it has the stream, and tells the other windows by a
// BroadcastChannel. There is no lock. If two windows lead, one of them soon follows; until then both
// streams are right.
"use strict";

(() => {
  // Milliseconds: until a window that no leader answers leads, at least and at most; in which the
  // projects of other windows are gathered before the stream is opened; until it is opened again
  // without the project of a window that has left.
  const UNANSWERED = 100, MOST_UNANSWERED = 250, GATHERING = 50, LEFT = 2_000;

  const { "Perch-Sign-In": signIn } = JSON.parse(document.body.getAttribute("hx-headers") ?? "{}");

  // Returns what behaves as the EventSource at that URL of a page's channel.
  Perch.sharedSource = (url) => {
    const id = Math.random();
    const own = /projects\/([^/]+)/.exec(url.pathname)?.[1] ?? "";
    let seen = url.searchParams.get("seen") ?? "";
    // The id of the window that leads, and the timer that makes this one lead.
    let leader = null, election = 0;
    // While this window leads: the stream, the last mark of each project in it, and the projects of
    // the other windows by their ids.
    let stream = null, opening = 0;
    const marks = new Map(), others = new Map();
    const channel = new BroadcastChannel(`perch-changes-${signIn}`);
    const say = (kind, more) => channel.postMessage({ kind, from: id, ...more });

    function ask() {
      leader = null;
      say("want", { on: own, seen });
      clearTimeout(election);
      election = setTimeout(lead, UNANSWERED + Math.random() * (MOST_UNANSWERED - UNANSWERED));
    }

    function lead() {
      leader = id;
      marks.set(own, seen);
      say("lead");
      open(GATHERING);
    }

    function open(within) {
      clearTimeout(opening);
      opening = setTimeout(() => {
        stream?.close();
        const address = new URL(url.pathname, url);
        for (const [on, mark] of marks) {
          if (on === own) address.searchParams.set("seen", mark);
          else address.searchParams.append("also", `${on}~${mark}`);
        }
        stream = new EventSource(address);
        stream.onmessage = heard;
        stream.onerror = () => {
          say("lost");
          source.onerror();
        };
      }, within);
    }

    function heard({ data, lastEventId }) {
      const [what, about] = data.split(" ");
      if (what === "here") return tell({ data });
      const [on, mark] = about === undefined ? [own, lastEventId] : about.split("~");
      if (what === "full") marks.delete(on);
      else marks.set(on, mark);
      tell({ data: what, on, mark });
    }

    function tell(news) {
      say("said", news);
      told(news);
    }

    function told({ data, on, mark, to = id }) {
      if (to !== id || (on ?? own) !== own) return;
      seen = mark ?? seen;
      source.onmessage({ data, lastEventId: seen });
    }

    function stopLeading() {
      clearTimeout(opening);
      stream?.close();
      stream = null;
      marks.clear();
      others.clear();
    }

    const hear = {
      want({ from, on, seen: theirs }) {
        if (leader !== id) return;
        others.set(from, on);
        say("lead", { to: from });
        if (!marks.has(on)) {
          marks.set(on, theirs);
          open(GATHERING);
        } else if (marks.get(on) !== theirs) {
          say("said", { data: "changed", on, mark: marks.get(on), to: from });
        } else if (stream?.readyState === EventSource.OPEN) {
          say("said", { data: "here", to: from });
        }
      },
      lead({ from, to }) {
        if (to !== undefined && to !== id) return;
        if (leader === id && from > id) return say("lead");
        if (leader === id) stopLeading();
        clearTimeout(election);
        if (leader === from) return;
        leader = from;
        // A new leader does not know this window yet.
        if (to === undefined) say("want", { on: own, seen });
      },
      leave({ from }) {
        const on = others.get(from);
        if (!others.delete(from) || on === own || [...others.values()].includes(on)) return;
        marks.delete(on);
        open(LEFT);
      },
      resign({ from }) {
        if (leader === from) ask();
      },
      said(news) {
        if (leader === news.from) told(news);
      },
      lost({ from }) {
        if (leader === from) source.onerror();
      },
    };
    channel.onmessage = ({ data }) => hear[data.kind]?.(data);

    const source = {
      get readyState() {
        return stream?.readyState ?? EventSource.CONNECTING;
      },
      close() {
        clearTimeout(election);
        say(leader === id ? "resign" : "leave");
        stopLeading();
        channel.close();
      },
    };
    ask();
    return source;
  };
})();
