"use strict";
// The charts of a page: uPlot, in the page's colours. A ChartGroup draws charts over one horizontal axis, in a window
// that they share. The axis is {label, format: a value as text, exact: a longer text for values that `format` does not
// distinguish, incrs: possible distances of labels, splits: or their positions, log: base, range}. A chart is
//   title, unit, wide, height
//   y       {log: base, zero: whether it begins at 0, format: a value as text, names: of the values 0, 1, ...}
//   series  [{name, x, y, low, high, ...}]; x ascends, and a null y means unknown:
//             kind    "line", "steps" (a value has held since the previous point), "points" or "stems" (from zero)
//             colour, width, dash, opacity; dots: whether a line shows its points; value(i): text for the legend
//             reach   [from, to]: quantiles of the values that the vertical axis has to include; null: none
//             low, high: ends of an interval at each point, drawn as error bars, or with `band` as an area; null: none
//             left, right: ends of an interval along the horizontal axis
//   marks   [{x, label, colour, lines: text of the mark}], numbered buttons above a line through the chart
//   lines   [{x, colour}]: lines without a button
//   ticks   [{x, colour}]: short strokes at the bottom

const data = JSON.parse(document.getElementById("data").textContent);

// ---- text ----

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  node.append(...children);
  return node;
}

function with_unit(value, digits) {
  for (const [size, unit] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= size) return +(value / size).toPrecision(digits) + unit;
  }
  return String(+value.toPrecision(digits));
}
const count = (value) => with_unit(value, 3);
const exact_count = (value) => with_unit(value, 9);

function duration(seconds) {
  if (Math.abs(seconds) < 60) return +seconds.toPrecision(3) + " s";
  const [large, small, units] = seconds >= 86400 ? [86400, 3600, [" d", " h"]]
      : seconds >= 3600 ? [3600, 60, [" h", " min"]] : [60, 1, [" min", " s"]];
  const total = Math.round(seconds / small), rest = total % (large / small);
  return Math.floor(total / (large / small)) + units[0] + (rest ? " " + rest + units[1] : "");
}

// Seconds as clock time, to the millisecond.
function clock(seconds) {
  const total = Math.round(1000 * seconds), days = Math.floor(total / 86400e3);
  const parts = [Math.floor(total / 3600e3) % 24, Math.floor(total / 60e3) % 60, Math.floor(total / 1000) % 60];
  const [hours, minutes, whole] = parts.map((part) => String(part).padStart(2, "0"));
  const rest = total % 1000 ? "." + String(total % 1000).padStart(3, "0").replace(/0+$/, "") : "";
  return `${days ? days + " d " : ""}${hours}:${minutes}:${whole}${rest}`;
}

// ---- colours ----

// Colours that most colour-blind people can distinguish (Okabe & Ito 2008), darker on white and lighter on black. After
// the last colour, the first one follows with another dash, so that no two lines look the same.
const colours = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const look_of = (i) => ({colour: colours[i % colours.length],
                         dash: dashes[Math.floor(i / colours.length) % dashes.length]});
const paint = (name, opacity = 1) => {
  const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return opacity === 1 ? colour : colour + Math.round(255 * opacity).toString(16).padStart(2, "0");
};

// ---- axes ----

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

// The values of a list that a window shows: those of its points and, for curves, interpolated values at the window's
// ends.
function seen_in(series, list, [from, to]) {
  const {x, kind} = series;
  const seen = list.filter((value, i) => value !== null && x[i] >= from && x[i] <= to);
  if (kind === "points" || kind === "stems") return seen;
  for (const end of [from, to]) {
    const after = x.findIndex((one) => one > end), before = after - 1;
    if (before < 0 || list[before] === null || list[after] === null) continue;
    const share = kind === "steps" ? 1 : (end - x[before]) / (x[after] - x[before]);
    seen.push(list[before] + share * (list[after] - list[before]));
  }
  return seen;
}

// Breaks names after commas into lines that leave room for a chart of this width.
function folded(names, width) {
  const most = Math.max(22, Math.floor(0.2 * width / 7));  // letters
  return names.map((name) => name.split(/(?<=,)/).reduce((text, part) => {
    const line = text.slice(text.lastIndexOf("\n") + 1);
    return text + (line && line.length + part.length > most ? "\n" : "") + part;
  }, ""));
}

