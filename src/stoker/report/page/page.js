// Draws the charts again for another stretch of time, and shows the values at a moment. The page
// is whole without it. Everything comes from the element `data`; nothing is asked of the network.
"use strict";

(() => {
  const BOX_WIDTH = 1000, BOX_HEIGHT = 100, TOP = 14, HEIGHT = 78;
  const TICK_STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
    7200, 10800, 21600, 43200, 86400];
  const DRAG = 5;          // pixels; less is a click
  const LETTER = 6;        // pixels, about
  const SVG = "http://www.w3.org/2000/svg";

  const data = JSON.parse(document.getElementById("data").textContent);
  const whole = [0, data.end];
  // Closer than this there is nothing more to see.
  const closest = Math.min(data.end, Math.max(data.end / 2000, 0.2));
  let shown = whole.slice();
  let moment = null;

  const charts = [...document.querySelectorAll(".plot")].map((plot) => {
    const told = data.charts[Number(plot.dataset.chart)];
    const svg = plot.querySelector("svg");
    const cursor = svg.appendChild(make("line", { y1: TOP, y2: TOP + HEIGHT, class: "cursor" }));
    cursor.style.display = "none";
    return {
      plot, svg, cursor,
      unit: told.unit, top: told.top, curves: told.curves, times: data.times[told.times],
      areas: [...svg.querySelectorAll(".area")],
      lines: [...svg.querySelectorAll(".curves .line")],
      bands: [...svg.querySelectorAll(".band")],
      names: [...svg.querySelectorAll(".band-name")],
      ticks: svg.querySelector(".times"),
      values: [...plot.parentElement.querySelectorAll(".value")],
    };
  });

  function make(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  // -- drawing -------------------------------------------------------------------------

  const share = (time) => (time - shown[0]) / (shown[1] - shown[0]);
  const x = (time) => (BOX_WIDTH * share(time)).toFixed(1);
  const y = (value, top) => (BOX_HEIGHT * (1 - Math.min(value / top, 4))).toFixed(1);
  const percent = (part) => `${(100 * part).toFixed(3)}%`;

  // The first and the last point to draw: one more than what is seen, on either side.
  function reach(times) {
    let first = times.findIndex((time) => time >= shown[0]);
    if (first < 0) first = times.length - 1;
    let last = first;
    while (last < times.length - 1 && times[last] <= shown[1]) last += 1;
    return [Math.max(0, first - 1), last];
  }

  function groups(chart, curve) {
    const [first, last] = reach(chart.times);
    const found = [[]];
    for (let i = first; i <= last; i += 1) {
      if (curve.middle[i] === null) found.push([]);
      else found[found.length - 1].push(i);
    }
    return found.filter((group) => group.length);
  }

  function linePath(chart, curve) {
    return groups(chart, curve).map((group) => {
      const points = group.map((i) => `${x(chart.times[i])} ${y(curve.middle[i], chart.top)}`);
      return `M${points.join("L")}${points.length === 1 ? "h.1" : ""}`;
    }).join("");
  }

  function areaPath(chart, curve) {
    if (!curve.low) return "";
    return groups(chart, curve).map((group) => {
      const above = group.map((i) => `${x(chart.times[i])} ${y(curve.high[i], chart.top)}`);
      const below = group.map((i) => `${x(chart.times[i])} ${y(curve.low[i], chart.top)}`);
      return `M${above.concat(below.reverse()).join("L")}Z`;
    }).join("");
  }

  function tickTimes(width) {
    const wanted = (shown[1] - shown[0]) / Math.max(2, Math.min(5, width / 80));
    let step = TICK_STEPS.find((each) => each >= wanted) || 86400;
    while (step < wanted) step *= 2;
    const times = [];
    for (let i = Math.ceil(shown[0] / step); i * step <= shown[1]; i += 1) times.push(i * step);
    return [times, step];
  }

  function clock(time, step) {
    const two = (value) => String(Math.floor(value)).padStart(2, "0");
    if (step >= 86400) return `${Math.round(time / 8640) / 10} d`;
    if (time < 60 && step < 60) return `${time.toFixed(step < 1 ? 1 : 0)} s`;
    const minutes = Math.floor(time / 60 + 1e-9), seconds = Math.max(0, time - 60 * minutes);
    if (step >= 900) return `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
    const head = minutes >= 60 ? `${Math.floor(minutes / 60)}:${two(minutes % 60)}` : `${minutes}`;
    return `${head}:${step < 1 ? seconds.toFixed(1).padStart(4, "0") : two(seconds)}`;
  }

  function drawTicks(chart) {
    const [times, step] = tickTimes(chart.plot.clientWidth);
    chart.ticks.replaceChildren(...times.map((time) => {
      const part = share(time);
      const text = make("text", {
        x: percent(part), y: TOP + HEIGHT + 12,
        "text-anchor": part < 0.04 ? "start" : part > 0.96 ? "end" : "middle",
      });
      text.textContent = time === 0 ? "0" : clock(time, step);
      return text;
    }));
  }

  function drawBands(chart, width) {
    data.bands.forEach(([start, end, name], i) => {
      const left = Math.min(1, Math.max(0, share(start)));
      const right = Math.min(1, Math.max(0, share(end)));
      chart.bands[i].setAttribute("x", percent(left));
      chart.bands[i].setAttribute("width", percent(right - left));
      chart.names[i].setAttribute("x", percent(left));
      const room = Math.floor(((right - left) * width - 6) / LETTER);
      chart.names[i].textContent = room >= name.length ? name : room >= 4 ? `${name.slice(0, room - 1)}…` : "";
    });
  }

  function draw() {
    for (const chart of charts) {
      chart.curves.forEach((curve, i) => {
        chart.lines[i].setAttribute("d", linePath(chart, curve));
        chart.areas[i].setAttribute("d", areaPath(chart, curve));
      });
      drawTicks(chart);
      drawBands(chart, chart.plot.clientWidth);
    }
    const step = (shown[1] - shown[0]) / 100;
    const isWhole = shown[0] === whole[0] && shown[1] === whole[1];
    const span = `${clock(shown[0], step)} – ${clock(shown[1], step)}`;
    document.getElementById("window").textContent = isWhole ? "the whole run" : span;
    point(moment);
  }

  // -- the values at a moment ----------------------------------------------------------

  function nearest(times, time) {
    let low = 0, high = times.length - 1;
    while (low < high) {
      const half = (low + high) >> 1;
      if (times[half] < time) low = half + 1; else high = half;
    }
    return low > 0 && time - times[low - 1] < times[low] - time ? low - 1 : low;
  }

  function number(value) {
    const size = Math.abs(value);
    return size >= 99.5 ? value.toFixed(0) : size >= 9.95 ? value.toFixed(1) : String(Number(value.toPrecision(3)));
  }

  function valueText(chart, curve, i) {
    const value = curve.middle[i];
    if (value === null || value === undefined) return "unknown";
    const text = `${number(value)} ${chart.unit}`;
    if (!curve.low || number(curve.low[i]) === number(curve.high[i])) return text;
    return `${text} (${number(curve.low[i])}–${number(curve.high[i])})`;
  }

  function point(time) {
    moment = time;
    const part = time === null ? -1 : share(time);
    const isSeen = part >= 0 && part <= 1;
    for (const chart of charts) {
      chart.cursor.style.display = isSeen ? "" : "none";
      if (isSeen) {
        chart.cursor.setAttribute("x1", percent(part));
        chart.cursor.setAttribute("x2", percent(part));
      }
      const i = nearest(chart.times, time ?? 0);
      chart.values.forEach((element, k) => {
        element.textContent = isSeen ? valueText(chart, chart.curves[k], i) : element.dataset.whole;
      });
    }
    const step = (shown[1] - shown[0]) / 100;
    document.getElementById("moment").textContent = isSeen ? `at ${clock(time, step)}` : "";
  }

  // For a screen reader, which does not see the legend change: only what has the focus speaks.
  function speak(chart) {
    if (moment === null) return;
    const i = nearest(chart.times, moment);
    const said = chart.curves.map((curve) => `${curve.name} ${valueText(chart, curve, i)}`);
    document.getElementById("moment").textContent += `: ${said.join(", ")}`;
  }

  // -- zooming -------------------------------------------------------------------------

  function show(start, end) {
    const length = Math.min(data.end, Math.max(closest, end - start));
    const first = Math.min(Math.max(0, start), data.end - length);
    shown = [first, first + length];
    draw();
  }

  function zoom(factor, around) {
    const middle = around ?? (shown[0] + shown[1]) / 2;
    const length = (shown[1] - shown[0]) * factor;
    show(middle - length * share(middle), middle + length * (1 - share(middle)));
  }

  function act(action) {
    const quarter = (shown[1] - shown[0]) / 4;
    if (action === "in") zoom(0.5, moment);
    else if (action === "out") zoom(2, moment);
    else if (action === "left") show(shown[0] - quarter, shown[1] - quarter);
    else if (action === "right") show(shown[0] + quarter, shown[1] + quarter);
    else show(...whole);
  }

  function timeAt(plot, event) {
    const box = plot.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return shown[0] + part * (shown[1] - shown[0]);
  }

  // To the next or the last point of this chart within what is shown.
  function walk(chart, way) {
    const { times } = chart;
    if (moment === null) return (shown[0] + shown[1]) / 2;
    const i = nearest(times, moment) + way;
    return Math.min(shown[1], Math.max(shown[0], times[Math.min(times.length - 1, Math.max(0, i))]));
  }

  function onKey(chart, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = { "+": "in", "=": "in", "-": "out", "−": "out", 0: "reset" };
    if (event.key in actions) act(actions[event.key]);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const way = event.key === "ArrowLeft" ? -1 : 1;
      if (event.shiftKey) act(way < 0 ? "left" : "right");
      else point(walk(chart, way));
    } else if (event.key === "Home") point(shown[0]);
    else if (event.key === "End") point(shown[1]);
    else if (event.key === "Escape") point(null);
    else return;
    event.preventDefault();
    speak(chart);
  }

  function watch(chart) {
    const { plot, svg } = chart;
    let from = null, choice = null;
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-roledescription", "chart with a time line");
    plot.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. Arrow keys show values, plus and minus zoom, 0 shows the whole run.`);
    const end = () => { choice?.remove(); from = choice = null; };
    plot.addEventListener("keydown", (event) => onKey(chart, event));
    plot.addEventListener("pointermove", (event) => {
      point(timeAt(plot, event));
      if (from === null || Math.abs(event.clientX - from.x) < DRAG) return;
      choice ??= svg.appendChild(make("rect", { y: TOP, height: HEIGHT, class: "choice" }));
      const [low, high] = [from.time, moment].sort((a, b) => a - b);
      choice.setAttribute("x", percent(share(low)));
      choice.setAttribute("width", percent(share(high) - share(low)));
    });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      from = { x: event.clientX, time: timeAt(plot, event) };
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", (event) => {
      const chosen = choice && [from.time, timeAt(plot, event)].sort((a, b) => a - b);
      end();
      if (chosen) show(...chosen);
    });
    plot.addEventListener("pointercancel", end);
    plot.addEventListener("pointerleave", () => { if (from === null) point(null); });
    // A page full of charts must still scroll: the wheel is ours only where it is asked for.
    plot.addEventListener("wheel", (event) => {
      const isWhole = shown[1] - shown[0] >= data.end;
      if (!event.ctrlKey && document.activeElement !== plot) return;
      if (event.deltaY > 0 && isWhole && !event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, timeAt(plot, event));
    }, { passive: false });
  }

  // -- the rest of the page ------------------------------------------------------------

  function switchTheme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  }

  async function copy(button) {
    const text = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      // Not allowed everywhere; then at least it is selected, for Ctrl and C.
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", switchTheme);
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  if (charts.length) {
    document.getElementById("tools").hidden = false;
    for (const button of document.querySelectorAll("#tools button")) {
      button.addEventListener("click", () => act(button.dataset.do));
    }
    charts.forEach(watch);
    draw();
    new ResizeObserver(() => charts.forEach((chart) => drawBands(chart, chart.plot.clientWidth)))
      .observe(document.body);
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
