"""Draws the noise scale of several runs over their consumed samples, as a self-contained SVG. There is one panel for
each learning rate and one colour for each global batch. Lines with bands were measured during training. Points with
error bars were measured at checkpoints: filled points by the reference, hollow points by training's own probe with
fixed weights.
"""

import math

# Colours that remain distinct with every kind of colour vision, and on paper (Okabe and Ito, "Color Universal Design",
# 2008).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
MARKERS = ["M-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0 -9.2 0z", "M-4.2 -4.2h8.4v8.4h-8.4z",
           "M0 -5.6L5.6 0L0 5.6L-5.6 0z", "M0 -5.6L5.2 4L-5.2 4z"]
INTERVAL = ("noise_scale", "noise_scale_low", "noise_scale_high")
PANEL_WIDTH, PANEL_HEIGHT, GAP = 350, 300, 20
LEFT, TOP, BOTTOM, RIGHT = 62, 86, 46, 20
KINDS = ("reference", "held_still")  # of points
MOST_POINTS = 500


def draw(runs: list[dict]) -> str:
    rates = sorted({run["lr"] for run in runs}, reverse=True)
    batches = sorted({run["global_batch"] for run in runs})
    width = LEFT + len(rates) * PANEL_WIDTH + (len(rates) - 1) * GAP + RIGHT
    height = TOP + PANEL_HEIGHT + BOTTOM
    low, high = value_range(runs)
    samples = max(run["curve"][-1]["consumed_samples"] for run in runs)

    def y(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return TOP + PANEL_HEIGHT * (1 - share)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           "<title>Gradient noise scale over training: measured online, with 95 % bands, and at "
           "checkpoints by the reference and with the weights held still</title>",
           f'<rect width="{width}" height="{height}" fill="#fff"/>', *legend(batches),
           f'<text transform="translate(15 {TOP + PANEL_HEIGHT / 2}) rotate(-90)" text-anchor="middle" fill="#333">'
           "noise scale, sequences</text>"]
    for column, rate in enumerate(rates):
        left = LEFT + column * (PANEL_WIDTH + GAP)

        def x(value: float, left: float = left) -> float:
            return left + PANEL_WIDTH * value / samples

        out += grid(left, low, high, samples, x, y, labels=column == 0)
        out.append(f'<text x="{left + PANEL_WIDTH / 2}" y="{TOP - 10}" text-anchor="middle" fill="#333">'
                   f"learning rate {rate:g}</text>")
        panel = [run for run in runs if run["lr"] == rate]
        for run in panel:
            out += curve(run, COLOURS[batches.index(run["global_batch"]) % len(COLOURS)], x, y)
        for run in panel:
            index = batches.index(run["global_batch"])
            for place, kind in enumerate(KINDS, index * len(KINDS)):
                # Runs of equal length have points at the same places, so shift them.
                aside = 7 * (place - (len(batches) * len(KINDS) - 1) / 2)
                out += points(run, kind, index, aside, x, y, high)
    return "\n".join(out + ["</svg>"]) + "\n"


def value_range(runs: list[dict]) -> tuple[float, float]:
    """A range of all values and of the ends of the points' intervals; bands may reach beyond it."""
    values = [point["noise_scale"] for run in runs for point in run["curve"]]
    values += [point[kind][key] for run in runs for point in run["checkpoints"] for kind in KINDS for key in INTERVAL]
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return 1, 10
    return min(known) / 1.3, max(known) * 1.3


def logarithmic_ticks(low: float, high: float) -> list[float]:
    factors = (1, 2, 5) if high < 1000 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10**power for power in powers for factor in factors if low <= factor * 10**power <= high]


def grid(left: float, low: float, high: float, samples: int, x, y, labels: bool) -> list[str]:
    out = []
    for value in logarithmic_ticks(low, high):
        out.append(f'<path d="M{left} {y(value):.1f}h{PANEL_WIDTH}" stroke="#e4e4e4"/>')
        if labels:
            out.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">{value:g}</text>')
    bottom = TOP + PANEL_HEIGHT
    out.append(f'<path d="M{left} {bottom}h{PANEL_WIDTH}" stroke="#999"/>')
    step = 10 ** math.floor(math.log10(samples / 3))
    step *= max(factor for factor in (1, 2, 5) if factor * step <= samples / 3)
    for value in range(0, samples + 1, int(max(step, 1))):
        out.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#555">{value:,}</text>')
    out.append(f'<text x="{left + PANEL_WIDTH / 2}" y="{bottom + 36}" text-anchor="middle" fill="#333">'
               "sequences seen</text>")
    return out


def curve(run: dict, colour: str, x, y) -> list[str]:
    every = max(1, len(run["curve"]) // MOST_POINTS)
    rows = run["curve"][::every] + run["curve"][-1:]
    bounded = [row for row in rows if row["noise_scale"] is not None or (row["noise_scale_low"] or 0) > 0]

    def end(row: dict, key: str) -> str:
        return f"{x(row['consumed_samples']):.1f},{y(math.inf if row[key] is None else row[key]):.1f}"

    band = [end(row, "noise_scale_high") for row in bounded]
    band += [end(row, "noise_scale_low") for row in reversed(bounded)]
    line = [end(row, "noise_scale") for row in rows if row["noise_scale"] is not None]
    return [f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.16"/>',
            f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="1.8"/>']


def points(run: dict, kind: str, index: int, aside: float, x, y, high: float) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    out = []
    for point in run["checkpoints"]:
        value, lower, upper = (point[kind][key] for key in INTERVAL)
        if lower is None:
            continue
        at = x(point["consumed_samples"]) + aside
        top = y(high if upper is None else upper)
        out.append(f'<path d="M{at:.1f} {y(lower):.1f}V{top:.1f}M{at - 4:.1f} {y(lower):.1f}h8'
                   f'{"" if upper is None else f"M{at - 4:.1f} {top:.1f}h8"}" stroke="{colour}" stroke-width="1.6"/>')
        if value is not None:
            out.append(marker(MARKERS[index % len(MARKERS)], at, y(value), colour, hollow=kind == "held_still"))
    return out


def marker(outline: str, x: float, y: float, colour: str, hollow: bool = False) -> str:
    paint = f'fill="#fff" stroke="{colour}" stroke-width="1.6"' if hollow else f'fill="{colour}" stroke="#fff"'
    return f'<path d="{outline}" transform="translate({x:.1f} {y:.1f})" {paint}/>'


def legend(batches: list[int]) -> list[str]:
    out, x = [], LEFT
    for index, batch in enumerate(batches):
        colour = COLOURS[index % len(COLOURS)]
        outline = MARKERS[index % len(MARKERS)]
        out += [f'<path d="M{x} 20h26" stroke="{colour}" stroke-width="8" opacity="0.16"/>',
                f'<path d="M{x} 20h26" stroke="{colour}" stroke-width="1.8"/>',
                marker(outline, x + 40, 20, colour), marker(outline, x + 56, 20, colour, hollow=True),
                f'<text x="{x + 70}" y="24" fill="#333">global batch {batch}</text>']
        x += 190
    out.append(f'<text x="{LEFT}" y="46" fill="#333" font-size="11">line: online; filled: reference; '
               "hollow: online, weights held still</text>")
    return out