// The ends of the vertical axis for the visible part of the chart's series.
function value_range(chart, plot, range) {
  if (chart.y.names) return [-0.6, chart.y.names.length - 0.4];
  let low = Infinity, high = -Infinity;
  chart.series.forEach((series, i) => {
    if (series.reach === null || !plot.series[chart.first[i]].show) return;
    const lists = series.band ? [series.low] : [series.y, series.low, series.high].filter(Boolean);
    const seen = lists.flatMap((list) => seen_in(series, list, range));
    const positive = chart.y.log ? seen.filter((value) => value > 0) : seen;
    if (!positive.length) return;
    const [q_low, q_high] = series.reach ?? [0, 1];
    low = Math.min(low, quantile(positive, q_low));
    high = Math.max(high, quantile(positive, q_high));
  });
  if (!(low <= high)) return chart.y.log ? [1, 10] : [0, 1];
  if (chart.y.log === 2) return [low / 1.3, 1.1 * 2 ** Math.ceil(Math.log2(high))];
  if (chart.y.log) return [low / 1.3, high * 1.3];
  if (chart.y.zero) low = 0;
  if (high <= low) high = low + (Math.abs(low) || 1);
  const margin = 0.06 * (high - low);
  return [chart.y.zero ? 0 : low - margin, high + margin];
}

// Powers of the base; for base 10 also 2 and 5 times these if they are few, and even spacing within a factor of four.
function logarithmic_splits(base, low, high) {
  if (base === 10 && high < 4 * low) {
    const step = [1, 2, 5, 10].map((f) => f * 10 ** Math.floor(Math.log10((high - low) / 5)))
        .find((s) => s * 6 >= high - low);
    const result = [];
    for (let i = Math.ceil(low / step); i * step <= high; ++i) result.push(i * step);
    return result;
  }
  const factors = base === 10 && high <= 1000 * low ? [1, 2, 5] : [1];
  const result = [];
  for (let power = Math.floor(Math.log(low) / Math.log(base)); base ** power <= high; ++power) {
    result.push(...factors.map((factor) => factor * base ** power).filter((v) => v >= low && v <= high));
  }
  const stride = Math.ceil(result.length / 8);
  return result.filter((_, i) => i % stride === 0);
}

// Labels on the axis have as many decimals as are needed to distinguish them.
function split_text(chart, splits) {
  if (chart.y.names) return splits.map((value) => chart.y.names[value] ?? "");
  if (chart.y.log || Math.max(...splits.map(Math.abs)) >= 1e4) return splits.map(chart.y.axis ?? count);
  const largest = Math.max(...splits.map(Math.abs));
  if (largest < 1e-3) return splits.map((value) => value ? (+value.toPrecision(3)).toExponential() : "0");
  const tells_all = (digits) => splits.every((value) => Math.abs(value - value.toFixed(digits)) < 1e-6 * largest);
  const digits = [0, 1, 2, 3, 4, 5].find(tells_all) ?? 6;
  return splits.map((value) => chart.y.axis ? chart.y.axis(value) : value.toFixed(digits));
}

const steps_of_seconds = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600,
                          1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];
const steps_of_counts = [...Array(18).keys()].flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power));
const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

// The labels of a horizontal axis: texts that distinguish the positions and do not overlap.
function horizontal_text(plot, axis, splits) {
  const text = (format) => splits.map((value) => value ? format(value) : "0");
  let texts = text(axis.format);
  if (axis.exact && new Set(texts).size < texts.length) texts = text(axis.exact);
  let end = -Infinity;
  return texts.map((one, i) => {
    const middle = plot.valToPos(splits[i], "x"), half = 3.5 * one.length;  // ample for digits
    if (middle - half < end + 6) return "";
    end = middle + half;
    return one;
  });
}

function axes_of(chart, axis) {
  const common = {stroke: () => paint("--quiet"), font, grid: {stroke: () => paint("--grid"), width: 1},
                  ticks: {stroke: () => paint("--line"), width: 1, size: 5}};
  const horizontal = {...common, space: 84, gap: 4, size: 28, label: axis.label, labelSize: 20, labelGap: 0,
                      labelFont: font, grid: {show: false}, filter: (plot, splits) => splits,
                      values: (plot, splits) => horizontal_text(plot, axis, splits)};
  if (axis.incrs) horizontal.incrs = axis.incrs;
  if (axis.splits) horizontal.splits = () => axis.splits;
  const vertical = {...common, space: chart.wide ? 42 : 34, gap: 4, filter: (plot, splits) => splits,
                    values: (plot, splits) => split_text(chart, splits),
                    size: (plot, values) => {
                      plot.ctx.save();
                      plot.ctx.font = font;
                      const lines = (values ?? []).flatMap((text) => text.split("\n"));
                      const widths = lines.map((text) => plot.ctx.measureText(text).width);
                      plot.ctx.restore();
                      return Math.ceil(Math.max(chart.y.names ? 0 : 34, ...widths)) + 12;
                    }};
  if (chart.y.names) vertical.splits = () => chart.y.names.map((_, i) => i);
  if (chart.y.log) vertical.splits = (plot, side, low, high) => logarithmic_splits(chart.y.log, low, high);
  return [horizontal, vertical];
}

