// Which episodes are listed: by world, ending, stop reason, and what deserves a look.
import { el } from "./dom";
import { ENDED, type Episode, ending, masked, wrong } from "./data";

type Test = (episode: Episode) => boolean;

const LOOKS: [string, string, Test][] = [
  ["all", "anything", () => true],
  ["wrong", "a wrong prediction", (e) => e.steps.some(wrong)],
  ["masked", "a masked verdict", masked],
  ["flat", "group without variance", (e) => e.flat],
  ["invalid", "an invalid action", (e) => e.steps.some((step) => step.info["valid"] === false)],
];

function choice(id: string, label: string, options: [string, string][], changed: () => void): [HTMLElement, () => string] {
  const select = el("select", { id, change: changed }, ...options.map(([value, name]) => el("option", { value }, name)));
  return [el("label", {}, el("span", {}, label), select), () => select.value];
}

function counted(episodes: Episode[], key: (episode: Episode) => string): [string, string][] {
  const counts = new Map<string, number>();
  for (const episode of episodes) counts.set(key(episode), (counts.get(key(episode)) ?? 0) + 1);
  const found = [...counts].sort().map(([name, n]): [string, string] => [name, `${Object.hasOwn(ENDED, name) ? ENDED[name as keyof typeof ENDED] : name.replaceAll("_", " ")} (${n})`]);
  return [["", "all"], ...found];
}

export function makeFilters(episodes: Episode[], changed: () => void): { node: HTMLElement; list: () => Episode[] } {
  const keys: [string, string, (episode: Episode) => string][] = [
    ["filter-world", "World", (e) => e.world], ["filter-ending", "Ending", ending], ["filter-stop", "Stop", (e) => e.stop],
  ];
  const selects = keys.map(([id, label, key]) => [key, ...choice(id, label, counted(episodes, key), changed)] as const);
  const looks = LOOKS.map(([value, name, test]): [string, string] => [value, `${name} (${episodes.filter(test).length})`]);
  const [lookNode, look] = choice("filter-look", "With", looks, changed);
  const words = el("input", { id: "filter-words", type: "search", placeholder: "seed, instance, policy, note", input: changed });
  const node = el("form", { class: "filters", "aria-label": "Filters", submit: (event) => event.preventDefault() },
    ...selects.map(([, label]) => label), lookNode, el("label", {}, el("span", {}, "Find"), words));
  const list = () => {
    const test = LOOKS.find(([value]) => value === look())![2];
    const wanted = words.value.trim().toLowerCase();
    const found = (e: Episode) => !wanted || `${e.seed} ${e.instance} ${e.policy} ${e.note}`.toLowerCase().includes(wanted);
    return episodes.filter((e) => test(e) && found(e) && selects.every(([key, , value]) => !value() || value() === key(e)));
  };
  return { node, list };
}
