// One renderer per kind of observation. Another modality is one file here and one line below.
import { el } from "../dom";
import type { Seen } from "../data";
import { frames } from "./frames";
import { state } from "./state";
import { text } from "./text";
import { tree } from "./tree";

export interface Renderer<S extends Seen> {
  // `seen` alone, or with what differs from `other` marked; says in words how much differs.
  draw(seen: S, other?: S): { node: HTMLElement; differences: number };
}

const RENDERERS: { [K in Seen["kind"]]: Renderer<never> } = { text, state, tree, frames };

export function draw(seen: Seen, other: Seen | undefined, label: string): HTMLElement {
  const comparable = other !== undefined && other.kind === seen.kind ? other : undefined;
  const { node, differences } = RENDERERS[seen.kind].draw(seen as never, comparable as never);
  const told = comparable === undefined ? "" : differences ? `, ${differences} different` : ", the same";
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", `${label}${told}: ${seen.kind === "frames" ? "frames" : seen.text.slice(0, 500)}`);
  return el("div", { class: "seen" }, node);
}