// ---- series ----

// Strokes from zero to every value, for values that belong to single moments.
function stems(plot, index, from, to) {
  const stroke = new Path2D(), [xs, ys] = [plot.data[0], plot.data[index]];
  const bottom = plot.valToPos(plot.scales.y.min, "y", true);
  for (let i = from; i <= to; ++i) {
    if (ys[i] == null) continue;
    const x = plot.valToPos(xs[i], "x", true);
    stroke.moveTo(x, bottom);
    stroke.lineTo(x, plot.valToPos(ys[i], "y", true));
  }
  return {stroke, fill: null, clip: null, band: null, gaps: null, flags: 0};
}

const paths = {line: uPlot.paths.linear(), steps: uPlot.paths.stepped({align: -1}), points: () => null, stems};

// The uPlot form of a series: one line, or two for the ends of a band.
function uplot_series(chart, series) {
  const value = (plot, shown, index, i) => {
    const place = i == null ? -1 : (chart.places[index]?.get(plot.data[0][i]) ?? -1);
    if (place < 0) return "–";
    return series.value ? series.value(place) : series.y[place] === null ? "–" : chart.y.format(series.y[place]);
  };
  const points = series.kind === "points" || series.kind === "stems" || series.dots;
  const line = {label: series.name, kind: series.kind, stroke: () => paint(series.colour, series.opacity),
                width: series.kind === "points" ? 0 : series.width ?? 1.75, dash: series.dash, value,
                paths: paths[series.kind ?? "line"],
                points: {show: points || series.x.length === 1, size: series.size ?? 6, width: 1,
                         stroke: () => paint(series.colour, series.opacity),
                         fill: () => paint(series.colour, series.opacity)}};
  if (!series.band) return [line];
  const end = {...line, width: 0, points: {show: false}, stroke: () => paint(series.colour, 0.3)};
  return [{...end, label: series.name}, {...end, class: "silent"}];
}

// Error bars, next to the points that uPlot draws.
function draw_intervals(chart, plot) {
  const {ctx} = plot, ratio = devicePixelRatio, cap = 4 * ratio;
  const place_x = (value) => plot.valToPos(value, "x", true), place_y = (value) => plot.valToPos(value, "y", true);
  chart.series.forEach((series, index) => {
    if (series.band || !(series.low || series.left) || !plot.series[chart.first[index]].show) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(plot.bbox.left - cap, plot.bbox.top, plot.bbox.width + 2 * cap, plot.bbox.height);
    ctx.clip();
    ctx.beginPath();
    ctx.strokeStyle = paint(series.colour);
    ctx.lineWidth = 1.5 * ratio;
    series.x.forEach((value, i) => {
      if (series.low && series.low[i] !== null && series.high[i] !== null) {
        const x = place_x(value), ends = [place_y(series.low[i]), place_y(series.high[i])];
        ctx.moveTo(x, ends[0]), ctx.lineTo(x, ends[1]);
        for (const y of ends) ctx.moveTo(x - cap, y), ctx.lineTo(x + cap, y);
      }
      if (series.left && series.left[i] !== null && series.right[i] !== null) {
        const y = place_y(series.y[i]), ends = [place_x(series.left[i]), place_x(series.right[i])];
        ctx.moveTo(ends[0], y), ctx.lineTo(ends[1], y);
        for (const x of ends) ctx.moveTo(x, y - cap), ctx.lineTo(x, y + cap);
      }
    });
    ctx.stroke();
    ctx.restore();
  });
}

function draw_lines(chart, plot) {
  const {ctx, bbox} = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = devicePixelRatio;
  const stroke = (at, from, dash, colour) => {
    const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
    ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
    ctx.strokeStyle = paint(colour);
    ctx.beginPath();
    ctx.moveTo(x, from), ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  };
  for (const {x, colour} of [...chart.marks ?? [], ...chart.lines ?? []]) stroke(x, bbox.top, [2, 3], colour);
  for (const {x, colour} of chart.ticks ?? []) stroke(x, bbox.top + bbox.height - 7 * devicePixelRatio, [], colour);
  ctx.restore();
}

