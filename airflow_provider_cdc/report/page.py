"""A report as one self-contained page: nothing in it is loaded from elsewhere, and no name is taken for markup."""

from __future__ import annotations

import re
from html import escape

from airflow_provider_cdc.report.chart import to_svg
from airflow_provider_cdc.report.facts import Report, Section

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 70rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.7rem; border-bottom: 1px solid #ddd; vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 4rem; white-space: pre-line; } p { color: #555; }
/* Names of tables and steps are broken last. */
td:first-child { overflow-wrap: break-word; max-width: 24rem; }
/* A phone shows each row as a card: its cells one below the other, each with the heading of its column. */
@media (max-width: 45rem) {
  table, tbody, tr, td { display: block; } thead { display: none; }
  tr { border: 1px solid #bbb; border-radius: 0.4rem; margin: 0 0 0.7rem; padding: 0.2rem 0.5rem; }
  td { border: 0; padding: 0.15rem 0; } td:empty { display: none; }
  td[data-label]::before { content: attr(data-label) ": "; color: #777; }
}
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #e6e6e6; } p { color: #aaa; } }
"""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def to_html(report: Report) -> str:
    """The page as HTML, which a phone can show, too."""
    body = "\n".join(map(_html, report.sections))
    title = escape(report.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Were a name taken for markup in spite of all, it could load and run nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def to_markdown(report: Report) -> str:
    """The page as Markdown."""
    return f"# {_plain(report.title)}\n\n" + "\n".join(map(_markdown, report.sections))


def _html(section: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
    head = f"<thead><tr>{head}</tr></thead>" if any(section.header) else ""
    rows = "\n".join(f"<tr>{''.join(map(_cell, section.header, row))}</tr>" for row in section.rows)
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    table = f'<div class="wide"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'
    return f"<h2>{escape(section.title)}</h2>\n{to_svg(section.bars)}\n{table}\n{note}"


def _cell(heading: str, text: str) -> str:
    label = f' data-label="{escape(heading)}"' if heading else ""
    return f"<td{label}>{escape(text)}</td>"


def _markdown(section: Section) -> str:
    lines = [f"## {_plain(section.title)}", ""]
    lines += [_row(section.header), _row(["---"] * len(section.header), plain=False)]
    lines += [_row(row) for row in section.rows]
    return "\n".join([*lines, "", *([_plain(section.note), ""] if section.note else [])])


def _row(cells: object, *, plain: bool = True) -> str:
    assert isinstance(cells, (list, tuple))
    return f"| {' | '.join(_plain(cell) if plain else cell for cell in cells)} |"


def _plain(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
