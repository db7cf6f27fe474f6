/** Confirmation and forms. The browser's own dialog keeps the focus inside and closes with Esc. */

import { ApiProblem, said } from "../lib/api.js";
import { attribute, fill, h, newId, text } from "../lib/dom.js";

/** A button beside one that cancels a job must not be labelled Cancel. */
const KEEP = "Keep it as it is";

/** @typedef {{name: string, label: string, value?: string | number | null, hint?: string, type?: string,
 *   required?: boolean,
 *   options?: [string, string][], placeholder?: string, inputmode?: string, pattern?: string}} Field */

/**
 * Yes or no. `keep`: the way back, in words that say what stays. @returns {Promise<boolean>}
 * @param {{title: string, text?: any, facts?: [string, any][], action: string, keep?: string,
 *   danger?: boolean}} question
 */
export async function confirmed({ title, text: words, facts, action, keep = KEEP, danger = false }) {
  const body = [words && h("p.muted", words), facts && factsOf(facts)];
  return (await asked({ title, body, action, keep, danger, submit: async () => true })) === true;
}

/**
 * Asks for values, calls `submit` with them, and closes on success; errors are shown beside their fields.
 * @param {{title: string, text?: any, fields: Field[], action: string, keep?: string, danger?: boolean,
 *   submit: (values: Record<string, string>) => Promise<any>}} form
 * @returns {Promise<any>} what submit gave; null: they thought better of it
 */
export function filledIn({ title, text: words, fields, action, keep = KEEP, danger = false, submit }) {
  const body = [words && h("p.muted", words), h("div.fields", fields.map(fieldOf))];
  return asked({ title, body, action, keep, danger, submit });
}

/** @param {[string, any][]} facts */
export function factsOf(facts) {
  return h(
    "dl.facts",
    facts.map(([name, value]) => [h("dt", name), h("dd", value)]),
  );
}

/** From what it is to what it will be. @param {any} before @param {any} after */
export function fromTo(before, after) {
  return h("span.from-to", h("s", before), "→", h("strong", after));
}

/** @typedef {{title: string, body: any, action: string, keep: string, danger: boolean}} Question */

/** @param {Question & {submit: (values: any) => Promise<any>}} question */
function asked({ title, body, action, keep, danger, submit }) {
  return new Promise((resolve) => {
    const { dialog, form, go, trouble } = drawn({ title, body, action, keep, danger });
    /** @type {any} */
    let result = null;
    form.addEventListener("submit", async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!isComplete(form)) return;
      go.disabled = true;
      try {
        result = await submit(Object.fromEntries(new FormData(form)));
        if (result !== null) dialog.close(); // null: the user went back; the form keeps its values
      } catch (error) {
        show(form, trouble, error);
      } finally {
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => (dialog.remove(), resolve(result)));
  });
}

/** The focus is where people go on; where something would be lost, on the way back. @param {Question} question */
function drawn({ title, body, action, keep, danger }) {
  const id = newId("title");
  const go = h("button.primary", { type: "submit", class: danger ? "danger" : "" }, action);
  const no = h("button", { type: "button", on: { click: () => dialog.close() } }, keep);
  const trouble = h("p.said", { role: "alert", hidden: true });
  const foot = h("div.dialog-foot", no, go);
  const form = h("form.dialog-form", { novalidate: true }, h("h2", { id }, title), body, trouble, foot);
  const dialog = h("dialog", { "aria-labelledby": id }, form);
  document.body.append(dialog);
  dialog.showModal();
  (form.querySelector("input, select, textarea") ?? (danger ? no : go)).focus();
  return { dialog, form, go, trouble };
}

/** @param {Field} field */
function fieldOf(field) {
  const id = newId("field");
  const hint = h("span.hint", { id: `${id}-hint` }, field.hint ?? "");
  const wrong = h("span.wrong", { role: "alert" });
  return h(
    "div.field",
    { data: { field: field.name } },
    h("label", { for: id }, field.label),
    inputOf(field, id),
    hint,
    wrong,
  );
}

/** @param {Field} field @param {string} id */
function inputOf({ label: _, hint: __, options, value, type = "text", ...rest }, id) {
  const given = { id, ...rest, autocomplete: "off", "aria-describedby": `${id}-hint` };
  if (!options) return h("input", { ...given, type, value: value ?? "", spellcheck: "false" });
  const chosen = String(value ?? "");
  const choices = options.map(([key, label]) => h("option", { value: key, selected: key === chosen }, label));
  return h("select", given, choices);
}

/** @param {HTMLFormElement} form */
function isComplete(form) {
  clear(form);
  /** @type {any[]} */
  const wrong = [...form.elements].filter((/** @type {any} */ input) => input.willValidate && !input.validity.valid);
  for (const input of wrong) blame(input, input.validationMessage);
  wrong[0]?.focus();
  return wrong.length === 0;
}

/** @param {HTMLFormElement} form */
function clear(form) {
  for (const place of form.querySelectorAll(".wrong")) text(place, "");
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

/** @param {HTMLElement} input @param {string} words */
function blame(input, words) {
  attribute(input, "aria-invalid", "true");
  const place = input.closest(".field")?.querySelector(".wrong");
  if (place) text(place, words);
}

/**
 * A problem refers to fields by pointers: errors of fields in the form are shown there, others below.
 * @param {HTMLFormElement} form
 * @param {HTMLElement} trouble
 * @param {unknown} error
 */
function show(form, trouble, error) {
  const errors = error instanceof ApiProblem ? error.errors : [];
  const places = errors.map((each) => ({
    ...each,
    input: /** @type {any} */ (form.elements.namedItem(each.pointer.split("/")[1])),
  }));
  const known = places.filter((each) => each.input);
  for (const each of known) blame(each.input, each.detail);
  known[0]?.input.focus();
  trouble.hidden = known.length > 0 && known.length === places.length;
  fill(trouble, said(error));
}
