// A JSON state: its properties by path; created, modified and removed ones are marked, each with a sign of its own.
import { el } from "../dom";
import type { TextSeen } from "../data";

function leaves(value: unknown, path: string, found: Map<string, string>): Map<string, string> {
  const inside = value !== null && typeof value === "object" ? Object.entries(value) : [];
  if (!inside.length) found.set(path || "(all)", JSON.stringify(value));
  const list = Array.isArray(value);
  for (const [key, inner] of inside) leaves(inner, list ? `${path}[${key}]` : path ? `${path}.${key}` : key, found);
  return found;
}

function properties(text: string): Map<string, string> {
  try {
    return leaves(JSON.parse(text), "", new Map());
  } catch {
    return new Map([["(not JSON)", text]]); // a model wrote it
  }
}

export const state = {
  draw(seen: TextSeen, other?: TextSeen) {
    const mine = properties(seen.text);
    const theirs = other ? properties(other.text) : mine;
    const rows: [string, string, string, string | undefined][] = [];
    for (const [path, value] of mine) {
      const before = theirs.get(path);
      rows.push([before === undefined ? "+" : before === value ? "" : "~", path, value, before]);
    }
    for (const [path, value] of theirs) if (!mine.has(path)) rows.push(["−", path, "", value]);
    const kinds: Record<string, string> = { "+": "created", "~": "modified", "−": "removed" };
    const body = rows.map(([sign, path, value, before]) =>
      el("tr", { class: kinds[sign] ?? "" }, el("td", { class: "sign" }, sign), el("th", { scope: "row" }, path),
        el("td", {}, value, sign && before !== undefined ? el("del", {}, before) : null)));
    return { node: el("table", { class: "state" }, el("tbody", {}, ...body)), differences: rows.filter((r) => r[0]).length };
  },
};
