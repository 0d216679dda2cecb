// The page of runs: its charts and their content. html_report.cpp writes the data that this script reads:
//   runs        [{name, curves (page_curves.h), switches, held (page_history.h)}]
//   comparison  [{title, axis, reference, rows: [{name, value, low, high, seeds}]}] (page_comparison.h)

const {runs} = data;
const single = runs.length === 1;
const many = runs.length > colours.length;  // then the buttons show the colours: legends would exceed the charts
const axes = {
  tokens: {key: "tokens", label: "training tokens", format: exact_count, incrs: steps_of_counts},
  time: {key: "seconds", label: "training time", format: duration, exact: clock, incrs: steps_of_seconds},
  steps: {key: "step", label: "steps", format: (value) => value.toLocaleString("en"), incrs: steps_of_counts},
};
let axis = axes.tokens;
const hidden = new Set();  // indices of runs that the user has hidden

// ---- series ----

const precise = (value) => value === 0 ? "0" : +value.toPrecision(4) + "";
const text_of = {
  loss: (value) => value.toFixed(4),
  share: (value) => +(100 * value).toPrecision(3) + " %",
  rate: (value) => value ? (+value.toPrecision(4)).toExponential() : "0",
};
const shown = () => runs.map((run, i) => ({...run, i})).filter(({i}) => !hidden.has(i));
const named = (run, name) => single ? name : name ? `${run.name}: ${name}` : run.name;

// The series for a run's curve, or none if its log lacks the curve.
function series_of(run, curve_name, name, options = {}) {
  const curve = run.curves[curve_name];
  if (!curve) return [];
  const look = single ? {colour: "--c0"} : look_of(run.i);
  return [{name: named(run, name), x: curve[axis.key], y: curve[options.list ?? "value"], ...look, ...options}];
}

// A curve with and without smoothing for a single run; only the smoothed curve for several runs.
function smoothed(run, curve, name, options = {}) {
  const raw = single ? series_of(run, curve, name, {...options, width: 1, opacity: 0.4}) : [];
  return [...raw, ...series_of(run, curve, single ? `${name}, smoothed` : "", {...options, list: "smoothed"})];
}

function noise_scale(run) {
  const curve = run.curves.noise_scale;
  if (!curve) return [];
  const number = (value) => value === null ? "unknown" : count(value);
  const interval = (i) => curve.high[i] === null ? `at least ${number(curve.low[i])}`
                                                 : `${number(curve.low[i])} to ${number(curve.high[i])}`;
  if (many) return series_of(run, "noise_scale", "φ");
  return [
    ...series_of(run, "noise_scale", "95 % interval", {band: true, list: "low", low: curve.low, high: curve.high,
                                                       value: interval, reach: [0.05, 1]}),
    ...series_of(run, "noise_scale", single ? "noise scale" : "φ", {width: 2}),
    ...series_of(run, "critical_batch", single ? "critical batch" : "B_c", {
      dash: [7, 4], width: 1.5, ...(single ? {colour: "--c1"} : {})}),
    ...single ? series_of(run, "global_batch", "global batch", {kind: "steps", colour: "--c2", dash: [2, 3]}) : []];
}

// The held-out losses of a run's sources.
function losses_of_sources(run) {
  return (run.curves.held_out_sources ?? []).map((curve, i) => (
    {name: curve.name, x: curve[axis.key], y: curve.value, dots: true, width: 1, ...look_of(i)}));
}

// The layouts of all runs, as steps between them. Lines of several runs are drawn next to each other.
function layout_chart() {
  const names = [...new Set(runs.flatMap((run) => run.curves.layout?.value ?? []))].sort().reverse();
  const rows = folded(names, group.place.clientWidth);
  const lines = Math.max(1, ...rows.map((name) => name.split("\n").length));
  const series = shown().flatMap((run) => {
    const list = run.curves.layout?.value.map((name) => names.indexOf(name));
    const shift = single ? 0 : 0.5 * ((run.i + 0.5) / runs.length - 0.5);
    return list ? series_of(run, "layout", "layout", {kind: "steps", width: 3})
        .map((one) => ({...one, y: list.map((level) => level - shift), value: (i) => names[list[i]]})) : [];
  });
  return {title: "Layout", unit: "data, tensor and pipeline parallelism", wide: true,
          height: 70 + (8 + 18 * lines) * names.length, y: {names: rows, format: String}, series};
}

