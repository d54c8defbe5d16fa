"""The form of a page: its head, its style, and the script that draws."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from gossipgrad.show import cell


def escaped(value: Any) -> str:
    """A value as text of a page."""
    return html.escape(str(value))


def in_script(text: str) -> str:
    """JSON that ends no script element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], about: str = "") -> str:
    """A table; cells that are no `Markup` are escaped, numbers are on the right."""

    def line(values: Sequence[Any], kind: str) -> str:
        made = []
        for value in values:
            number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
            shown = value if isinstance(value, Markup) else escaped(cell(value))
            made.append(f"<{kind}{' class=number' if number else ''}>{shown}</{kind}>")
        return f"<tr>{''.join(made)}</tr>\n"

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<div class=wide><table{about}>{top}<tbody>{body}</tbody></table></div>\n"


class Markup(str):
    """HTML that is not escaped."""


def section(title: str, body: str) -> str:
    """A part of the page; "" without a body."""
    return f"<section><h2>{escaped(title)}</h2>\n{body}</section>\n" if body else ""


# The policy allows the page's own content and no request.
HEAD = """\
<meta name='viewport' content='width=device-width, initial-scale=1'>
<meta name='color-scheme' content='light dark'>
<meta http-equiv='Content-Security-Policy' content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
"""

STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2430;--soft:#5b6675;--line:#dfe3e8;--link:#2a6cb0}
@media (prefers-color-scheme:dark){:root{--back:#12161c;--card:#1b2129;--text:#e3e8ee;--soft:#9aa6b4;--line:#323b47;
--link:#7db4ea}}
:root.printing{color-scheme:light;--back:#fff;--card:#fff;--text:#1c2430;--soft:#4b5563;--line:#dfe3e8;--link:#2a6cb0}
*{box-sizing:border-box}
body{margin:0;padding:20px clamp(12px,3vw,40px) 40px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main{max-width:1500px;margin:0 auto}
h1{font-size:1.55rem;line-height:1.25;margin:.2em 0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2em 0 .6em}
h3{font-size:.95rem;margin:1em 0 .4em;overflow-wrap:anywhere}
.facts,.note{color:var(--soft);margin:.2em 0 .6em;overflow-wrap:anywhere}
.note{font-size:.85rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:14px}
figure{margin:0;padding:12px;background:var(--card);border:1px solid var(--line);border-radius:8px;min-width:0;
break-inside:avoid}
figcaption{font-weight:600;overflow-wrap:anywhere}
.plot{min-height:60px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin-top:1em}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;color:var(--soft);
font-size:.82rem;line-height:1.3}
.tiles b{display:block;font-size:1.3rem;color:var(--text);font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.86rem;background:var(--card);font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:600;color:var(--soft);max-width:13em;vertical-align:bottom}
td.number{text-align:right;white-space:nowrap}
.pairs{width:max-content}
.pairs td{text-align:left;overflow-wrap:anywhere;min-width:5em;max-width:min(32em,60vw)}
.pairs td:first-child{color:var(--soft);white-space:nowrap}
.pairs tr>:first-child{position:sticky;left:0;background:var(--card)}
.runs{width:max-content;min-width:100%}
.runs th{min-width:5em;max-width:8em}
.runs label{white-space:nowrap;cursor:pointer}
.runs input{vertical-align:-2px;margin:0 6px 0 0}
.line{display:inline-block;width:22px;border-top:3px solid;vertical-align:4px;margin-right:6px}
.line.dash,.line.longdash{border-top-style:dashed}
.line.dashdot{border-top-style:dotted}
summary{cursor:pointer;color:var(--link);margin:.4em 0}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;margin:.3em 0;
white-space:pre-wrap;overflow-x:auto;font-size:.86rem}
pre span{white-space:pre}
code{overflow-wrap:anywhere;font-size:.86rem}
@media print{body{padding:0;font-size:12px}h2,h3{break-after:avoid}th,td{padding:2px 4px}table{font-size:10px}
.runs{width:auto;min-width:0}.runs th{min-width:0;font-weight:400}.pairs td{max-width:22em}.runs input{display:none}
.wide{overflow:visible}}
.printing body{width:720px}
.printing .grid{grid-template-columns:1fr 1fr}
"""

SCRIPT = """
(() => {
  const root = document.documentElement, hidden = new Set();
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();
  const draw = () => figures.forEach((figure, i) => {
    const place = document.getElementById("figure-" + i), layout = structuredClone(figure.layout);
    const text = colour("--text"), line = colour("--line"), card = colour("--card");
    for (const key of ["xaxis", "yaxis"]) {
      layout[key] = {automargin: true, gridcolor: line, linecolor: line, zerolinecolor: line, ...layout[key]};
      layout[key].title = {standoff: 8, ...layout[key].title};
    }
    const base = {
      height: 300, width: place.clientWidth, margin: {l: 50, r: 12, t: 14, b: 44}, hovermode: "closest",
      paper_bgcolor: card, plot_bgcolor: card,
      font: {color: text, size: 12, family: getComputedStyle(document.body).fontFamily},
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: card,
        traceorder: "normal"},
      hoverlabel: {bgcolor: card, bordercolor: line, font: {color: text}, align: "left", namelength: -1},
    };
    const shown = figure.data.map(one => ({...one, visible: !hidden.has(one.meta)}));
    Plotly.react(place, shown, {...base, ...layout}, {displayModeBar: false});
  });
  let soon = 0;
  draw();
  addEventListener("resize", () => {
    clearTimeout(soon);
    soon = setTimeout(draw, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  for (const box of document.querySelectorAll("[data-run]")) box.addEventListener("change", () => {
    hidden[box.checked ? "delete" : "add"](Number(box.dataset.run));
    draw();
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach(one => one.open = true);
    root.classList.add("printing");
    draw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    closed.forEach(one => one.open = false);
    draw();
  });
})();
"""
