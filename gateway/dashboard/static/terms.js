// What a term means: beside it, while the mouse or the keyboard rests on it. The words are the glossary's.

import { explained, h } from "./dom.js";
import { GLOSSARY } from "./glossary.js";

const box = h("div", { id: "term", className: "tip term-tip", role: "tooltip", hidden: true });
let shownFor = null;

function showFor(element) {
  if (element === shownFor) return;
  shownFor?.removeAttribute("aria-describedby");
  shownFor = element;
  box.hidden = element === null;
  if (element === null) return;
  element.setAttribute("aria-describedby", "term");
  box.textContent = GLOSSARY[element.dataset.term];
  place();
}

function place() {
  if (shownFor === null) return;
  if (!shownFor.isConnected) return showFor(null);
  const at = shownFor.getBoundingClientRect();
  const below = at.bottom + 4;
  box.style.left = `${Math.max(4, Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 4))}px`;
  box.style.top = `${below + box.offsetHeight > innerHeight ? Math.max(4, at.top - box.offsetHeight - 4) : below}px`;
}

const termOf = (event) => event.target.closest?.("[data-term]") ?? null;

/** To be called once. */
export function explainTerms() {
  document.body.append(box);
  for (const heading of document.querySelectorAll("h2")) explained(heading);
  document.addEventListener("mouseover", (event) => {
    const element = termOf(event);
    if (element !== null || !shownFor?.matches(":focus")) showFor(element);
  });
  document.addEventListener("focusin", (event) => showFor(termOf(event)));
  document.addEventListener("focusout", () => showFor(null));
  document.addEventListener("scroll", place, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || shownFor === null) return;
    event.stopPropagation();
    showFor(null);
  }, { capture: true });
}