// ---- switches ----

const switch_text = (run, one) => [
  `${single ? "" : run.name + ", "}after step ${one.step}: ${one.change}`,
  ...one.reason ? [one.reason] : [], ...one.moved ? [] : [one.outcome]];

const moments = (run) => run.switches.map((one) => ({
  x: one[axis.key], label: one.label, colour: single ? "--c1" : look_of(run.i).colour, lines: switch_text(run, one)}));

// ---- charts ----

const whole = (value) => String(Math.round(value));

function charts_of() {
  const of = (make) => shown().flatMap(make);
  const plain = (curve, name, options) => of((run) => series_of(run, curve, single ? name : "", options));
  const marks = of(moments).sort((a, b) => a.x - b.x);
  const ticks = of((run) => run.held[axis.key].map((x) => ({x, colour: single ? "--quiet" : look_of(run.i).colour})));
  const charts = [
    {title: "Loss", unit: "nats per token", wide: true, y: {format: text_of.loss}, series: [
      ...of((run) => single ? smoothed(run, "loss", "training", {reach: [0, 0.95]})
                            : series_of(run, "loss", "training", {list: "smoothed", width: 1.25, reach: [0, 0.95]})),
      ...of((run) => series_of(run, "held_out_loss", "held-out", {
        dots: true, width: 1, ...(single ? {colour: "--c1"} : {})}))]},
    ...single && runs[0].curves.held_out_sources ? [
      {title: "Held-out loss of each source", unit: "nats per token; of many sources the first", wide: true,
       y: {format: text_of.loss}, series: of(losses_of_sources)}] : [],
    {title: "Batch and micro-batch", unit: "sequences; numbers: switches; strokes below: decisions that held",
     wide: true, height: 240, marks, ticks, y: {log: 2, format: whole, axis: whole}, series: [
      ...of((run) => series_of(run, "global_batch", single ? "global batch" : "B", {kind: "steps", width: 2.25})),
      ...of((run) => series_of(run, "micro_batch", single ? "micro-batch" : "b", {
        kind: "steps", width: 1.25, ...(single ? {colour: "--c2"} : {})}))]},
    {...layout_chart()},
    {title: "Noise scale and critical batch", unit: "sequences", wide: true, y: {log: 10, format: count},
     series: of(noise_scale)},
    {title: "Goodput", unit: "= throughput × efficiency; sequences/s that count in full",
     y: {zero: true, format: precise}, series: of((run) => smoothed(run, "goodput", "Goodput"))},
    {title: "Throughput", unit: "sequences/s", y: {zero: true, format: precise},
     series: of((run) => smoothed(run, "throughput", "throughput"))},
    {title: "Statistical efficiency", unit: "what a sequence counts", y: {zero: true, format: text_of.share,
                                                                          axis: (v) => Math.round(100 * v) + " %"},
     series: plain("efficiency", "efficiency")},
    {title: "Learning rate", y: {zero: true, format: text_of.rate}, series: plain("learning_rate", "learning rate")},
    {title: "Gradient norm", unit: "before clipping", y: {zero: true, format: precise},
     series: of((run) => smoothed(run, "gradient_norm", "gradient norm", {reach: [0, 0.99]}))},
    {title: "Step time", unit: "seconds", y: {zero: true, format: precise}, series: [
      ...of((run) => smoothed(run, "step_seconds", "measured", {reach: [0, 0.99]})),
      ...single ? of((run) => series_of(run, "predicted_step_seconds", "predicted", {
        colour: "--c1", dash: [7, 4], width: 1.25})) : []]},
    {title: "Pauses", unit: "seconds without training, at a switch", y: {zero: true, format: precise},
     series: plain("pause", "pause", {kind: "stems"})}];
  const lines = marks.map(({x, colour}) => ({x, colour}));
  return charts.map((chart) => ({lines: chart.marks ? [] : lines, legend: !many, ...chart}));
}

