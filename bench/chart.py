"""Draws the results of a GPU benchmark run as an SVG bar chart: python3 bench/chart.py RUN.json > RUN.svg

One bar a shape, its length the rate in TFLOPS; the grey line is the run's own ceiling (e4m3 GEMM for prefill, bf16 GEMM
for decode). Standard library only.
"""

import html
import json
import sys

BAR_HEIGHT = 18
GAP = 8
LABEL_WIDTH = 430
PLOT_WIDTH = 560
VALUE_WIDTH = 190
HEAD = 64
COLOURS = {"prefill": "#2b6cb0", "decode": "#2f855a"}


def section(entries, ceiling, title, y):
    """SVG lines of one group of bars that starts at `y`, and the y below it."""
    lines = [f'<text x="8" y="{y + 14}" font-weight="bold">{html.escape(title)}</text>']
    top = y + 26
    scale = PLOT_WIDTH / max([ceiling] + [entry["tflops"] for entry in entries])
    y = top
    for entry in entries:
        kind = entry["name"].split(":")[0]
        width = max(1.0, entry["tflops"] * scale)
        value = f'{entry["tflops"]:.0f} TFLOPS, {entry["median_us"]:.1f} us'
        lines.append(f'<text x="{LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{html.escape(entry["name"])}</text>')
        lines.append(
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{COLOURS[kind]}"/>'
        )
        lines.append(f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 13}">{value}</text>')
        y += BAR_HEIGHT + GAP
    x = LABEL_WIDTH + ceiling * scale
    lines.append(f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{y - GAP + 4}" stroke="#888" stroke-width="2"/>')
    return lines, y + 16


def chart(run):
    """The whole SVG document of one run."""
    lines, y = [], HEAD
    for kind, key, label in (
        ("prefill", "e4m3_gemm_8192_tflops", "e4m3 GEMM"),
        ("decode", "bf16_gemm_8192_tflops", "bf16 GEMM"),
    ):
        entries = [entry for entry in run["results"] if entry["name"].startswith(kind + ":")]
        if entries:
            ceiling = run["ceilings_before"][key]
            more, y = section(entries, ceiling, f"{kind} (grey line: {label} of this run, {ceiling:.0f} TFLOPS)", y)
            lines += more
    width = LABEL_WIDTH + PLOT_WIDTH + VALUE_WIDTH
    title = f'{run["card"]}, CUDA {run["runtime_cuda"]}, {run["date"]}'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" role="img" '
            'font-family="sans-serif" font-size="13">',
            f"<title>sparse-mla benchmark on {html.escape(title)}</title>",
            f'<rect width="{width}" height="{y}" fill="white"/>',
            f'<text x="8" y="26" font-size="18">sparse-mla, {html.escape(title)}</text>',
            *lines,
            "</svg>",
        ]
    )


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python3 bench/chart.py RUN.json > RUN.svg")
    with open(sys.argv[1], encoding="utf-8") as file:
        print(chart(json.load(file)))


main()
