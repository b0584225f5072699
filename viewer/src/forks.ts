// Counterfactuals: another action at this step, what really comes of it, and what the model imagines.
// A static page holds what was computed ahead of time; a live one asks its server, and can go on from there.
import { draw } from "./renderers";
import { el, percent, short } from "./dom";
import type { Episode, Fork, PageData, Result, Seen } from "./data";

function results(data: PageData, title: string, found: Result[], other: Seen | undefined): HTMLElement {
  const seen = (result: Result) => (typeof result.seen === "number" ? data.observations[result.seen]! : result.seen);
  const cards = found.map((result) => el("div", { class: "result" },
    el("p", { class: "quiet" }, `${percent(result.chance)}, reward ${short(result.reward)}${result.terminated ? (result.success ? ", over: succeeded" : ", over") : ""}`),
    draw(seen(result), other, `${title}, chance ${short(result.chance)}`)));
  return el("div", { class: "pane" }, el("h4", {}, title), cards.length ? el("div", { class: "results" }, ...cards) : el("p", { class: "quiet" }, "nothing to show"));
}

export class ForkPanel {
  readonly node = el("section", { class: "panel forks", "aria-label": "Another action" });
  private path: string[] = [];

  constructor(private readonly data: PageData, private readonly episode: Episode, private readonly at: number) {
    this.draw(null, "");
  }

  // The actions that can be tried here; with a live server from any point of a branch.
  private get known(): Fork[] {
    return this.episode.steps[this.at]?.forks ?? [];
  }

  choose(place: number): void {
    const fork = this.known[place];
    if (fork) void this.follow([fork.action]);
  }

  private async follow(path: string[]): Promise<void> {
    this.path = path;
    const fork = this.known.find((one) => path.length === 1 && one.action === path[0]);
    if (fork && (fork.real.length || this.data.live === null)) return this.draw(fork, "");
    this.draw(null, "asking …");
    try {
      const answer = await fetch("fork", {
        method: "POST", headers: { authorization: `Bearer ${this.data.live}`, "content-type": "application/json" },
        body: JSON.stringify({ episode: this.episode.id, step: this.at, actions: path }),
      });
      const body = (await answer.json()) as Fork & { error?: string };
      this.draw(answer.ok ? body : null, answer.ok ? "" : body.error ?? `HTTP ${answer.status}`);
    } catch (error) {
      this.draw(null, `the server does not answer: ${String(error)}`);
    }
  }

  private draw(fork: Fork | null, message: string): void {
    const taken = this.episode.steps[this.at]?.action;
    const begun = this.path.slice(0, -1);
    const buttons = this.known.map((one, n) => el("button", {
      type: "button", class: one.action === this.path.at(-1) ? "chosen" : "", "data-action": one.action,
      click: () => void this.follow([...begun, one.action]), title: `key ${n + 1}`,
    }, one.action, !begun.length && one.action === taken ? " (taken)" : ""));
    const onwards = this.data.live !== null && fork !== null
      ? el("p", {}, "and then: ", ...this.known.map((one) => el("button", { type: "button", class: "then", click: () => void this.follow([...this.path, one.action]) }, one.action)))
      : null;
    const real = fork?.real[0];
    const truth = real && (typeof real.seen === "number" ? this.data.observations[real.seen] : real.seen);
    this.node.replaceChildren(
      el("h3", {}, `What if, at step ${this.at + 1}, instead of ${taken}?`),
      el("div", { class: "actions", role: "group", "aria-label": "Actions to try" }, ...buttons),
      this.path.length > 1 ? el("p", { class: "quiet" }, `after ${begun.join(", ")}`) : "",
      el("p", { class: "quiet", "aria-live": "polite" }, message || (fork?.risk != null ? `risk ${short(fork.risk)} (${fork.trust.replaceAll("_", " ")})` : "")),
      fork ? el("div", { class: "panes" }, results(this.data, "Really", fork.real, undefined), fork.risk === null ? null : results(this.data, "Imagined", fork.imagined, truth)) : "",
      onwards ?? "");
  }
}
