// The risk ribbon: one bar per step, as high as its risk; the line is what the certificate accepts. It is also a slider.
import { el, short, svg } from "./dom";
import { type Episode, wrong } from "./data";

const HEIGHT = 44, PLAIN = 12; // without any risk it only shows where one is

function told(episode: Episode, at: number): string {
  const step = episode.steps[at - 1];
  if (!step) return "the beginning";
  const risk = step.risk === null ? "" : `, risk ${short(step.risk)}`;
  return `step ${at} of ${episode.steps.length}: ${step.action}${risk}${wrong(step) ? ", predicted wrongly" : ""}`;
}

export function ribbon(episode: Episode, at: number, threshold: number | null, go: (at: number) => void): HTMLElement {
  const width = 100 / Math.max(episode.steps.length, 1);
  const known = episode.steps.some((step) => step.risk !== null);
  const tall = known ? HEIGHT : PLAIN;
  const marks = episode.steps.flatMap((step, n) => {
    const height = step.risk === null ? 3 : Math.max(3, step.risk * (HEIGHT - 4));
    const doubted = step.predicted?.trust ? step.predicted.trust !== "trusted" : threshold !== null && step.risk! > threshold;
    const kind = step.risk === null ? "unknown" : doubted ? "risky" : "safe";
    const bar = svg("rect", { x: `${n * width + width * 0.1}%`, y: tall - height, width: `${width * 0.8}%`, height, class: `bar ${kind}${n + 1 === at ? " here" : ""}` });
    const made: SVGElement[] = [bar];
    if (wrong(step)) made.push(svg("circle", { cx: `${(n + 0.5) * width}%`, cy: 6, r: 3.5, class: "miss" }));
    if (n + 1 === at) made.push(svg("rect", { x: `${n * width}%`, y: 0, width: `${width}%`, height: tall, class: "cursor" }));
    return made;
  });
  if (known && threshold !== null && threshold >= 0) {
    const y = HEIGHT - threshold * (HEIGHT - 4);
    marks.push(svg("line", { x1: 0, x2: "100%", y1: y, y2: y, class: "threshold" }));
  }
  const node = el("div", {
    class: known ? "ribbon" : "ribbon plain", role: "slider", tabindex: 0, "aria-label": known ? "Step, with its risk" : "Step", "aria-valuemin": 0,
    "aria-valuemax": episode.steps.length, "aria-valuenow": at, "aria-valuetext": told(episode, at),
    click: ((event: MouseEvent) => {
      const box = node.getBoundingClientRect();
      go(Math.ceil(((event.clientX - box.left) / box.width) * episode.steps.length));
    }) as EventListener,
  }, svg("svg", { width: "100%", height: tall, "aria-hidden": "true" }, ...marks) as unknown as Node);
  return node;
}