// ---- the page ----

const group = new ChartGroup(document.getElementById("charts"), axis);

function draw_runs() {
  const charts = charts_of();
  group.axis = axis;
  group.draw(charts.filter((chart) => chart.series.length));
  const lacking = charts.filter((chart) => !chart.series.length).map((chart) => chart.title.toLowerCase());
  document.getElementById("lacking").textContent =
      lacking.length && !hidden.size ? `Not in the logs, and so not drawn: ${lacking.join(", ")}.` : "";
}

function axis_buttons() {
  const buttons = button_group("Horizontal axis", Object.keys(axes).map((name) => ({
    text: name, title: `curves over ${axes[name].label}`, press: () => choose(name)})));
  const choose = (name) => {
    if (axes[name] !== axis) group.window = null;
    axis = axes[name];
    [...buttons.children].forEach((button) => button.setAttribute("aria-pressed", axes[button.textContent] === axis));
    draw_runs();
  };
  choose("tokens");
  return buttons;
}

function run_buttons() {
  const buttons = button_group("Runs", runs.map((run, i) => ({text: run.name, title: `show or hide ${run.name}`,
    press: (button) => {
      if (!hidden.delete(i)) hidden.add(i);
      button.setAttribute("aria-pressed", !hidden.has(i));
      draw_runs();
    }})));
  buttons.className = "runs";
  [...buttons.children].forEach((button, i) => {
    const {colour, dash} = look_of(i);
    const swatch = element("span", {class: "swatch"});
    swatch.style.borderTop = `3px ${dash.length === 0 ? "solid" : dash.length === 4 ? "double"
                                                     : dash[0] > 4 ? "dashed" : "dotted"} var(${colour})`;
    button.prepend(swatch);
    button.setAttribute("aria-pressed", "true");
  });
  return buttons;
}

document.getElementById("controls").append(axis_buttons(), zoom_buttons(group));
if (!single) document.getElementById("controls").before(run_buttons());
keep_fresh(group.place, draw_runs);

// ---- the comparison of an experiment ----

// One row per arm: the mean over the seeds with its 95 % interval, and the individual seeds.
function draw_comparison(measure, place) {
  const {rows, reference, axis: label} = measure;
  const levels = rows.map((_, i) => rows.length - 1 - i);
  const values = rows.flatMap((row) => [row.value, row.low, row.high, ...row.seeds]).filter((v) => v !== null);
  const [low, high] = [Math.min(reference, ...values), Math.max(reference, ...values)];
  const margin = 0.05 * (high - low || 1);
  const short = (name) => name.length > 26 ? name.slice(0, 25) + "…" : name;
  const digits = (value) => String(+value.toPrecision(9));
  const chart = new ChartGroup(place, {label, format: digits, range: [low - margin, high + margin]});
  const draw = () => chart.draw([{
    title: measure.title, unit: "mean and 95 % interval; small: seed by seed", wide: true, legend: false,
    height: 90 + 40 * rows.length,
    lines: [{x: reference, colour: "--text"}], y: {names: rows.map((row) => short(row.name)).reverse()},
    // One series per arm, because several arms may have the same value.
    series: rows.flatMap((row, i) => [
      {name: row.name, kind: "points", colour: "--c0", x: [row.value], y: [levels[i]], left: [row.low],
       right: [row.high], size: 9},
      {name: "its seeds", kind: "points", colour: "--c1", x: [...row.seeds].sort((a, b) => a - b),
       y: row.seeds.map(() => levels[i] - 0.22), size: 5}])}]);
  draw();
  keep_fresh(place, draw);
}

data.comparison.forEach((measure, i) => {
  const place = element("div", {class: "wide", id: `interval-${i}`});
  document.getElementById("intervals").append(place);
  draw_comparison(measure, place);
});
