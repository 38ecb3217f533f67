// Where the focus goes when the focused element is removed: to the opener of a dialog, out of a
// menu that closes, or to the element nearest to a deleted row. And links that act as buttons.
"use strict";

(() => {
  const FOCUSABLE = "a[href], button:not(:disabled), summary, input:not([type=hidden]):not(:disabled), select:not(:disabled), textarea:not(:disabled)";
  const FIELDS = "form :is(input:not([type=hidden]), select, textarea):not(:disabled, [readonly])";
  const isSeen = (element) => element.isConnected && element.checkVisibility();

  // The control that had the focus last and, for each of its ancestors, the index among its
  // siblings. If the parent still exists, the focus goes to what is at that index now.
  let last = null;

  function remember(element) {
    const places = [];
    for (let at = element; at.parentElement; at = at.parentElement) {
      places.push({ parent: at.parentElement, index: [...at.parentElement.children].indexOf(at) });
    }
    last = { element, id: element.id, places };
  }

  document.addEventListener("focusin", (event) => {
    if (!event.target.closest("#dialog")) remember(event.target);
  });

  function successor({ element, id, places }) {
    if (isSeen(element) && element.matches(FOCUSABLE)) return element;
    const same = id && document.getElementById(id);
    if (same && isSeen(same) && same.matches(FOCUSABLE)) return same;
    const summary = element.closest("details.menu")?.querySelector("summary");
    if (summary && isSeen(summary)) return summary;
    for (const { parent, index } of places) {
      if (!isSeen(parent)) continue;
      const near = [parent.children[index], parent.children[index - 1], parent];
      for (const place of near) {
        if (!place) continue;
        const found = [place, ...place.querySelectorAll(FOCUSABLE)].find(
          (one) => one.matches(FOCUSABLE) && isSeen(one),
        );
        if (found) return found;
      }
    }
    return null;
  }

  // A disabled control whose request is under way gets the focus back once that is answered.
  function isWaiting({ element, id }) {
    const same = (id && document.getElementById(id)) || element;
    return same.isConnected && same.disabled && same.closest(".htmx-request") !== null;
  }

  // If the focus is lost, return it to the last control or to the nearest one.
  Perch.keepFocus = () => {
    const active = document.activeElement;
    const isLost = last && (!active || active === document.body) && !isWaiting(last);
    if (isLost) successor(last)?.focus({ preventScroll: true });
  };

  // After a dialog has closed. Its opener may have been in a menu, or may be removed.
  Perch.returnFocus = () => {
    const opener = Perch.dialogOpener;
    Perch.dialogOpener = null;
    if (opener?.isConnected && opener !== document.activeElement) remember(opener);
    if (last) successor(last)?.focus({ preventScroll: true });
  };

  Perch.closeMenu = (menu) => {
    const hadFocus = menu.contains(document.activeElement);
    menu.open = false;
    if (hadFocus) menu.querySelector("summary").focus();
  };

  // The first field of a dialog or, if it has none, the button that changes nothing.
  Perch.focusFirst = (dialog) => {
    const places = ["[aria-invalid=true]", "[autofocus]", FIELDS, "footer [data-close]", FOCUSABLE];
    for (const place of places) {
      const found = [...dialog.querySelectorAll(place)].find(isSeen);
      if (found) return found.focus();
    }
  };

  // After a sent form was replaced, focus the first field with an error, or the command it shows. By
  // then, htmx has focused the field with `autofocus`.
  document.addEventListener("htmx:afterSettle", (event) => {
    event.detail.elt?.closest("#form")?.querySelector("[aria-invalid=true], .curl pre")?.focus();
  });

  document.addEventListener("htmx:afterSwap", () => {
    const dialog = document.querySelector("dialog[open]");
    if (!dialog || dialog.contains(document.activeElement)) return;
    Perch.focusFirst(dialog);
  });

  // A button is disabled while its request is under way, and so loses the focus.
  document.addEventListener("htmx:afterRequest", () => requestAnimationFrame(Perch.keepFocus));

  document.addEventListener("keydown", (event) => {
    const button = event.target.closest?.("a[role=button]");
    if (event.key !== " " || !button) return;
    event.preventDefault();
    button.click();
  });
})();
