// One episode, one step: what was seen, what came, what was predicted, what the verdict says.
import { draw } from "./renderers";
import { el, percent, short } from "./dom";
import type { Episode, PageData, Predicted, Step, Verdict } from "./data";
import { ENDED, ending } from "./data";
import { ForkPanel } from "./forks";
import { ribbon } from "./ribbon";
import { tokenPanel } from "./tokens";

function verdictTable(verdict: Verdict): HTMLElement {
  const rows: [string, string][] = [["value", verdict.value === null ? "masked" : short(verdict.value)], ["status", verdict.status],
    ...Object.entries(verdict.parts).map(([name, value]): [string, string] => [name, short(value)])];
  if (verdict.evidence) rows.push(["evidence", verdict.evidence]);
  return el("table", { class: "facts" }, el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
}

function outcome(step: { reward: number; terminated: boolean; truncated?: boolean; success?: boolean }): string {
  const end = step.terminated ? (step.success ? ", over: succeeded" : ", over") : step.truncated ? ", out of steps" : "";
  return `reward ${short(step.reward)}${end}`;
}

function screenshot(episode: Episode, at: number): HTMLElement | null {
  const source = episode.screens?.[at];
  return source === undefined ? null : el("img", { class: "screen", src: source, alt: at ? `the page after step ${at}` : "the page at the beginning" });
}

function pane(title: string, note: string, ...body: (Node | null)[]): HTMLElement {
  return el("div", { class: "pane" }, el("h4", {}, title), el("p", { class: "quiet" }, note), ...body);
}

function predictionPane(data: PageData, predicted: Predicted, step: Step): HTMLElement {
  const real = data.observations[step.seen]!;
  const seen = typeof predicted.seen === "number" ? data.observations[predicted.seen]! : predicted.seen;
  const told = outcome(predicted);
  const same = told === outcome({ ...step, truncated: false, success: step.info["success"] === true });
  const right = predicted.verdict.value === 1 ? "right" : predicted.verdict.value === null ? "masked" : "wrong";
  const value = predicted.verdict.value;
  const how = value && value < 1 ? `${short(value)} of 1` : right; // frames earn partial credit
  return el("div", { class: `pane predicted ${right}` }, el("h4", {}, `Predicted: ${how}`),
    el("p", { class: "quiet" }, same ? told : el("mark", {}, told), `; ${percent(predicted.chance)} by the model`), draw(seen, real, "predicted"));
}

export class EpisodeView {
  readonly node = el("main", { class: "episode", tabindex: -1 });
  private episode: Episode | null = null;
  private forks: ForkPanel | null = null;
  at = 0; // 0 shows the beginning, n what came of step n

  constructor(private readonly data: PageData, private readonly moved: () => void) {}

  show(episode: Episode | null, at: number): void {
    this.episode = episode;
    this.go(at);
  }

  go(at: number): void {
    const episode = this.episode;
    if (!episode) return this.node.replaceChildren(el("p", {}, "No episode fits the filters."));
    this.at = Math.min(Math.max(at, 0), episode.steps.length);
    this.forks = this.at < episode.steps.length && episode.steps[this.at]!.forks ? new ForkPanel(this.data, episode, this.at) : null;
    this.node.replaceChildren(this.heading(episode), this.stepper(episode), this.panes(episode), this.forks?.node ?? "",
      ...(episode.tokens ? [tokenPanel(episode.tokens)] : []));
    this.moved();
  }

  step(by: number): void { this.go(this.at + by); }
  last(): void { this.go(Number.MAX_SAFE_INTEGER); }
  fork(place: number): void { this.forks?.choose(place); }

  private heading(episode: Episode): HTMLElement {
    const facts = [episode.split, `seed ${episode.seed}`, `noise ${episode.noise_seed}`, episode.policy, episode.stop.replaceAll("_", " "), `instance ${episode.instance.slice(0, 12)}`, episode.note];
    return el("header", {}, el("h2", { id: "episode-title" }, `${episode.world} ${episode.id}: ${ENDED[ending(episode)]}`),
      el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")), episode.error ? el("p", { class: "error" }, episode.error) : null,
      el("details", {}, el("summary", {}, `Outcome: ${ENDED[ending(episode)]}${episode.outcome.value === null ? ` (${episode.outcome.status})` : `, value ${short(episode.outcome.value)} of 1`}`), verdictTable(episode.outcome)));
  }

  private stepper(episode: Episode): HTMLElement {
    const button = (name: string, label: string, act: () => void) => el("button", { type: "button", "aria-label": label, title: label, click: act }, name);
    const step = episode.steps[this.at - 1];
    return el("nav", { class: "stepper", "aria-label": "Steps" }, button("«", "First step", () => this.go(0)), button("◀", "Previous step", () => this.step(-1)),
      el("output", { id: "step", "aria-live": "polite" }, step ? `step ${this.at} of ${episode.steps.length}: ${step.action}` : `beginning, ${episode.steps.length} steps`),
      button("▶", "Next step", () => this.step(1)), button("»", "Last step", () => this.last()),
      ribbon(episode, this.at, this.data.threshold, (at) => this.go(at)));
  }

  private panes(episode: Episode): HTMLElement {
    const step = episode.steps[this.at - 1];
    const seen = this.data.observations;
    if (!step) return el("div", { class: "panes" }, pane("Beginning", "what reset showed", screenshot(episode, 0), draw(seen[episode.first]!, undefined, "beginning")));
    const before = seen[this.at > 1 ? episode.steps[this.at - 2]!.seen : episode.first]!;
    const came = { ...step, success: step.info["success"] === true };
    const after = seen[step.seen]!;
    const made = [pane("Before", "", screenshot(episode, this.at - 1), draw(before, undefined, "before")), pane(`After ${step.action}`, outcome(came), screenshot(episode, this.at), draw(after, before, "after, changes marked"))];
    if (step.predicted) made.push(predictionPane(this.data, step.predicted, step));
    const facts = el("div", { class: "pane facts-pane" }, this.facts(step));
    return el("div", { class: "panes" }, ...made, facts);
  }

  private facts(step: Step): HTMLElement {
    const rows: [string, string][] = step.risk === null ? [] : [["risk", short(step.risk)]];
    if (step.predicted) rows.push(["trust", step.predicted.trust.replaceAll("_", " ")]);
    rows.push(...Object.entries(step.info).map(([name, value]): [string, string] => [name, JSON.stringify(value)]));
    const table = el("table", { class: "facts" }, el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
    const verdict = step.predicted ? el("div", {}, el("h4", {}, "Verdict on the prediction"), verdictTable(step.predicted.verdict)) : null;
    return el("div", {}, el("div", {}, el("h4", {}, "Facts"), table), verdict);
  }
}
