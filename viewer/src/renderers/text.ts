// Text: a grid of characters becomes a board of cells; anything else is lines in which characters are compared.
import { el } from "../dom";
import type { TextSeen } from "../data";
import { matchLines } from "./lines";

export function gridRows(text: string): string[] | null {
  const rows = text.split("\n");
  const width = rows[0]!.length;
  const board = rows.length > 1 && width > 1 && width <= 40 && rows.every((row) => row.length === width);
  return board ? rows : null;
}

function grid(rows: string[], other: string[] | null) {
  let differences = 0;
  const cells = rows.flatMap((row, y) => [...row].map((character, x) => {
    const differs = other !== null && other[y]?.[x] !== character;
    differences += differs ? 1 : 0;
    return el("span", { class: `cell${differs ? " differs" : ""}`, "data-c": character }, character);
  }));
  const node = el("div", { class: "grid" }, ...cells);
  node.style.setProperty("--columns", String(rows[0]!.length)); // small boards get large cells
  const walls = [...rows[0]!].map((_, x) => rows.every((row) => row[x] === "|")); // thin, between the boxes of a sudoku
  node.style.gridTemplateColumns = walls.map((wall) => (wall ? ".8rem" : "minmax(0, 1fr)")).join(" ");
  return { node, differences };
}

function markedLine(line: string, before: string | null): { node: HTMLElement; differences: number } {
  if (before === null || before === line) return { node: el("div", { class: "line" }, line || " "), differences: 0 };
  let start = 0;
  while (start < Math.min(line.length, before.length) && line[start] === before[start]) start++;
  let end = 0;
  while (end < Math.min(line.length, before.length) - start && line.at(-1 - end) === before.at(-1 - end)) end++;
  const middle = line.slice(start, line.length - end);
  const node = el("div", { class: "line changed" }, line.slice(0, start), el("mark", {}, middle || "∅"), line.slice(line.length - end));
  return { node, differences: 1 };
}

export const text = {
  draw(seen: TextSeen, other?: TextSeen) {
    const rows = gridRows(seen.text);
    if (rows) return grid(rows, other ? gridRows(other.text) ?? [] : null);
    const pairs = matchLines(seen.text.split("\n"), other ? other.text.split("\n") : null);
    const drawn = pairs.map(([line, before]) => markedLine(line, before));
    const node = el("div", { class: "words" }, ...drawn.map((d) => d.node));
    return { node, differences: drawn.reduce((sum, d) => sum + d.differences, 0) };
  },
};
