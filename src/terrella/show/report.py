"""Write one report about any number of runs: `report.md`, `report.html` and `report.pdf`.

All three are made from the same sections (`report_sections.py`), and every number comes from a
run's own files.
    write_report(load_report_data([Path("runs/a-0"), Path("runs/a-1")]), Path("report"))
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.core.files import write_atomic
from terrella.show.certificate_plots import plain_labels
from terrella.show.report_data import ReportData
from terrella.show.report_sections import Section, new_figure, sections
from terrella.show.tables import markdown_table, markdown_text, text_table

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;"
    "color:#1a1a1a}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}"
    "img{max-width:100%}div{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){"
    "body{background:#15181c;color:#e8eaed}td,th{border-color:#363c44}img{background:#fff}}"
)
PDF_LINES = 62
PDF_COLUMNS = 118
"""Size of a page of text in the PDF."""


def write_report(data: ReportData, folder: Path, *, title: str = "Report") -> list[Path]:
    """Write the report in three formats; the pictures of the Markdown file lie beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown, page, pdf = (folder / f"report.{suffix}" for suffix in ("md", "html", "pdf"))
    with plain_labels():
        parts = sections(data)
        pictures = {part.title: _png(part.picture) for part in parts if part.picture is not None}
        for name, picture in pictures.items():
            write_atomic(folder / _file_name(name), picture)
        write_atomic(markdown, _markdown(title, parts).encode())
        write_atomic(page, _html(title, parts, pictures).encode())
        write_atomic(pdf, _pdf(title, parts))
    return [markdown, page, pdf]


def _png(drawing: Any) -> bytes:
    file = io.BytesIO()
    drawing.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in title.lower()) + ".png"


def _markdown(title: str, parts: Sequence[Section]) -> str:
    lines = [f"# {markdown_text(title)}", ""]
    for part in parts:
        name = markdown_text(part.title)
        lines += [f"## {name}", "", *(f"{markdown_text(note)}\n" for note in part.notes)]
        if part.picture is not None:
            lines += [f"![{name}]({_file_name(part.title)})", ""]
        lines += [*markdown_table(part.header, part.rows), ""]
    return "\n".join(lines)


def _html(title: str, parts: Sequence[Section], pictures: Mapping[str, bytes]) -> str:
    body = "".join(_html_section(part, pictures.get(part.title)) for part in parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{body}</html>"
    )


def _html_section(part: Section, picture: bytes | None) -> str:
    title = html.escape(part.title)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in part.notes)
    image = ""
    if picture is not None:
        encoded = base64.b64encode(picture).decode()
        image = f'<img alt="{title}" src="data:image/png;base64,{encoded}">'
    return f"<h2>{title}</h2>{notes}{image}{_html_table(part)}"


def _html_table(part: Section) -> str:
    if not part.rows:
        return ""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in part.header)
    rows = ""
    for row in part.rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        rows += f"<tr>{cells}</tr>"
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _pdf(title: str, parts: Sequence[Section]) -> bytes:
    """Pages of text with the tables, then the pictures, one per page."""
    from matplotlib.backends.backend_pdf import PdfPages

    lines = [title, "=" * len(title), ""]
    for part in parts:
        lines += [part.title, "-" * len(part.title)]
        for note in part.notes:
            lines += textwrap.wrap(note, PDF_COLUMNS)
        lines += ["", *text_table(part.header, part.rows, columns=PDF_COLUMNS), ""]
    file = io.BytesIO()
    with PdfPages(file, metadata={"CreationDate": None}) as pages:
        for start in range(0, len(lines), PDF_LINES):
            page = new_figure(8.27, 11.69)
            text = "\n".join(lines[start : start + PDF_LINES])
            style = {"va": "top", "family": "monospace", "fontsize": 7}
            page.text(0.06, 0.96, text, **style)
            pages.savefig(page)
        for part in parts:
            if part.picture is not None:
                pages.savefig(part.picture)
    return file.getvalue()
