// The live page: one stream of events, and what they change.
import { $, clock, count, hold, make, milliseconds, moment, put, rows, shown, span } from './dom.js';
import { about, begin, now, open, redisNow, say } from './find.js';
import { plot } from './plot.js';

const keptPoints = 300, keptFired = 60;
const late = 1000; // ms of lag that are marked

let points = [];
const drawPending = plot($('plot-pending'), 'Pending timers', [{ kind: 'a', value: (p) => p.pending }], (v) => (v === null ? '–' : count(Math.round(v))));
const drawRate = plot($('plot-rate'), 'Fires per second', [{ kind: 'a', value: (p) => p.rate }], (v) => (v === null ? '–' : count(Math.round(v))));
const drawLag = plot($('plot-lag'), 'Lag', [{ kind: 'a', name: 'p50', value: (p) => p.p50 }, { kind: 'b', name: 'p99', value: (p) => p.p99 }], milliseconds);

function drawPoints() {
  drawPending(points);
  drawRate(points);
  drawLag(points);
  const last = points[points.length - 1];
  if (!last) return;
  put($('pending'), last.pending === null ? '–' : count(last.pending));
  put($('rate'), last.rate === null ? '–' : last.rate < 10 && last.rate % 1 ? last.rate.toFixed(1) : count(Math.round(last.rate)));
  // The figures of the last second that had fires.
  const lag = points.findLast((p) => p.p99 !== null);
  put($('p50'), milliseconds(lag?.p50));
  put($('p99'), milliseconds(lag?.p99));
}

const idButton = (t) => {
  const b = make('button', { type: 'button', className: 'id', title: t.id });
  b.append(shown(t.id));
  b.addEventListener('click', () => open(t.topic, t.id));
  return b;
};
const topicCell = (t) => make('td', { title: t.topic }, shown(t.topic));

