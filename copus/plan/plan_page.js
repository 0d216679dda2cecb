// The page of a plan: plan_chart.cpp writes the data that it reads, and says what they are.

const batches = data.batches;
const speed = (value) => value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
const {fastest} = data;

function plan_chart() {
  const bar = (i) => `${speed(fastest.low[i])} to ${speed(fastest.high[i])}`;
  return {
    title: "Throughput by global batch",
    unit: "tokens per second and GPU; bars: one standard deviation, in the main common to all layouts; dotted: where " +
          "the fastest layout changes",
    wide: true, height: 420, y: {zero: true, format: speed},
    lines: data.changes.map((x) => ({x, colour: "--quiet"})),
    series: [
      {name: "the fastest, give or take", kind: "points", colour: "--quiet", x: fastest.batches, y: fastest.speeds,
       low: fastest.low, high: fastest.high, value: bar, size: 11},
      ...data.layouts.map((layout, i) => ({
        name: layout.name, x: layout.batches, y: layout.speeds, dots: true, width: 2, ...look_of(i)}))]};
}

// The same as shares of the fastest at each batch: layouts are often a few percent apart.
function distance_chart() {
  const best = (i) => fastest.speeds[fastest.batches.indexOf(batches[i])];
  const percent = (value) => `${+(100 * value).toPrecision(3)} %`;
  return {
    title: "Behind the fastest", unit: "share of the fastest layout's throughput that is missing", wide: true,
    height: 260, y: {format: percent, axis: percent},
    series: data.layouts.map((layout, i) => ({
      name: layout.name, x: batches, dots: true, width: 2, ...look_of(i),
      y: layout.speeds.map((value, k) => value === null ? null : value / best(k) - 1)}))};
}

const group = new ChartGroup(document.getElementById("charts"), {
  label: "global batch, sequences", format: (value) => String(Math.round(value)), log: 2, splits: batches,
  range: [batches[0] / 1.15, batches[batches.length - 1] * 1.15]});
const draw_plan = () => group.draw([plan_chart(), distance_chart()]);

draw_plan();
document.getElementById("controls").append(zoom_buttons(group));
keep_fresh(group.place, draw_plan);
