// An accessibility tree, one node a line: indented lines with a sign before those that only one side has.
import { el } from "../dom";
import type { TextSeen } from "../data";
import { unified } from "./lines";

const KINDS = { "=": "", "+": "created", "-": "removed" };

export const tree = {
  draw(seen: TextSeen, other?: TextSeen) {
    const lines = seen.text.split("\n");
    const rows = other ? unified(lines, other.text.split("\n")) : lines.map((line): ["=", string] => ["=", line]);
    const drawn = rows.map(([sign, line]) => {
      const depth = line.length - line.trimStart().length;
      const node = el("div", { class: `node ${KINDS[sign]}` }, el("span", { class: "sign" }, sign === "=" ? "" : sign), line.trimStart());
      node.style.paddingLeft = `${1.4 + depth * 0.55}em`;
      return node;
    });
    return { node: el("div", { class: "tree" }, ...drawn), differences: rows.filter((row) => row[0] !== "=").length };
  },
};
