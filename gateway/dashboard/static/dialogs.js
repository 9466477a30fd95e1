// What stands before everything else for a while: the question for a key, and the list of keys.

import { el, h, shownTenant } from "./dom.js";
import { KEYS } from "./words.js";

/** `onKey()` once there is one. */
export function askForKey(control, onKey) {
  const dialog = el("key-dialog");
  if (dialog.open) return;
  const input = h("input", { type: "password", id: "control-key", autocomplete: "off", required: true });
  const form = h("form", { method: "dialog" },
    h("h2", { id: "key-title" }, "Control key"),
    h("p", {}, control.hasKey ? "The gateway does not accept this key." : "This gateway shows itself to holders of a control key alone."),
    h("label", { for: "control-key" }, "Key"), input,
    h("p", { className: "dim" }, "It is kept until this tab is closed, and sent to this gateway only."),
    h("div", { className: "dialog-end" }, h("button", { type: "submit", className: "main" }, "Connect")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    control.setKey(input.value.trim());
    dialog.close();
    onKey();
  });
  dialog.replaceChildren(form);
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  input.focus();
}

/** A dialog that stops a session; `onStop({ isCancelled })` once confirmed: whether what runs is to be cancelled. */
export function askToStop(session, onStop) {
  const dialog = el("stop-dialog");
  if (dialog.open) return;
  const letFinish = h("input", { type: "checkbox", id: "stop-later" });
  const no = h("button", { type: "button", autofocus: true }, "Keep it running");
  const form = h("form", { method: "dialog" },
    h("h2", { id: "stop-title" }, "Stop this session?"),
    h("p", { id: "stop-does" }, h("code", {}, session.id), " of ", shownTenant(session.tenant), ". For an hour its turns are refused; its client gets that as the error."),
    h("p", {}, letFinish, " ", h("label", { for: "stop-later" }, "Let what runs now finish")),
    h("div", { className: "dialog-end" }, no, h("button", { type: "submit", className: "main" }, "Stop the session")));
  no.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
    onStop({ isCancelled: !letFinish.checked });
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

export function showKeys() {
  const dialog = el("keys-dialog");
  const close = h("button", { type: "submit", className: "main" }, "Close");
  dialog.replaceChildren(h("form", { method: "dialog" }, h("h2", { id: "keys-title" }, "Keys"),
    h("dl", { className: "key-list" }, ...KEYS.flatMap(([key, does]) => [h("dt", {}, ...key.split(" ").map((one) => h("kbd", {}, one))), h("dd", {}, does)])),
    h("p", { className: "dim" }, "In the waterfall: drag to pan, Ctrl and wheel to zoom, Shift and wheel to pan."), h("div", { className: "dialog-end" }, close)));
  dialog.showModal();
}