let worst = '';
const on = {
  about(v) {
    about(v);
    put($('prefix'), v.prefix === 'timers' ? '' : v.prefix);
    put($('about'), `Lapse ${v.version}.`);
  },

  status(s) {
    const h = s.health;
    if (s.now) redisNow.offset = new Date(s.now) - Date.now();
    const names = ['service', 'redis', 'nats', 'subscription', 'stream', 'lapse'];
    const parts = Object.entries(h.parts || {}).sort((a, b) => names.indexOf(a[0]) - names.indexOf(b[0]));
    $('parts').replaceChildren(
      ...parts.map(([name, p]) => make('li', { className: 'part', '@data-state': p.status }, make('span', { className: 'dot', '@aria-hidden': 'true' }), make('span', {}, make('b', {}, name), ` ${p.status}`))),
      ...(s.instance ? [make('li', { className: 'part quiet' }, `instance ${s.instance}, ${s.delivery}${s.stream ? ` into ${s.stream}` : ''}`)] : []));
    const why = parts.filter(([, p]) => p.why && p.status !== 'ok');
    if (s.count_error) why.push(['redis', { status: 'degraded', why: s.count_error }]);
    $('why').hidden = !why.length;
    $('why').replaceChildren(...why.map(([name, p]) => make('li', { '@data-state': p.status }, make('b', {}, name), ': ', shown(p.why))));
    if (h.status !== worst) {
      if (worst) say(`Health is ${h.status}${why.length ? `: ${why[0][1].why}` : ''}`);
      worst = h.status;
      document.title = worst === 'ok' ? 'Lapse' : `${worst} – Lapse`;
    }
    const more = [];
    if (s.overdue) more.push(`${count(s.overdue)} overdue`);
    if (s.dead) more.push(`${count(s.dead)} dead`);
    const next = new Date(s.next_due) - new Date(s.now);
    if (next >= 1000) more.push(`next in ${span(next)}`);
    put($('pending-more'), more.join(' · '));
    put($('dead-note'), s.dead ? count(s.dead) : '');
    if (!document.querySelector('#rate-more[data-trouble]')) put($('rate-more'), s.in_flight ? `${count(s.in_flight)} in flight` : '');
  },

  due(v) {
    latest.due = v;
    empty('due', v, 'No timer is pending.');
    rows($('due'), v.timers || [], (t) => `${t.topic}:${t.id}:${t.rev}`, (t) => make('tr', {}, make('td', { className: 'n', title: moment(t.due) }), make('td', {}, idButton(t)), topicCell(t), make('td', {})), (tr, t) => {
      const ahead = new Date(t.due) - now();
      put(tr.cells[0], ahead > 0 ? span(ahead) : ahead > -1000 ? 'now' : `${span(-ahead)} late`);
      tr.cells[0].classList.toggle('late', ahead < -late);
      put(tr.cells[3], t.state === 'scheduled' && t.attempts ? `try ${t.attempts + 1}` : t.state);
      tr.cells[3].className = `tag tag-${t.state}`;
    });
  },

  dead(v) {
    latest.dead = v;
    empty('dead', v, 'None: no timer was given up on.');
    rows($('dead'), v.timers || [], (t) => `${t.topic}:${t.id}:${t.rev}`, (t) => make('tr', {}, make('td', {}, idButton(t)), topicCell(t), make('td', {}, shown(t.reason || '')), make('td', { className: 'n', title: moment(t.due) })), (tr, t) => {
      put(tr.cells[3], `${span(now() - new Date(t.due))} ago`);
    });
  },

  topics(v) {
    empty('topics', v, 'No timer is pending.', v.list?.length);
    const exact = v.looked >= v.pending;
    put($('topics-note'), !v.list?.length || exact ? '' : `estimated from ${count(v.looked)} random ones`);
    const list = (v.list || []).map((t) => ({ ...t, name: t.topic }));
    if (v.more) list.push({ topic: '', pending: v.others, rest: true, name: exact ? `${count(v.more)} more topics` : 'other topics' });
    const most = Math.max(1, ...list.map((t) => t.pending));
    rows($('topics'), list, (t) => t.topic, (t) => make('tr', {}, make('td', { title: t.name }), make('td', {}), make('td', {}, make('span', { className: t.rest ? 'bar rest' : 'bar' }))), (tr, t) => {
      tr.cells[0].replaceChildren(t.rest ? make('span', { className: 'quiet' }, t.name) : shown(t.name));
      // Two standard errors of a random sample.
      const share = t.pending / Math.max(1, v.pending);
      const error = 2 * v.pending * Math.sqrt((share * (1 - share)) / Math.max(1, v.looked));
      const digits = exact ? 1 : 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, error))));
      put(tr.cells[1], exact ? count(t.pending) : `≈ ${count(Math.round(t.pending / digits) * digits)}`);
      tr.cells[1].title = exact ? '' : `an estimate, give or take ${count(Math.ceil(error))}`;
      tr.cells[2].firstChild.style.width = `${(100 * t.pending) / most}%`;
    });
  },

  doctor(v) {
    const r = v.report;
    if (!r) {
      put($('doctor-sum'), v.error || 'not available');
      $('findings').replaceChildren();
      $('check').hidden = true;
      return;
    }
    $('check').hidden = false;
    const found = ['fail', 'warn', 'unknown', 'ok'].filter((k) => r[k]).map((k) => `${r[k]} ${k}`);
    put($('doctor-sum'), found.join(', '));
    put($('doctor-at'), `looked at ${clock(v.at, false)}`);
    const order = { fail: 0, warn: 1, unknown: 2, ok: 3 };
    const list = [...(r.findings || [])].sort((a, b) => order[a.status] - order[b.status]);
    const fine = list.filter((f) => f.status === 'ok');
    $('findings').replaceChildren(...list.filter((f) => f.status !== 'ok').map(finding));
    $('findings-fine').replaceChildren(...fine.map(finding));
    $('doctor-fine').hidden = fine.length === 0;
    put($('doctor-fine-sum'), `What is well: ${fine.length}`);
    if ((r.fail || r.warn) && !$('doctor').dataset.opened) {
      $('doctor').dataset.opened = 'once';
      $('doctor').open = true;
    }
  },

  fired(v) {
    const more = $('rate-more');
    more.toggleAttribute('data-trouble', Boolean(v.trouble));
    if (v.trouble) put(more, 'of this instance only');
    more.title = v.trouble || '';
    if (v.all) tail = [];
    for (const row of v.rows) tail.push({ ...row, n: ++serial });
    tail = tail.slice(-keptFired);
    put($('fired-note'), v.trouble ? v.trouble : v.of > v.rows.length && !v.all ? `${v.rows.length} of ${count(v.of)} in this second, at random` : '');
    $('fired-empty').hidden = tail.length > 0;
    rows($('fired'), tail.toReversed(), (t) => String(t.n), (t) => make('tr', {},
      make('td', {}, clock(t.at)), make('td', {}, idButton(t)), topicCell(t),
      make('td', { className: t.lag >= late ? 'n late' : 'n' }, milliseconds(t.lag)),
      make('td', { className: `tag tag-${t.source}`, title: t.attempt > 1 ? `attempt ${t.attempt}` : '' }, t.attempt > 1 ? `${t.source} ${t.attempt}` : t.source)));
  },

  history(v) {
    points = v || [];
    drawPoints();
  },
  points(v) {
    points.push(...v);
    points.splice(0, points.length - keptPoints);
    drawPoints();
    for (const [name, v] of Object.entries(latest)) on[name](v); // how long ago changes by itself
  },
};
// finding is one of doctor's, with all that it says; of what is well it is short.
function finding(f) {
  const facts = make('dl', {});
  const names = f.status === 'ok' ? ['found'] : ['found', 'wanted', 'why', 'remedy'];
  for (const name of names) {
    if (!f[name]) continue;
    // A remedy is lines to carry out.
    const text = name === 'remedy' ? make('code', {}, ...f.remedy.split('\n').flatMap((line, i) => (i ? ['\n', shown(line)] : [shown(line)]))) : shown(f[name]);
    facts.append(make('dt', {}, name), make('dd', {}, text));
  }
  const head = make('div', { className: 'head part', '@data-state': f.status }, make('span', { className: 'dot', '@aria-hidden': 'true' }), make('b', {}, f.check), make('span', { className: 'quiet' }, `${f.part}, ${f.status}`));
  return make('li', { '@data-state': f.status }, head, facts);
}

