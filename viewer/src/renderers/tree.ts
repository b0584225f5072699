// A web page from its accessibility tree, one node a line: each role is drawn as what it is. A sign stands before nodes that
// only one side has. The line itself is the tooltip.
import { el } from "../dom";
import type { TextSeen } from "../data";
import { unified } from "./lines";

const KINDS = { "=": "", "+": "created", "-": "removed" };
const NODE = /^ *(?:\[(\d+)\] )?([A-Za-z][\w-]*)(?: ("(?:[^"\\]|\\.)*"))?(.*)$/;
const PROPERTY = / ([a-z][\w-]*)(?:=("(?:[^"\\]|\\.)*"))?/g;
const FIELDS = new Set(["textbox", "searchbox", "combobox", "spinbutton", "slider"]);
const BUTTONS = new Set(["button", "clickable", "tab", "menuitem", "menuitemcheckbox", "menuitemradio"]);
const WORDS = new Set(["text", "label", "heading", "task", "link", "option"]);

function unquoted(quoted: string | undefined): string {
  try {
    return quoted ? String(JSON.parse(quoted)) : "";
  } catch {
    return quoted ?? ""; // a model wrote it
  }
}

// The node as a reader of the page would see it; null when the line is not a node.
function widget(line: string): HTMLElement[] | null {
  const found = NODE.exec(line);
  if (!found) return null;
  const [, id, role = "", quoted, rest = ""] = found;
  const name = unquoted(quoted);
  const properties = new Map([...rest.matchAll(PROPERTY)].map((match): [string, string] => [match[1]!, match[2] ? unquoted(match[2]) : "true"]));
  if (rest.replaceAll(PROPERTY, "").trim()) return null;
  const take = (key: string) => { const value = properties.get(key); properties.delete(key); return value; };
  const drawn = drawRole(role, name, take);
  drawn.at(-1)!.classList.toggle("focused", take("focused") !== undefined);
  drawn.at(-1)!.classList.toggle("disabled", take("disabled") !== undefined);
  const others = [...properties].map(([key, value]) => (value === "true" ? key : `${key}=${value}`)).join(" ");
  return [...(id ? [el("span", { class: "id" }, id)] : []), ...drawn, ...(others ? [el("span", { class: "quiet" }, others)] : [])];
}

function drawRole(role: string, name: string, take: (key: string) => string | undefined): HTMLElement[] {
  if (BUTTONS.has(role)) return [el("span", { class: "as-button" }, name || role)];
  if (FIELDS.has(role)) {
    const value = take("value"), hint = take("placeholder");
    return [el("span", {}, name), el("span", { class: value ? "as-field" : "as-field quiet" }, value ?? hint ?? " ")];
  }
  if (role === "checkbox" || role === "radio" || role === "switch") {
    const on = take("checked") !== undefined;
    return [el("span", {}, `${role === "radio" ? (on ? "●" : "○") : on ? "☑" : "☐"} ${name}`)];
  }
  if (WORDS.has(role)) return [el("span", { class: `as-${role}` }, name || " ")];
  return [el("span", {}, el("span", { class: "quiet" }, role), name ? ` ${name}` : "")];
}

export const tree = {
  draw(seen: TextSeen, other?: TextSeen) {
    const lines = seen.text.split("\n");
    const rows = other ? unified(lines, other.text.split("\n")) : lines.map((line): ["=", string] => ["=", line]);
    const drawn = rows.map(([sign, line]) => {
      const depth = line.length - line.trimStart().length;
      const inside = widget(line) ?? [el("span", {}, line.trimStart())];
      const node = el("div", { class: `node ${KINDS[sign]}`, title: line.trimStart() }, el("span", { class: "sign" }, sign === "=" ? "" : sign), ...inside);
      node.style.paddingLeft = `${1.4 + depth * 0.55}em`;
      return node;
    });
    return { node: el("div", { class: "tree" }, ...drawn), differences: rows.filter((row) => row[0] !== "=").length };
  },
};
