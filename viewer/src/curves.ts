// The curves of a training run: one small chart per figure, raw values thin, their running mean thick.
import { el, short, svg } from "./dom";
import type { Curve } from "./data";

const W = 260, H = 90;

function smoothed(values: number[]): number[] {
  const reach = Math.max(1, Math.floor(values.length / 20));
  return values.map((_, n) => {
    const some = values.slice(Math.max(0, n - reach), n + reach + 1);
    return some.reduce((a, b) => a + b, 0) / some.length;
  });
}

function chart(curve: Curve): HTMLElement {
  const low = Math.min(...curve.values), high = Math.max(...curve.values);
  const x = (n: number) => (n / Math.max(curve.values.length - 1, 1)) * (W - 4) + 2;
  const y = (v: number) => H - 3 - ((v - low) / (high - low || 1)) * (H - 6);
  const path = (values: number[]) => values.map((v, n) => `${x(n).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const label = `${curve.name}: from ${short(curve.values[0])} to ${short(curve.values.at(-1))}, between ${short(low)} and ${short(high)}, over ${curve.values.length} steps`;
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label },
    svg("polyline", { points: path(curve.values), class: "raw" }), svg("polyline", { points: path(smoothed(curve.values)), class: "smooth" }));
  return el("figure", {}, drawing as unknown as Node, el("figcaption", {}, curve.name, el("small", {}, ` ${short(low)} … ${short(high)}, last ${short(curve.values.at(-1))}`)));
}

export function curvePanel(curves: Curve[]): HTMLElement | null {
  if (!curves.length) return null;
  return el("details", { class: "curves", open: true }, el("summary", {}, `Curves (${curves.length})`),
    el("div", { class: "charts" }, ...curves.map(chart)));
}
