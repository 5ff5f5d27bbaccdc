"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const find = (query) => document.querySelector(query);
  const all = (query) => [...document.querySelectorAll(query)];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "hexagon"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
  const FILLINGS = ["full", "open", "dot", "pale"];
  const hidden = [new Set(), new Set()];  // colours and lines that the reader has switched off, by their places
  let panel = 0;
  let printing = false;

  // ------------------------------------------------------------------------------------------------------- colours
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (place) => css(`--c${place % 8}`);
  const here = () => data.panels[panel];
  const value = (group, name) => (group.values[name] || [null])[0];
  const spread = (group, name) => (group.values[name] || [null, null])[1];
  const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)}\u00a0%`;
  const short = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(3)));
  const mix = (hex, part) => hex + Math.round(255 * part).toString(16).padStart(2, "0");
  const blend = (one, other, part) => "#" + [1, 3, 5].map((at) => Math.round(part * parseInt(one.slice(at, at + 2), 16) + (1 - part) * parseInt(other.slice(at, at + 2), 16)).toString(16).padStart(2, "0")).join("");
  const narrow = () => window.innerWidth < 800;
  const wide = () => ({ color: mix(css("--soft"), 0.38), width: 6 });  // the dense network, and what is ideal: no pattern has such a line

  function layout(extra) {
    const axis = { gridcolor: css("--line"), linecolor: css("--soft"), zeroline: false, ticks: "outside", tickcolor: css("--line"), automargin: true, fixedrange: true };
    const base = {
      font: { family: css("--sans"), size: narrow() ? 12 : 13, color: css("--soft") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 52, r: 14, t: 20, b: 44 }, hovermode: "closest", dragmode: false,
      showlegend: false,  // one legend above serves all pictures
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans") } },
    };
    return { ...base, ...extra, xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis } };
  }

  function draw(name, traces, extra) {
    const place = find(`#plot-${name}`);
    const words = find(`#alt-${name}-${panel}`);
    place.setAttribute("aria-label", words ? words.textContent : "");
    place.closest("figure, .card")?.toggleAttribute("hidden", !traces.length);
    if (!traces.length) return;
    if (!place.querySelector(".plot-container")) place.textContent = "";
    const size = { width: place.clientWidth, height: place.clientHeight };  // given, so that paper gets its own
    const dots = traces.filter((trace) => trace.marker?.dot).map((trace) => ({ ...trace, mode: "markers", error_x: {}, error_y: {}, hoverinfo: "skip", hovertemplate: "", marker: { symbol: "circle", color: trace.marker.dot, size: 0.42 * trace.marker.size } }));
    Plotly.react(place, [...traces, ...dots], layout({ ...extra, ...size }), { displayModeBar: false });
  }

  // The metric's own axis: percent ends at 100, and where less is better the axis is turned, so that up is always good.
  const scale = () => (here().metric.percent ? 100 : 1);
  const quality = (group) => scale() * value(group, "quality");
  const told = (group) => scale() * group.told;  // of the kernels whose speed is told
  const said = (x) => (here().metric.percent ? percent(x) : x.toFixed(here().metric.digits));
  function merit(traces) {
    const { axis, percent: share, lower } = here().metric;
    const range = share ? { autorangeoptions: { clipmin: 0, clipmax: 100 } } : lower ? { autorange: "reversed", ...logarithmic(traces, "y") } : { tickformat: ".2f", autorangeoptions: { clipmax: here().metric.name.includes("correlation") ? 1 : undefined } };
    return { title: title(axis), ...range };
  }
  // A logarithmic axis with round numbers on it: equal steps over a small range, 1, 2, 5, 10, ... over a few decades, powers of ten over many.
  function logarithmic(traces, axis) {
    const found = traces.flatMap((trace) => trace[axis]).filter((one) => one > 0);
    const [low, high] = [Math.min(...found) / 1.1, Math.max(...found) * 1.1];
    if (!found.length || high / low > 1e5) return { type: "log", exponentformat: "power" };
    const powers = [], values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
    if (high / low < 4) {
      const size = 10 ** Math.floor(Math.log10((high - low) / 3)), step = size * [5, 2, 1].find((times) => times * size <= (high - low) / 3);
      for (let place = Math.ceil(low / step); place * step <= high; place++) values.push(+(place * step).toPrecision(12));
    } else for (const power of powers) values.push(...(powers.length > 3 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7]).map((digit) => +(digit * 10 ** power).toPrecision(2)));
    return { type: "log", tickvals: values, ticktext: values.map((one) => one.toLocaleString("en", { maximumSignificantDigits: 4 })) };
  }
  const title = (text) => ({ text, font: { size: 13, color: css("--soft") }, standoff: 8 });
  // Colour and shape say what varies most in this study (its pattern, or how weights were chosen); line and filling the other.
  const looks = (mine, place) => {
    const [first, second] = mine.looks[place];
    const several = mine.looks.some((look) => look[1] > 0);
    return { place: first % 8, shape: SYMBOLS[first % 8], filling: FILLINGS[second % 4], dash: DASHES[(several ? second : first) % 8] };
  };
  const style = (place, look = looks(here(), place)) => ({ ...look, color: colour(look.place) });
  const marker = (look, size = 11) => ({
    symbol: look.shape, size, line: { color: look.color, width: size > 8 ? 2 : 1.5 }, dot: look.filling === "dot" ? look.color : "",
    color: look.filling === "full" ? look.color : look.filling === "pale" ? blend(look.color, css("--card"), 0.4) : css("--card"),
  });
  // Bars of one deviation, and none where there is none.
  const bars = (groups, name, times, more) => {
    const array = groups.map((g) => times * spread(g, name(g)) || undefined);
    return { type: "data", array, visible: array.some(Boolean), ...more };
  };
  const seen = (place) => !here().looks[place].some((look, axis) => hidden[axis].has(look));
  const byMethod = (use) => here().methods.flatMap((method, place) => (seen(place) ? use(method, here().groups.filter((group) => group.method === method), style(place)) : []));
  // The sparsities of the study as ticks, where there are few.
  const zeros = () => {
    const values = [...new Set(here().groups.map((g) => +(100 * g.sparsity).toPrecision(4)))].sort((a, b) => a - b);
    return { title: title("zeros, %"), ...(values.length < 9 ? { tickvals: values } : {}) };
  };

  // -------------------------------------------------------------------------------------------------------- legend
  const MARKS = {
    circle: "M22,6a4,4 0 1,1 -8,0a4,4 0 1,1 8,0z", square: "M14,2h8v8h-8z", diamond: "M18,1l5,5l-5,5l-5,-5z", "triangle-up": "M18,1l5,9h-10z", x: "M14,3l1.5,-1.5l2.5,2.5l2.5,-2.5l1.5,1.5l-2.5,2.5l2.5,2.5l-1.5,1.5l-2.5,-2.5l-2.5,2.5l-1.5,-1.5l2.5,-2.5z",
    star: "M18,0l1.6,4h4.2l-3.4,2.6l1.3,4.2l-3.7,-2.6l-3.7,2.6l1.3,-4.2l-3.4,-2.6h4.2z", pentagon: "M18,1l5,3.8l-1.9,6h-6.2l-1.9,-6z", hexagon: "M15,2h6l3,4l-3,4h-6l-3,-4z",
  };
  const STROKES = { solid: "", dash: "7 3", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };

  function swatch(look, paint, line = true) {
    const drawn = (tag, attributes, children) => element(tag, attributes, children, document.createElementNS("http://www.w3.org/2000/svg", tag));
    const fill = { full: paint, pale: `color-mix(in srgb, ${paint} 40%, var(--card))` }[look.filling] || "var(--card)", part = (d, more) => drawn("path", { d, stroke: paint, ...more }, []);
    return drawn("svg", { viewBox: line ? "0 0 36 12" : "12 0 12 12", "aria-hidden": "true", class: `swatch ${look.filling}` }, [
      ...(line ? [part("M0,6h36", { "stroke-width": "2", "stroke-dasharray": STROKES[look.dash] })] : []), part(MARKS[look.shape], { "stroke-width": "1.7", fill }),
      ...(look.filling === "dot" ? [part("M16,6a2,2 0 1,1 4,0a2,2 0 1,1 -4,0z", { stroke: "none", fill: paint })] : []),
    ]);
  }

  // One legend for all pictures: a button for each colour, and one for each line where both vary.
  function legend() {
    const { looks: pairs, legend: names, methods } = here(), both = names[0].length > 1 && names[1].length > 1;
    const button = (axis, place, name) => {
      const look = looks(here(), pairs.findIndex((pair) => pair[axis] === place));
      const plain = both ? (axis ? { ...look, shape: "circle" } : { ...look, filling: "full", dash: "solid" }) : look;
      const made = element("button", { type: "button", "aria-pressed": String(!hidden[axis].has(place)), title: "Show or hide it in every picture" }, [swatch(plain, axis && both ? "var(--soft)" : `var(--c${look.place})`), name]);
      made.addEventListener("click", () => {
        if (hidden[axis].has(place)) hidden[axis].delete(place); else hidden[axis].add(place);
        made.setAttribute("aria-pressed", String(!hidden[axis].has(place)));
        pictures();
      });
      return made;
    };
    const group = (axis) => element("div", {}, names[axis].map((name, place) => button(axis, place, methods.length === names[axis].length ? methods[place] : name)));
    const main = names[0].length >= names[1].length ? 0 : 1;
    find("#legend").replaceChildren(...(both ? [group(0), group(1)] : [group(main)]));
  }
  const timed = (groups) => has(groups, "quality").filter((group) => group.faster !== null);
  const has = (groups, ...names) => groups.filter((group) => names.every((name) => value(group, name) !== null));

  // ------------------------------------------------------------------------------------------------------- pictures
  function accuracy() {
    const traces = byMethod((method, groups, look) => {
      const known = has(groups, "quality");
      return known.length ? [{
        name: method, mode: "lines+markers", cliponaxis: false, x: known.map((g) => 100 * g.sparsity), y: known.map(quality),
        error_y: bars(known, () => "quality", scale(), { thickness: 1.4, width: 4, color: look.color }), line: { color: look.color, width: 2.4, dash: look.dash }, marker: marker(look),
        customdata: known.map((g) => [g.seeds === 1 ? "1 seed" : `${g.seeds} seeds`, said(value(g, "quality")) + (spread(g, "quality") === null ? "" : ` ± ${said(spread(g, "quality"))}`)]),
        hovertemplate: "<b>" + method + "</b><br>%{x:.4g} % zeros<br>%{customdata[1]} " + here().metric.name + "<br>%{customdata[0]}<extra></extra>",
      }] : [];
    });
    const dense = here().dense, axis = merit(traces), close = clipped();
    if (close) { Object.assign(axis, { autorange: false, autorangeoptions: undefined }, close.axis); traces.forEach((trace) => { trace.cliponaxis = true; }); }
    find("#how-accuracy").textContent = [
      `Each ${new Set(here().groups.map((g) => g.sparsity)).size > 1 ? "line" : "mark"} is one way to choose the weights that go${has(here().groups, "quality_integers").length ? ", in float32 kernels" : ""}.`, dense === null ? "" : "The wide grey line is the dense network.",
      here().groups.some((g) => spread(g, "quality")) ? "Bars are one standard deviation over seeds." : "", close ? `Below the picture: ${close.count === 1 ? "1 network that is" : `${close.count} networks that are`} ${here().metric.lower ? "over three times worse than" : "closer to guessing than to"} the dense one.` : "",
    ].filter(Boolean).join(" ");
    const lines = dense === null ? [] : [{ type: "line", layer: "below", xref: "paper", x0: 0, x1: 1, y0: scale() * dense, y1: scale() * dense, line: wide() }];
    const notes = dense === null ? [] : [{ xref: "paper", x: 1, xshift: 4, y: here().metric.lower ? Math.log10(dense) : scale() * dense, yanchor: "middle", xanchor: "left", align: "left", showarrow: false, text: `dense<br>${said(dense)}`, font: { color: css("--soft"), size: 12 } }];
    const last = Math.max(...here().groups.map((g) => 100 * g.sparsity));
    if (traces.length && dense !== null) traces.push({ name: "dense", mode: "markers", x: [last], y: [scale() * dense], marker: { opacity: 0, size: 9 }, hoverinfo: "skip" });  // so that the axis reaches it
    draw("accuracy", traces, { xaxis: zeros(), yaxis: axis, shapes: lines, annotations: notes, margin: { l: 52, r: notes.length ? 58 : 14, t: 20, b: 44 } });  // its name stands beside the picture, where no mark can be
  }
  // Networks that only guess would press all others together: where those need less than two fifths of the axis, it ends below them.
  function clipped() {
    const known = has(here().groups, "quality"), { lower, percent: share } = here().metric, put = (y) => (lower ? Math.log10(y) : y);
    const able = known.filter((g) => g.able), ends = (groups) => [...groups.map((g) => put(quality(g))), put(scale() * here().dense)];
    const [low, high] = [Math.min(...ends(able)), Math.max(...ends(able))], all = Math.max(...ends(known)) - Math.min(...ends(known));
    if (here().dense === null || able.length < 2 || able.length === known.length || high - low > 0.4 * all) return null;
    const room = 0.12 * (high - low) || 0.02 * all, range = [low - room, share ? Math.min(100, high + room) : high + room];
    const count = known.filter((g) => (lower ? put(quality(g)) > range[1] : quality(g) < range[0])).length;
    return count ? { count, axis: lower ? { range: range.reverse(), ...logarithmic([{ y: able.map(quality).concat(here().dense) }], "y") } : { range } } : null;
  }

  function pareto() {
    const skilled = timed(here().groups).filter((g) => g.able);
    const front = [...skilled.filter((g) => g.front).map((g) => [g.faster, told(g)]), ...here().rivals.filter((one) => one.front).map((one) => [one.faster, scale() * one.quality])].sort((a, b) => a[0] - b[0]);
    const traces = skilled.length && front.length ? [{
      name: "not beaten", showlegend: false, mode: "lines+markers", cliponaxis: false, x: front.map((point) => point[0]), y: front.map((point) => point[1]), hoverinfo: "skip",
      line: { color: mix(css("--accent"), 0.55), width: 2, shape: "linear" }, marker: { size: 19, color: "rgba(0,0,0,0)", line: { color: css("--accent"), width: 2 } },
    }] : [];
    traces.push(...byMethod((method, groups, look) => {
      const known = timed(groups).filter((g) => g.able);
      return known.length ? [{
        name: method, mode: "markers", cliponaxis: false, x: known.map((g) => g.faster), y: known.map(told),
        error_x: bars(known, (g) => (g.integers ? "speedup_integers" : "speedup"), 1, { thickness: 1, width: 0, color: mix(look.color, 0.45) }),
        error_y: bars(known, (g) => (g.integers && g.values.quality_integers ? "quality_integers" : "quality"), scale(), { thickness: 1, width: 0, color: mix(look.color, 0.45) }),
        marker: marker(look), customdata: known.map((g) => [100 * g.sparsity, said(g.told), g.integers ? "in integers" : "in float32"]),
        hovertemplate: "<b>" + method + "</b>, %{customdata[0]:.4g} % zeros<br>%{x:.2f} times faster %{customdata[2]}<br>%{customdata[1]}<extra></extra>",
      }] : [];
    }));
    const farthest = Math.max(...skilled.map((g) => g.faster), ...here().rivals.map((one) => one.faster)), near = (one) => Math.abs(one.faster - 1) < 0.2 * Math.max(...skilled.map((g) => g.faster));
    const int8 = here().rivals.find((other) => other.name === "dense int8");
    const sloping = (one) => one.front && one.faster > 0.3 * farthest && !(int8 && Math.abs(int8.faster - one.faster) < 0.35 * farthest);  // the line falls away below it
    const side = (one) => (one.name === "dense float32" ? sloping(one) ? "top right" : "bottom center" : one.name === "dense int8" && near(one) ? `top ${one.faster < 1 ? "left" : "right"}` : "top center");
    if (traces.length) traces.push(...here().rivals.flatMap((one) => [{
      name: one.name, mode: "markers", cliponaxis: false, x: [one.faster], y: [scale() * one.quality],
      marker: { symbol: "cross-thin", size: 12, line: { width: 2.5, color: css("--ink") } }, hovertemplate: `<b>${one.name}</b>, %{x:.2f} times faster<br>${said(one.quality)}<extra></extra>`,
    }, {  // its name, clear of the ring
      mode: "markers+text", text: [narrow() ? one.name.replace("dense ", "") : one.name], textposition: side(one), cliponaxis: false, textfont: { color: css("--soft"), size: 12 }, x: [one.faster], y: [scale() * one.quality], marker: { size: 20, opacity: 0 }, hoverinfo: "skip",
    }]));
    const guessing = timed(here().groups).length - skilled.length;
    find("#how-pareto").textContent = `Up and to the right is better${skilled.some((g) => g.integers) ? ", in the kernels that are faster (float32 or integers)" : ""}. ${here().rivals.length > 1 ? "Crosses are dense networks." : "The cross is the dense network."} ${front.length > 1 ? "Rings mark what nothing beats in both; the line joins them." : "The ring marks what nothing beats in both."}${guessing ? ` Not shown: ${guessing === 1 ? "1 network that is" : `${guessing} networks that are`} ${here().metric.lower ? "over three times worse than" : "closer to guessing than to"} the dense one.` : ""}`;
    draw("pareto", traces, { xaxis: { title: title(`times faster than dense${here().rivals.length > 1 ? " in torch" : ""}`), rangemode: "tozero" }, yaxis: merit(traces) });
  }

  function macs() {
    const most = Math.max(1.5, ...has(here().groups, "mac_kept", "speedup").map((g) => value(g, "mac_dense") / value(g, "mac_kept")));
    const traces = byMethod((method, groups, look) => {
      const known = has(groups, "mac_kept", "mac_dense", "speedup");
      return known.length ? [{
        name: method, mode: "lines+markers", x: known.map((g) => value(g, "mac_dense") / value(g, "mac_kept")), y: known.map((g) => value(g, "speedup")),
        line: { color: look.color, width: 1.6, dash: look.dash }, marker: marker(look), customdata: known.map((g) => 100 * g.sparsity),
        hovertemplate: "<b>" + method + "</b>, %{customdata:.4g} % zeros<br>%{x:.2f} times fewer multiply-adds<br>%{y:.2f} times faster in float32<extra></extra>",
      }] : [];
    });
    if (traces.length) traces.unshift({ name: "ideal", mode: "lines+text", text: ["", "ideal\u2002"], textposition: "top left", cliponaxis: false, textfont: { color: css("--soft"), size: 12 }, x: [1, most], y: [1, most], line: wide(), hoverinfo: "skip" });
    draw("macs", traces, { xaxis: { title: title("times fewer multiply-adds"), ...logarithmic(traces, "x") }, yaxis: { title: title("times faster than torch, in float32"), ...logarithmic(traces, "y") } });
  }

  function certificate() {
    const proved = has(here().groups, "bound").length, most = has(here().groups, "held_out_bound").length;
    const traces = byMethod((method, groups, look) => {
      const known = has(groups, "bound"), told = has(groups, "held_out_bound");
      const typical = told.length ? [{
        name: method, legendgroup: method, showlegend: !known.length, mode: "lines+markers", x: told.map((g) => 100 * g.sparsity), y: told.map((g) => value(g, "held_out_bound")),
        line: { color: look.color, width: proved ? 1 : 2, dash: look.dash }, marker: marker(look, proved ? 6 : 11), customdata: told.map((g) => 100 * value(g, "held_out_probability")),
        hovertemplate: "<b>" + method + "</b>, %{x:.4g} % zeros<br>with 95 % confidence the outputs differ by more<br>than %{y:.4g} for at most %{customdata:.2g} % of inputs<extra></extra>",
      }] : [];
      if (!known.length) return typical;
      const x = known.map((g) => 100 * g.sparsity);
      const attained = known.filter((g) => value(g, "attained") > 0);
      return [...typical, {
        name: method, legendgroup: method, mode: "lines+markers", x, y: known.map((g) => value(g, "bound")),
        error_y: bars(known, () => "bound", 1, { thickness: 1.2, width: 3, color: look.color }), line: { color: look.color, width: 2.6, dash: look.dash }, marker: marker(look),
        hovertemplate: "<b>" + method + "</b>, %{x:.4g} % zeros<br>certified: at most %{y:.4g}<extra></extra>",
      }, {
        name: method, legendgroup: method, showlegend: false, mode: "markers", x: attained.map((g) => 100 * g.sparsity), y: attained.map((g) => value(g, "attained")),
        marker: { color: look.color, symbol: "line-ew-open", size: 16, line: { width: 2.5 } },
        hovertemplate: "<b>" + method + "</b>, %{x:.4g} % zeros<br>attained %{y:.4g}<extra></extra>",
      }];
    });
    find("#guarantee").hidden = !traces.length;
    all('nav a[href="#guarantee"]').forEach((link) => { link.hidden = !traces.length; });
    find("#how-certificate").textContent = [
      proved ? "Large, on thick lines: for no input near the test points do the outputs differ more from those of the dense network; proved. Ticks: an input there for which they differ so much; the truth lies between." : "",
      most ? `${proved ? "Small, on thin lines: for" : "For"} nearly all inputs like the held-out ones the outputs differ less ${proved ? "than that" : "from those of the dense network"}, with 95 % confidence.` : "",
    ].filter(Boolean).join(" ");
    draw("certificate", traces, { xaxis: zeros(), yaxis: { title: title("change of the outputs, 2-norm"), ...logarithmic(traces, "y") } });
  }

  function energy() {
    const traces = byMethod((method, groups, look) => {
      const known = has(groups, "energy_removed"), told = has(groups, "energy_predicted");
      const x = (list) => list.map((g) => 100 * (value(g, "realised_sparsity") ?? g.sparsity));
      const found = known.length ? [{
        name: method, legendgroup: method, mode: "markers", x: x(known), y: known.map((g) => 100 * value(g, "energy_removed")), marker: marker(look),
        hovertemplate: "<b>" + method + "</b>, %{x:.4g} % zeros<br>%{y:.2f} % of the energy removed<extra></extra>",
      }] : [];
      if (told.length) found.push({
        name: method, legendgroup: method, showlegend: false, mode: told.length > 1 ? "lines" : "markers", x: x(told), y: told.map((g) => 100 * value(g, "energy_predicted")),
        line: { color: look.color, width: 1.8, dash: look.dash }, marker: { color: look.color, symbol: "line-ew-open", size: 14, line: { width: 2 } },
        hovertemplate: "<b>" + method + "</b>, %{x:.4g} % zeros<br>%{y:.2f} % expected<extra></extra>",
      });
      return found;
    });
    const asked = zeros().tickvals || [], placed = traces.flatMap((trace) => trace.x), room = Math.max(2, 0.06 * (asked.at(-1) - asked[0]));
    draw("energy", traces, { xaxis: placed.every((x) => asked.some((one) => Math.abs(one - x) < 1)) ? { ...zeros(), range: [asked[0] - room, asked.at(-1) + room] } : { title: title("zeros, %") }, yaxis: { title: title("energy removed, %"), rangemode: "tozero" } });
  }

  function kernel(chosen) {
    const peers = here().groups.filter((g) => g.sparsity === chosen.sparsity && g.eigenvalues.length && seen(here().methods.indexOf(g.method)));
    const line = (name, values, look, more) => ({
      name, mode: "lines+markers", x: values.map((_, place) => place + 1), y: values.map((v) => Math.max(v, 1e-12)), line: { color: look.color, width: 2, dash: look.dash }, marker: marker(look, 6), ...more,
      hovertemplate: "<b>" + name + "</b><br>eigenvalue %{x}: %{y:.4g}<extra></extra>",
    });
    const traces = peers.map((g) => line(g.method, g.eigenvalues, style(here().methods.indexOf(g.method))));
    if (traces.length && here().eigenvalues.length) traces.unshift(line("dense", here().eigenvalues, style(0), { mode: "lines", line: wide(), marker: {} }));
    draw("kernel", traces, { xaxis: { title: title("eigenvalue, largest first") }, yaxis: { title: title("value"), type: "log", dtick: 1, exponentformat: "power" } });
  }

  // --------------------------------------------------------------------------------------------------------- layers
  const COLUMNS = [
    ["kept", (r) => r.kept / r.total, (r) => percent(r.kept / r.total), null, 1],
    ["energy removed", (r) => r.energy_removed, (r) => percent(r.energy_removed), (r) => r.energy_predicted, 1],
    ["output error left", (r) => r.error_after, (r) => `${percent(r.error_after)}, by magnitude ${percent(r.error_before)}`, (r) => r.error_before, 1],
    ["norm removed", (r) => (r.norm ? r.norm_removed / r.norm : null), (r) => `${short(r.norm_removed)} of ${short(r.norm)}`, null, 1],
    ["sensitivity", (r) => r.sensitivity, (r) => (r.sensitivity >= 0 ? "+" : "−") + short(Math.abs(r.sensitivity)), null, 0],
    ["share of the certificate", (r) => r.certificate_share, (r) => percent(r.certificate_share), null, 1],
    ["time against dense", (r) => (r.time_dense_us ? r.time_us / r.time_dense_us : null), (r) => `${short(r.time_us)} of ${short(r.time_dense_us)} µs`, () => 1, 0],
  ];

  function layers(chosen) {
    const head = find("#layer-table thead"), body = find("#layer-table tbody");
    const columns = COLUMNS.filter(([, measure]) => chosen.layers.some((row) => measure(row) !== null && measure(row) !== undefined));
    const shown = (name) => columns.some((column) => column[0] === name);
    const words = { sensitivity: "Sensitivity is the rise of the test loss when this layer alone is pruned.", "energy removed": "The mark in a bar of energy is what theory expects.", "output error left": "The mark in a bar of error is what pruning by magnitude leaves.", "time against dense": "The mark in a bar of time is the dense layer." };
    find("#how-layers").textContent = Object.keys(words).filter(shown).map((name) => words[name]).join(" ");
    head.replaceChildren(element("tr", {}, [element("th", { scope: "col" }, ["layer"]), ...columns.map(([name]) => element("th", { scope: "col" }, [name]))]));
    body.replaceChildren(...chosen.layers.map((row) => {
      const name = element("td", {}, [...breakable(row.name.replace(/\.weight$/, "")), element("small", {}, [row.shape.join(" × ")])]);
      return element("tr", {}, [name, ...columns.map(([, measure, say, mark, full]) => {
        const amount = measure(row);
        if (amount === null || amount === undefined) return element("td", {}, ["–"]);
        const marks = mark ? chosen.layers.map((r) => mark(r) || 0) : [0];
        const top = full || Math.max(1e-12, ...chosen.layers.map((r) => measure(r) || 0), ...marks);
        const part = (x) => `${Math.min(100, Math.max(0, (100 * x) / top)).toFixed(1)}%`;
        const meter = element("span", { class: "meter", "aria-hidden": "true" }, [element("i", { style: `width:${part(amount)}` }, [])]);
        if (mark && mark(row)) meter.append(element("b", { style: `left:calc(${part(mark(row))} - 1px)` }, []));
        return element("td", {}, [say(row), meter]);
      })]);
    }));
    fold(body, 12, body.closest(".scroll"));
  }

  // Long lists show their beginning, and a button for the rest.
  function fold(box, limit, place = box) {
    const items = [...box.children], rest = items.slice(limit);
    if (place.nextElementSibling?.classList.contains("more")) place.nextElementSibling.remove();
    rest.forEach((item) => { item.hidden = !box.dataset.open; });
    if (!rest.length || box.dataset.open) return;
    const button = element("button", { type: "button", class: "button" }, [`Show all ${items.length}`]);
    const more = element("div", { class: "more" }, [button, element("p", {}, [`and ${rest.length} more layer${rest.length > 1 ? "s" : ""}`])]);  // on paper nobody presses
    button.addEventListener("click", () => { box.dataset.open = "yes"; rest.forEach((item) => { item.hidden = false; }); more.remove(); });
    place.after(more);
  }

  // Long names break after dots and underscores, not inside words.
  const breakable = (name) => name.split(/(?<=[._])(?=[^._])/).flatMap((part, place) => (place ? [element("wbr", {}, []), part] : [part]));

  function element(tag, attributes, children, made = document.createElement(tag)) {
    for (const [name, text] of Object.entries(attributes)) made.setAttribute(name, text);
    made.append(...children);
    return made;
  }

  function thumbnail(mask, caption) {
    const canvas = element("canvas", { width: mask.columns, height: mask.rows, role: "img" }, []);
    const bytes = Uint8Array.from(atob(mask.bits), (c) => c.charCodeAt(0));
    const pen = canvas.getContext("2d");
    let kept = 0;
    pen.fillStyle = css("--card"); pen.fillRect(0, 0, mask.columns, mask.rows); pen.fillStyle = css("--ink");
    for (let place = 0; place < mask.rows * mask.columns; place++) {
      if (bytes[place >> 3] & (128 >> (place & 7))) { kept++; pen.fillRect(place % mask.columns, Math.floor(place / mask.columns), 1, 1); }
    }
    canvas.setAttribute("aria-label", `Mask, ${caption}: ${kept} of ${mask.rows * mask.columns} weights of this corner stay`);
    return element("div", {}, [canvas, element("p", {}, breakable(caption))]);
  }

  function masks(chosen) {
    const plain = (mask) => mask.name.replace(/\.weight$/, "");
    // Layers that lost next to nothing show nothing; they are left out where others lost something.
    const ones = (mask) => [...atob(mask.bits)].reduce((sum, c) => sum + c.charCodeAt(0).toString(2).replaceAll("0", "").length, 0);
    const some = chosen.masks.filter((mask) => ones(mask) < 0.97 * mask.rows * mask.columns), shown = some.length ? some : chosen.masks;
    find("#masks").replaceChildren(...shown.map((mask) => thumbnail(mask, `${plain(mask)}, ${mask.rows}\u00a0×\u00a0${mask.columns}`)));
    fold(find("#masks"), 6);
    find("#peers").hidden = true;
    if (!shown.length) return;
    const widest = shown.reduce((one, other) => (other.rows * other.columns > one.rows * one.columns ? other : one));
    const own = (group) => group.masks.find((mask) => mask.name === widest.name);
    const peers = here().groups.filter((g) => g.sparsity === chosen.sparsity && own(g));
    if (peers.length < 2) return;
    find("#peers").hidden = false;
    find("#peers h4").textContent = `${plain(widest)} under each method, ${percent(chosen.sparsity, 0)} zeros`;
    find("#peers .masks").replaceChildren(...peers.map((g) => thumbnail(own(g), g.method)));
  }

  // ------------------------------------------------------------------------------------------------------- examples
  function examples(chosen) {
    const box = find("#examples");
    if (!box) return;
    const { changed, seen: looked, mended, broken } = chosen.changed, many = (x) => x.toLocaleString("en");
    const how = { image: " Under each image stands what it shows, then what each network says.", text: " In bold: the beginning that both were given." }[chosen.examples[0]?.kind] ?? " Under each sentence: the one that is nearest to it for each network.";
    find("#examples-note").textContent = (!looked ? "Both networks run in float32 here." : `In float32, ${many(changed)} of ${many(looked)} test images get another label than from the dense network${mended === null ? "" : `: ${many(broken)} were right before, ${many(mended)} are right now`}.`) + how;
    const guess = (one, name, said) => element("small", { class: one.truth === said ? "right" : "wrong" }, [`${name}: ${said}\u00a0${one.truth === said ? "✓" : "✗"}`]);
    const side = (text, name, kind) => element("dd", {}, [element("small", {}, [kind === "text" ? `${name} goes on` : `nearest, ${name}`]), text]);
    box.replaceChildren(...chosen.examples.map((one) => (one.kind === "image"
      ? element("figure", {}, [element("img", { src: one.picture, alt: `A test image: ${one.truth}` }, []), element("figcaption", {}, [one.truth, guess(one, "dense", one.before), guess(one, "pruned", one.after)])])
      : one.before === one.after
        ? element("dl", { class: "same" }, [element("dt", {}, [one.prompt]), side(one.before, "dense and pruned", one.kind)])
        : element("dl", {}, [element("dt", {}, [one.prompt]), side(one.before, "dense", one.kind), side(one.after, "pruned", one.kind)]))));
    box.className = chosen.examples.length && chosen.examples[0].kind === "image" ? "pictures" : "texts";
    find("#examples-card").hidden = !chosen.examples.length;
  }

  const chosenGroup = () => here().groups[+(find(`#group-${panel}`)?.value ?? 0)];

  function detail() {
    const chosen = chosenGroup();
    layers(chosen); masks(chosen); examples(chosen); kernel(chosen);
    all(".numbers .groups tr").forEach((row) => row.classList.toggle("chosen", row.closest(".panel").dataset.panel === String(panel) && here().groups[+row.dataset.group] === chosen));
  }

  function redraw() { if (data.panels.length) render(); }
  function pictures() { accuracy(); pareto(); macs(); certificate(); energy(); kernel(chosenGroup()); }
  function render() { legend(); accuracy(); pareto(); macs(); certificate(); energy(); detail(); }

  // ---------------------------------------------------------------------------------------------------------- table
  function sortBy(header) {
    const table = header.closest("table"), place = [...header.parentNode.children].indexOf(header);
    const down = header.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach((other) => other.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.children[place].dataset.value;
    const numeric = header.dataset.key !== "method";
    const order = (a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === "" || other === "") return (one === "") - (other === "");  // what is missing stays below
      return (numeric ? one - other : one.localeCompare(other)) * (down ? -1 : 1);
    };
    const body = table.querySelector(".groups");
    body.append(...[...body.rows].sort(order));
  }

  function filter() {
    const wanted = find("#filter").value.toLowerCase().replace(/\s+%/g, "%").split(/\s+/).filter(Boolean);
    let shown = 0, total = 0;
    all(".numbers .groups tr").forEach((row) => {
      const said = [...row.cells].map((cell) => cell.textContent).join(" | ").toLowerCase().replace(/\s+%/g, "%").replace(/\s+/g, " ");
      const zeros = row.querySelector("[data-key=sparsity]"), share = zeros ? `${Math.round(100 * zeros.dataset.value)}` : "";
      const fits = wanted.every((word) => (/^[0-9.]+%?$/.test(word) ? share === word.replace("%", "") || (/^0?\.\d+$/.test(word) && +share === Math.round(100 * word)) || (word.includes("%") && said.includes(word)) : said.includes(word)));
      row.hidden = !fits;
      if (!row.closest(".panel").hidden) { total++; shown += fits; }
    });
    find("#count").textContent = shown || !total ? `${shown} of ${total} rows` : `nothing matches, of ${total} rows`;
  }

  // --------------------------------------------------------------------------------------------------------- events
  all(".numbers th button").forEach((button) => button.addEventListener("click", () => sortBy(button.closest("th"))));
  all(".numbers .groups tr").forEach((row) => row.addEventListener("click", () => { find(`#group-${panel}`).value = row.dataset.group; detail(); }));
  all("select.group").forEach((select) => select.addEventListener("change", detail));
  if (find("#filter")) find("#filter").addEventListener("input", filter);
  if (find("#panel")) find("#panel").addEventListener("change", (event) => {
    panel = +event.target.value;
    hidden.forEach((places) => places.clear());  // the same places are other methods there
    all(".panel").forEach((part) => { part.hidden = part.dataset.panel !== String(panel); });
    render(); filter();
  });
  const dark = matchMedia("(prefers-color-scheme: dark)"), now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  find("#theme").addEventListener("click", () => { root.dataset.theme = now() === "dark" ? "light" : "dark"; redraw(); });
  dark.addEventListener("change", () => { if (!printing) redraw(); });
  let width = window.innerWidth, timer = 0;
  window.addEventListener("resize", () => {
    if (printing || window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 120);
  });
  let before = "";
  window.addEventListener("beforeprint", () => { printing = true; before = root.dataset.theme || ""; root.dataset.theme = "light"; root.classList.add("paper"); redraw(); });
  window.addEventListener("afterprint", () => { printing = false; root.classList.remove("paper"); if (before) root.dataset.theme = before; else delete root.dataset.theme; redraw(); });

  all("[data-fold]").forEach((box) => fold(box, +box.dataset.fold));
  all(".numbers .groups td.text").forEach((cell) => {
    const mine = data.panels[+cell.closest(".panel").dataset.panel];
    const look = looks(mine, mine.methods.indexOf(cell.textContent));
    cell.prepend(swatch(look, `var(--c${look.place})`, false));
  });
  if (data.panels.length) { render(); filter(); }
  root.dataset.ready = "yes";
})();
