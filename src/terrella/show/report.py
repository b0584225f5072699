"""One report of any number of runs: `report.md`, `report.html` (one file) and `report.pdf`, from the same sections.

Curves with intervals over seeds, figures beside the baselines that need no model, certificates, reproductions with
their claims, cost, and the keys in which configs differ. Nothing in it was typed by hand.
    write_report(gather([Path("runs/a-0"), Path("runs/a-1")]), Path("report"))
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.errors import MissingExtraError
from terrella.core.stats import student_t95
from terrella.show import certificate as certificate_page
from terrella.show.certificate import BLUE, GREEN, GREY, ORANGE, PURPLE
from terrella.show.facts import Facts, Figure, Group, config_differences

COLOURS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (GREY, "-"))


@dataclass(frozen=True)
class Section:
    """A heading, what to read, a table and a picture, each of which may be missing."""

    title: str
    notes: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: Any = field(default=None, compare=False)
    """A matplotlib figure."""


def sections(facts: Facts) -> list[Section]:
    """Everything that is known, in the order of reading."""
    made = [_training(facts.groups), *(_curves(group) for group in facts.groups if group.runs[0].curve)]
    made += [part for name, table in facts.tables.items() for part in _reproduction(name, table)]
    made += [_certificate(name, found) for name, found in facts.certificates.items()]
    made += [
        Section(f"Measured: {name}", (), ("", ""), tuple((key, f"{value:.4g}") for key, value in found.items()))
        for name, found in facts.measured.items()
    ]
    made += [_stores(facts.stores), _cost(facts.costs), _configs(facts.configs)]
    return [section for section in made if section.rows or section.picture is not None]


# --- what is said -------------------------------------------------------------------------------------------------


def _training(groups: Sequence[Group]) -> Section:
    rows = []
    for group in groups:
        rows.append((group.name, "after training", str(group.after), _each(group, "after"), _seeds(group.after)))
        rows.append((group.name, "before training", str(group.before), _each(group, "before"), _seeds(group.before)))
        rows += [(group.name, f"baseline: {name}", str(f), "", _seeds(f)) for name, f in group.baselines().items()]
    note = "Held-out questions; mean over seeds with Student's 95% interval. Each seed's own mean stands beside it."
    return Section("Trained with verdicts", (note,), ("run", "", "reward", "by seed", "seeds"), tuple(rows))


def _each(group: Group, part: str) -> str:
    return ", ".join(f"{getattr(run, part)['mean']:.3f}" for run in group.runs)


def _seeds(figure: Figure) -> str:
    return str(figure.n)


def _reproduction(name: str, table: Mapping[str, Any]) -> list[Section]:
    metrics = [key for key in next(iter(table["arms"].values()), {}) if key.startswith("pass@")]
    rows = [
        (
            arm,
            *(_over(found[key]) for key in metrics),
            str(len(found["seeds"])),
            f"{sum(found.get('world_steps', [])):,}",
        )
        for arm, found in table["arms"].items()
    ]
    known = table.get("known") or {}
    if known:
        random = [f"{known['random'][key[5:]]:.3f}" if key[5:] in known["random"] else "" for key in metrics]
        optimal = [f"{known['optimal']:.3f}" if key == "pass@1" else "" for key in metrics]
        rows = [("random play (exact)", *random, "", ""), ("optimal play (exact)", *optimal, "", ""), *rows]
    claims = [
        (f"{claim['better']} {'not below' if claim['not_below'] else 'above'} {claim['worse']}, pass@{claim['k']}",
         *_judged(claim)) for claim in table["claims"]
    ]  # fmt: skip
    paper = tuple(f"Published, {key}: {value}" for key, value in table.get("paper", {}).items())
    return [
        Section(f"Reproduction {name}: arms", paper, ("arm", *metrics, "seeds", "world steps"), tuple(rows)),
        Section(f"Reproduction {name}: claims", ("Paired on the same instances.",),
                ("claim", "difference", "verdict", "seeds"), tuple(claims)),
    ]  # fmt: skip


def _over(found: Mapping[str, Any]) -> str:
    low, high = found["interval"] or (None, None)
    return str(Figure(found["mean"], low, high, len(found["per_seed"])))


def _judged(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    if claim["holds"] is None:
        return "", "not run", "0"
    interval = f"{claim['mean']:+.3f} [{claim['low']:+.3f}, {claim['high']:+.3f}]"
    return interval, "holds" if claim["holds"] else "DOES NOT HOLD", str(claim["seeds"])


def _certificate(name: str, found: Any) -> Section:
    tables = certificate_page.figure_tables(found.sections)
    rows = tuple((key, value) for _, part in tables for key, value in part)
    verdict = "certified" if found.certified else f"NOT CERTIFIED: {'; '.join(found.reasons)}"
    return Section(f"Certificate of {name}", (verdict,), ("", ""), rows, certificate_page.figure(found.sections))


def _stores(stores: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = tuple(
        (name, f"{counts['episodes']:,}", f"{counts['transitions']:,}", f"{counts['successes']:,}",
         f"{sum(counts['masked'].values()):,}") for name, counts in stores.items()
    )  # fmt: skip
    return Section("Episodes", (), ("store", "episodes", "transitions", "successes", "masked"), rows)


def _cost(costs: Mapping[str, Mapping[str, float]]) -> Section:
    names = tuple(dict.fromkeys(name for cost in costs.values() for name in cost))
    rows = tuple((run, *(_amount(cost.get(name), name) for name in names)) for run, cost in costs.items())
    return Section("Cost", ("Summed over the seeds of a run.",), ("", *names), rows)


def _amount(value: float | None, name: str) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name == "hours" else f"{value:,.0f}"


def _configs(configs: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = tuple((key, *cells) for key, cells in config_differences(configs)) if len(configs) > 1 else ()
    return Section("Where the configs differ", (), ("key", *configs), rows)


# --- pictures -----------------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure that belongs to no window."""
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise MissingExtraError("plots", "the pictures of a report") from error
    return Drawing(figsize=(width, height), layout="constrained")