// ---- marks ----

function make_marks(chart, plot, card) {
  const tip = card.appendChild(element("div", {class: "tip card", hidden: "", role: "status"}));
  const hide = () => { tip.hidden = true; };
  chart.buttons = (chart.marks ?? []).map((mark) => {
    const button = element("button", {type: "button", class: "mark", "aria-label": mark.lines.join(". ")}, mark.label);
    button.style.setProperty("--mark", `var(${mark.colour})`);
    const show = () => {
      tip.replaceChildren(...mark.lines.map((line, i) => element(i ? "div" : "b", {}, line)));
      tip.hidden = false;
      const place = button.getBoundingClientRect(), frame = card.getBoundingClientRect();
      const left = place.left - frame.left + place.width / 2 - tip.offsetWidth / 2;
      tip.style.left = Math.max(8, Math.min(left, card.clientWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = place.bottom - frame.top + 6 + "px";
    };
    for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, show);
    for (const event of ["mouseleave", "blur"]) button.addEventListener(event, hide);
    button.addEventListener("mousedown", (event) => event.stopPropagation());
    plot.over.append(button);
    return button;
  });
}

// Places the marks at their moments. If they would overlap, the later one becomes a dot without a number.
function place_marks(chart, plot) {
  let last = -Infinity;
  chart.buttons?.forEach((button, i) => {
    const x = plot.valToPos(chart.marks[i].x, "x");
    button.hidden = x < -1 || x > plot.over.clientWidth + 1;
    if (button.hidden) return;
    button.classList.toggle("crowded", x - last < 20);
    button.style.left = x + "px";
    if (x - last >= 20) last = x;
  });
}

// ---- charts ----

// Joins a chart's series on one axis, as uPlot needs them. first[i]: index of series i in the joined table; places:
// maps x to the index in a series' own lists.
function join(chart) {
  const tables = [];
  chart.first = [];
  chart.places = [];
  chart.series.forEach((series) => {
    chart.first.push(tables.length + 1);
    // An area without an end continues beyond the chart.
    const lowest = chart.y.log ? 1e-30 : -1e30;
    const ends = !series.band ? [series.y] : [series.high.map((value) => value ?? 1e30),
                                              series.low.map((value) => Math.max(value ?? lowest, lowest))];
    for (const values of ends) {
      tables.push([series.x, values]);
      chart.places[tables.length] = new Map(series.x.map((x, i) => [x, i]));
    }
  });
  return uPlot.join(tables);
}

// The index of the value that a legend shows for a series: the nearest known value; for steps, the value that holds.
function shown_index(plot, series, hovered, at) {
  const ys = plot.data[series], xs = plot.data[0];
  if (series === 0 || ys[hovered] != null) return hovered;
  let [before, after] = [hovered - 1, hovered + 1];
  while (before >= 0 && ys[before] == null) --before;
  while (after < ys.length && ys[after] == null) ++after;
  if (after >= ys.length) return before >= 0 ? before : hovered;
  if (before < 0 || plot.series[series].kind === "steps") return after;
  return Math.abs(xs[before] - at) <= Math.abs(xs[after] - at) ? before : after;
}

// Shows the last values while there is no pointer.
function show_last(plot) {
  if (plot.cursor.left >= 0) return;
  plot.setLegend({idxs: plot.data.map((list) => {
    let last = list.length - 1;
    while (last > 0 && list[last] == null) --last;
    return last;
  })}, false);
}

class ChartGroup {
  constructor(place, axis, on_zoom = () => {}) {
    this.place = place;
    this.axis = axis;
    this.on_zoom = on_zoom;
    this.plots = [];     // the charts in uPlot's form
    this.window = null;  // [from, to] on the horizontal axis; null: everything
  }

  // Draws these charts instead of the previous ones.
  draw(charts) {
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    this.place.replaceChildren();
    for (const chart of charts) this.add(chart);
    this.zoom_to(this.window);
  }

  whole_range() {
    if (this.axis.range) return this.axis.range;
    const ends = this.plots.flatMap(({data: [xs]}) => xs.length ? [xs[0], xs[xs.length - 1]] : []);
    const [first, last] = [Math.min(...ends), Math.max(...ends)];
    if (!(first < last)) return [first - 0.5, first + 0.5];
    return [first > 0 && first <= 0.05 * last && !this.axis.log ? 0 : first, last];
  }

  zoom_to(range) {
    if (!this.plots.length) return;
    const [first, last] = this.whole_range();
    if (range !== null) {
      range = [Math.max(first, range[0]), Math.min(last, range[1])];
      if (!(range[0] < range[1])) return;
      if (range[0] === first && range[1] === last) range = null;
    }
    this.window = range;
    const [min, max] = range ?? [first, last];
    for (const plot of this.plots) plot.setScale("x", {min, max});
    this.on_zoom(range !== null);
  }

  // Zooms by a factor around the centre, and moves by a fraction of the window. For keyboard and touch, which cannot
  // drag.
  zoom_by(factor, move = 0) {
    const [first, last] = this.whole_range(), [from, to] = this.window ?? [first, last];
    const shift = Math.max(first - from, Math.min(move * (to - from), last - to));  // clamped to the axis, same width
    const middle = (from + to) / 2 + shift, half = (to - from) / 2 * factor;
    this.zoom_to([middle - half, middle + half]);
  }

  add(chart) {
    const {axis} = this;
    const card = element("section", {class: `chart card${chart.wide ? " wide" : ""}`, "aria-label": chart.title},
                         element("header", {}, element("h2", {}, chart.title), element("span", {}, chart.unit ?? "")));
    this.place.append(card);
    const joined = join(chart);
    const top = chart.marks?.length ? 24 : 8;
    const plot = new uPlot({
      width: Math.max(200, card.clientWidth - 24),
      height: (chart.height ?? (chart.wide ? 300 : 210)) + top,
      padding: [top, 14, 0, 0],
      scales: {x: {time: false, ...(axis.log ? {distr: 3, log: axis.log} : {}),
                   range: (plot, low, high) => [low, high]},
               y: {...(chart.y.log ? {distr: 3, log: chart.y.log} : {}),
                   range: (plot) => value_range(chart, plot, this.window ?? [-Infinity, Infinity])}},
      axes: axes_of(chart, axis),
      series: [{label: axis.label, value: (plot, value) => value == null ? "–" : (axis.exact ?? axis.format)(value)},
               ...chart.series.flatMap((series) => uplot_series(chart, series))],
      bands: chart.series.flatMap((series, i) => series.band
          ? [{series: [chart.first[i], chart.first[i] + 1], fill: () => paint(series.colour, 0.18)}] : []),
      cursor: {y: false, drag: {x: true, y: false, setScale: false}, dataIdx: shown_index, points: {size: 7},
               sync: {key: this.place.id, setSeries: false, scales: ["x", null],
                      filters: {pub: (type) => type === "mousemove" || type === "mouseleave"}},
               bind: {dblclick: () => () => { this.zoom_to(null); return null; }}},
      legend: {show: chart.legend ?? true, markers: {
        width: 2, dash: (plot, i) => plot.series[i].dash?.length ? "dashed" : "solid"}},
      hooks: {
        drawAxes: [(plot) => draw_lines(chart, plot)],
        draw: [(plot) => { draw_intervals(chart, plot); place_marks(chart, plot); }],
        setCursor: [show_last],
        ready: [show_last],
        setSelect: [(plot) => {
          const {left, width} = plot.select;
          if (width > 0) this.zoom_to([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
        }],
      },
    }, joined, card);
    plot.chart = chart;
    make_marks(chart, plot, card);
    place_marks(chart, plot);
    this.plots.push(plot);
  }
}

// Redraws if the page's width or colours change.
function keep_fresh(place, draw_again) {
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    width = place.clientWidth;
    requestAnimationFrame(draw_again);
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_again);
}

// A row of buttons {text, title, press}.
function button_group(label, buttons) {
  const group = element("div", {role: "group", "aria-label": label});
  for (const {text, title, press} of buttons) {
    const button = element("button", {type: "button", title: title ?? text, "aria-label": title ?? text}, text);
    button.addEventListener("click", () => press(button));
    group.append(button);
  }
  return group;
}

const zoom_buttons = (group) => button_group("Zoom", [
  {text: "+", title: "zoom in", press: () => group.zoom_by(0.5)},
  {text: "−", title: "zoom out", press: () => group.zoom_by(2)},
  {text: "←", title: "to the left", press: () => group.zoom_by(1, -0.5)},
  {text: "→", title: "to the right", press: () => group.zoom_by(1, 0.5)},
  {text: "all", title: "the whole range", press: () => group.zoom_to(null)}]);