const latest = {};
let tail = [], serial = 0;

function empty(name, v, text, n = v.timers?.length) {
  const p = $(`${name}-empty`);
  p.hidden = n > 0;
  put(p, v.error || text);
  p.classList.toggle('bad', Boolean(v.error));
}

// The stream. EventSource by itself gives up for good on an answer that is no
// stream, such as that of a proxy while Lapse restarts; so it is made anew here.
let stream = null, heard = 0, wait = 500, timer = 0;

function state(name, text) {
  if ($('live').dataset.state === name) return;
  if (name === 'fail') say('The connection to Lapse is lost. It is tried again.');
  else if ($('live').dataset.state === 'fail') say('Connected again.');
  $('live').dataset.state = name;
  put($('live-text'), text);
}

function connect() {
  clearTimeout(timer);
  stream?.close();
  heard = Date.now();
  const mine = (stream = new EventSource('/events'));
  for (const [name, handle] of Object.entries(on)) {
    mine.addEventListener(name, (e) => {
      if (stream !== mine) return;
      heard = Date.now();
      wait = 500;
      state('ok', 'live');
      handle(JSON.parse(e.data));
    });
  }
  mine.addEventListener('error', () => {
    if (stream === mine) again();
  });
}

function again() {
  stream?.close();
  stream = null;
  state('fail', 'not connected');
  clearTimeout(timer);
  timer = setTimeout(connect, wait);
  wait = Math.min(wait * 2, 5000);
}

// A tab that nobody sees costs Lapse nothing.
document.addEventListener('visibilitychange', () => {
  clearTimeout(timer);
  if (document.hidden) {
    timer = setTimeout(() => {
      stream?.close();
      stream = null;
      state('wait', 'paused');
    }, 10_000);
  } else if (!stream) {
    connect();
  }
});
setInterval(() => {
  if (stream && Date.now() - heard > 8000) again();
}, 1000);

for (const id of ['due', 'fired', 'dead']) hold($(id));
begin();
connect();