def _curves(group: Group) -> Section:
    """Reward by step: the mean over seeds, its interval, each seed as a thin line; baselines as levels."""
    values = _smooth(group.curves())
    steps, mean = np.arange(1, values.shape[1] + 1), values.mean(0)
    drawing = new_figure(8, 3.6)
    axes = drawing.subplots()
    if len(values) > 1:
        half = student_t95(len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
        axes.fill_between(steps, mean - half, mean + half, color=BLUE, alpha=0.18, label="95% over seeds")
        axes.plot(steps, values.T, color=BLUE, linewidth=0.6, alpha=0.5)
    axes.plot(steps, mean, color=BLUE, linewidth=2, label=f"reward, {len(values)} seed{'s' * (len(values) > 1)}")
    for (name, level), (colour, line) in zip(group.baselines().items(), COLOURS[1:], strict=False):
        axes.axhline(level.mean, color=colour, linestyle=line, linewidth=1.2, label=name)
    axes.set(xlabel="step", ylabel="reward (training questions)", title=group.name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="best")
    note = f"Training reward of {group.name} by step, running mean over a twentieth of the run."
    return Section(f"Curve of {group.name}", (note,), picture=drawing)


def _smooth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    reach = max(1, values.shape[1] // 20)
    return np.array([[row[max(0, n - reach) : n + reach + 1].mean() for n in range(len(row))] for row in values])


# --- files --------------------------------------------------------------------------------------------------------


def write_report(facts: Facts, folder: Path, *, title: str = "Report") -> list[Path]:
    """The report in three forms; pictures of the Markdown one lie beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = sections(facts)
    pictures = {part.title: _png(part.picture) for part in parts if part.picture is not None}
    written = [folder / f"report.{form}" for form in ("md", "html", "pdf")]
    written[0].write_text(_markdown(title, parts, pictures, folder), "utf-8")
    written[1].write_text(_html(title, parts, pictures), "utf-8")
    _write_pdf(title, parts, written[2])
    return written


def _png(drawing: Any) -> bytes:
    file = io.BytesIO()
    drawing.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in title.lower()) + ".png"


def _markdown(title: str, parts: Sequence[Section], pictures: Mapping[str, bytes], folder: Path) -> str:
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"## {part.title}", "", *(f"{note}\n" for note in part.notes)]
        if part.title in pictures:
            name = _file_name(part.title)
            (folder / name).write_bytes(pictures[part.title])
            lines += [f"![{part.title}]({name})", ""]
        lines += [*markdown_table(part.header, part.rows), ""]
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; a bar inside a cell is escaped."""
    if not rows:
        return []
    lines = [header, ["---"] * len(header), *rows]
    return [
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    ]


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#1a1a1a}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd;"
    "vertical-align:top}img{max-width:100%}div{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){body{background:#15181c;color:#e8eaed}td,th{border-color:#363c44}"
    "img{background:#fff}}"
)


def _html(title: str, parts: Sequence[Section], pictures: Mapping[str, bytes]) -> str:
    body = [f"<h1>{html.escape(title)}</h1>"]
    for part in parts:
        body.append(f"<h2>{html.escape(part.title)}</h2>" + "".join(f"<p>{html.escape(n)}</p>" for n in part.notes))
        if part.title in pictures:
            encoded = base64.b64encode(pictures[part.title]).decode()
            body.append(f'<img alt="{html.escape(part.title)}" src="data:image/png;base64,{encoded}">')
        if part.rows:
            head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in part.header)
            rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in part.rows)
            body.append(f"<div><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>{''.join(body)}</html>"
    )


LINES, COLUMNS = 62, 118
"""Of a page of text in the PDF."""


def _write_pdf(title: str, parts: Sequence[Section], path: Path) -> None:
    """Pages of text with the tables, then the pictures, a page each."""
    from matplotlib.backends.backend_pdf import PdfPages

    lines = [title, "=" * len(title), ""]
    for part in parts:
        lines += [part.title, "-" * len(part.title), *(w for note in part.notes for w in textwrap.wrap(note, COLUMNS))]
        lines += ["", *_text_table(part.header, part.rows), ""]
    with PdfPages(path, metadata={"CreationDate": None}) as pages:
        for start in range(0, len(lines), LINES):
            page = new_figure(8.27, 11.69)
            page.text(0.06, 0.96, "\n".join(lines[start : start + LINES]), va="top", family="monospace", fontsize=7)
            pages.savefig(page)
        for part in parts:
            if part.picture is not None:
                pages.savefig(part.picture)


def _text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    table = [header, *rows]
    most = max(10, COLUMNS // len(header) - 2)
    widths = [min(most, max(len(str(row[n])) for row in table)) for n in range(len(header))]
    lines: list[str] = []
    for row in table:
        wrapped = [textwrap.wrap(str(cell), width) or [""] for cell, width in zip(row, widths, strict=True)]
        for n in range(max(map(len, wrapped))):
            cells = [(cell[n] if n < len(cell) else "").ljust(w) for cell, w in zip(wrapped, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
    return lines
