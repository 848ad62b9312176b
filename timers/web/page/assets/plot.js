// A moving plot of the last five minutes: SVG paths, redrawn once a second.
import { clock, make, put, span } from './dom.js';

const width = 600, height = 100;
const shortest = 60_000, longest = 300_000; // ms that are shown
const svg = 'http://www.w3.org/2000/svg';

function shape(name, attributes) {
  const e = document.createElementNS(svg, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

// nice is the first round number that v fits below.
function nice(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 2, 3, 5, 10]) if (v <= m * p) return m * p;
  return 10 * p;
}

// plot draws lines into box: each has a class ("a", "b"), a function that
// gives the value of a point or null, and a name. say formats a value.
export function plot(box, label, lines, say) {
  const root = shape('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label });
  root.append(shape('line', { class: 'grid', x1: 0, x2: width, y1: height, y2: height }), shape('line', { class: 'grid', x1: 0, x2: width, y1: 0, y2: 0 }));
  const fill = lines.length === 1 ? shape('path', { class: 'fill' }) : null;
  if (fill) root.append(fill);
  const paths = lines.map((l) => shape('path', { class: l.kind }));
  const cross = shape('line', { class: 'cross', y1: 0, y2: height, visibility: 'hidden' });
  root.append(...paths, cross);
  const top = make('span', { className: 'tick top', '@aria-hidden': 'true' });
  const tip = make('span', { className: 'tick tip', '@aria-hidden': 'true', hidden: true });
  const from = make('span', { className: 'tick from', '@aria-hidden': 'true' }, '');
  box.append(root, top, tip, from);

  let points = [], end = 0, length = shortest, pointer = null;
  const x = (at) => width - ((end - at) / length) * width;

  function point() {
    if (pointer === null || !points.length) {
      cross.setAttribute('visibility', 'hidden');
      tip.hidden = true;
      return;
    }
    const at = end - (1 - pointer) * length;
    let best = points[0];
    for (const p of points) if (Math.abs(p.at - at) < Math.abs(best.at - at)) best = p;
    cross.setAttribute('visibility', 'visible');
    cross.setAttribute('x1', x(best.at));
    cross.setAttribute('x2', x(best.at));
    tip.hidden = false;
    tip.textContent = `${clock(best.at, false)}  ${lines.map((l) => `${l.name ? `${l.name} ` : ''}${say(l.value(best))}`).join('  ')}`;
  }
  box.addEventListener('pointermove', (e) => {
    const r = box.getBoundingClientRect();
    pointer = Math.min(1, Math.max(0, (e.clientX - r.left) / r.width));
    point();
  });
  box.addEventListener('pointerleave', () => { pointer = null; point(); });

  return function draw(all) {
    points = all;
    if (!points.length) return;
    end = points[points.length - 1].at;
    length = Math.min(longest, Math.max(shortest, end - points[0].at));
    put(from, `${span(length)} ago`);
    let most = 0;
    const since = end - length;
    for (const p of points) for (const l of lines) if (p.at >= since) most = Math.max(most, l.value(p) ?? 0);
    const scale = nice(most * 1.05);
    top.textContent = say(scale);
    lines.forEach((l, i) => {
      let d = '', area = '', last = null, begin = 0;
      const shut = () => { if (last !== null) area += `L${x(last).toFixed(1)} ${height}L${begin} ${height}Z`; };
      for (const p of points) {
        const v = p.at < since ? null : l.value(p);
        if (v === null || v === undefined) {
          shut();
          last = null;
          continue;
        }
        const at = x(p.at).toFixed(1), y = (height - (v / scale) * height).toFixed(1);
        const gap = last === null || p.at - last > 3500; // nobody looked, or nothing was known
        if (gap) {
          shut();
          begin = at;
          d += `M${at} ${y}h.6`;
          area += `M${at} ${y}`;
        } else {
          d += `L${at} ${y}`;
          area += `L${at} ${y}`;
        }
        last = p.at;
      }
      shut();
      paths[i].setAttribute('d', d);
      if (fill) fill.setAttribute('d', area);
    });
    const now = points[points.length - 1];
    root.setAttribute('aria-label', `${label}, the last minutes; now ${lines.map((l) => `${l.name || ''} ${say(l.value(now))}`).join(', ')}; scale to ${say(scale)}`);
    point();
  };
}
