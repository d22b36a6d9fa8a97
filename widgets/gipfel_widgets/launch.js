/* The browser side of LaunchWidget: renders the document that the kernel sends, and the end of the log. */

const MOST_LINES = 2000;
const COLOURS = 8;
const SHAPES = {
  completed: '✓', failed: '✗', lost: '✗', stopped: '■', timeout: '✗', preempted: '◇', running: '●',
  queued: '○', vetting: '◐', preflight: '◐', silent: '?', 'not started': '✗', checked: '✓', 'check failed': '✗'
}; // prettier-ignore
const MARKS = { pass: '✓', warn: '⚠', fail: '✗', unknown: '?' };
const PHASES = ['preflight', 'queued', 'vetting', 'running', 'ended'];
const VIEWER = 'https://ui.perfetto.dev';
const SVG = 'http://www.w3.org/2000/svg';

function make(tag, className, parent, text = '') {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  parent?.append(node);
  return node;
}

/** Send the kernel a message; without a kernel, the view stays as it was saved. */
function notify(model, message) {
  try {
    model.send(message);
  } catch {}
}

function number(value, digits = 4) {
  return Number(value.toPrecision(digits)).toLocaleString('en', { maximumFractionDigits: 6 });
}

function sizeOf(nodes, ranks) {
  const each = ranks / nodes;
  return `${nodes > 1 ? `${nodes} × ` : ''}${each} rank${each === 1 ? '' : 's'}`;
}

function figuresOf({ progress, training_curve, score, restarts }) {
  const found = [];
  if (typeof progress?.step === 'number') {
    const total = progress.total ? `/${number(progress.total, 12)}` : '';
    found.push(`step ${number(progress.step, 12)}${total}`);
  }
  if (typeof training_curve?.rate === 'number') {
    found.push(`${number(training_curve.rate)} ${training_curve.rate_name.replace(/_per_s$/, '')}/s`);
  } else if (training_curve?.steps_per_s) {
    found.push(`${number(training_curve.steps_per_s, 2)} steps/s`);
  }
  if (training_curve?.losses?.length) {
    found.push(`loss ${number(training_curve.losses.at(-1)[1])}`);
  }
  if (typeof score === 'number') {
    found.push(`score ${Math.round(score)} of 100`);
  }
  found.push(`restarts ${restarts ?? 0}`);
  return found;
}

/** The loss as a line of 120 × 24 pixels. */
function drawCurve(svg, losses) {
  svg.replaceChildren();
  svg.toggleAttribute('hidden', losses.length < 2);
  if (losses.length < 2) {
    return;
  }
  const values = losses.map(each => each[1]);
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const line = document.createElementNS(SVG, 'polyline');
  const point = (value, index) => `${(120 * index) / (values.length - 1)},${22 - (20 * (value - low)) / span}`;
  line.setAttribute('points', values.map(point).join(' '));
  svg.append(line);
  svg.setAttribute('aria-label', `loss from ${number(values[0])} to ${number(values.at(-1))}`);
}

/** The log: its lines, their filter, and whether it follows the newest line. */
class Log {
  constructor(root, model, signal) {
    this.model = model;
    this.rows = [];
    this.ranks = new Set();
    this.rank = null;
    this.errors = false;
    const bar = (this.bar = make('div', 'gipfel-filters', root));
    this.choice = make('select', 'gipfel-choice', bar);
    this.choice.setAttribute('aria-label', 'Rank filter');
    this.choice.append(new Option('all ranks', ''));
    const errors = this.box(bar, 'errors only');
    this.follow = this.box(bar, 'follow');
    this.follow.checked = true;
    this.count = make('span', 'gipfel-count', bar);
    this.node = make('div', 'gipfel-log', root);
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'log');
    this.node.setAttribute('aria-live', 'off');
    this.node.setAttribute('aria-label', 'Log of the ranks');
    const listen = (node, event, act) => node.addEventListener(event, act, { signal });
    listen(this.choice, 'change', () => {
      this.rank = this.choice.value === '' ? null : Number(this.choice.value);
      notify(model, { type: 'logs', rank: this.rank });
      this.draw();
    });
    listen(errors, 'change', () => {
      this.errors = errors.checked;
      this.draw();
    });
    listen(this.follow, 'change', () => this.toEnd());
    // Scrolling up stops following; scrolling to the end resumes it.
    listen(this.node, 'scroll', () => {
      const { scrollTop, scrollHeight, clientHeight } = this.node;
      this.follow.checked = scrollHeight - scrollTop - clientHeight < 8;
    });
  }

  show(visible) {
    this.bar.hidden = this.node.hidden = !visible;
  }

  box(parent, text) {
    const label = make('label', 'gipfel-check', parent);
    const input = make('input', '', label);
    input.type = 'checkbox';
    label.append(text);
    return input;
  }

  take({ lines, first, rank }) {
    if (first && rank !== this.rank) {
      return;
    }
    if (first) {
      this.rows = [];
    }
    this.rows = [...this.rows, ...lines].slice(-MOST_LINES);
    for (const [each] of lines) {
      if (!this.ranks.has(each)) {
        this.ranks.add(each);
        this.offer();
      }
    }
    if (first) {
      this.draw();
      return;
    }
    this.node.append(...lines.filter(each => this.shows(each)).map(each => this.line(each)));
    while (this.node.childElementCount > MOST_LINES) {
      this.node.firstElementChild.remove();
    }
    this.said();
  }

  offer() {
    const ranks = [...this.ranks].sort((a, b) => a - b);
    this.choice.replaceChildren(
      new Option('all ranks', ''),
      ...ranks.map(each => new Option(`only rank ${each}`, String(each)))
    );
    this.choice.value = this.rank === null ? '' : String(this.rank);
  }

  shows([rank, , , error]) {
    return (this.rank === null || rank === this.rank) && (!this.errors || error);
  }

  line([rank, text, time, error]) {
    const row = make('div', error ? 'gipfel-line gipfel-error' : 'gipfel-line');
    const when = time ? formatTimeOfDay(time) : '';
    make('span', 'gipfel-time', row, when);
    make('span', `gipfel-rank gipfel-rank-${rank % COLOURS}`, row, `r${rank}`);
    make('span', 'gipfel-text', row, text);
    return row;
  }

  draw() {
    this.node.replaceChildren(...this.rows.filter(each => this.shows(each)).map(each => this.line(each)));
    this.said();
  }

  said() {
    const shown = this.node.childElementCount;
    const timed = this.rows.find(each => each[2]);
    this.count.textContent = `${shown} line${shown === 1 ? '' : 's'}${timed ? `, ${zoneName(timed[2])}` : ''}`;
    if (shown === 0) {
      this.count.textContent = this.errors && this.rows.length ? 'no lines about errors' : 'no lines yet';
    }
    this.toEnd();
  }

  toEnd() {
    if (this.follow.checked) {
      this.node.scrollTop = this.node.scrollHeight;
    }
  }
}

/** Download links to the files of ranks; only their names without the lab extension. */
function listFiles(root, title, kind, ranks, { id, folder }) {
  const place = { trace: 'profile', dump: 'flight_recorder' }[kind];
  const addressOf = globalThis[Symbol.for('gipfel.launchFile')];
  const line = make('p', 'gipfel-files', root, `${title}: `);
  ranks.forEach((rank, index) => {
    const text = `rank ${rank}`;
    if (addressOf) {
      const link = make('a', '', line, text);
      link.href = addressOf(kind, id, rank);
      link.download = '';
    } else {
      line.append(text);
    }
    line.append(index + 1 < ranks.length ? ', ' : ` (${folder}/${place})`);
  });
}

function drawFiles(root, shown) {
  root.replaceChildren();
  const { traces = [], dumps = [] } = shown;
  if (traces.length) {
    listFiles(root, 'Profiler traces', 'trace', traces, shown);
    const how = make('p', 'gipfel-files', root, 'A trace opens in ');
    const link = make('a', '', how, 'Perfetto');
    Object.assign(link, { href: VIEWER, target: '_blank', rel: 'noopener noreferrer' });
    how.append(': Open trace file there; it stays in the browser.');
  }
  if (dumps.length) {
    listFiles(root, 'Flight recorder’s dumps', 'dump', dumps, shown);
  }
}

function fold(root, title, open = false) {
  const details = make('details', 'gipfel-fold', root);
  details.open = open;
  const summary = make('summary', '', details, title);
  return { details, summary };
}

function render({ model, el }) {
  const gone = new AbortController();
  const { signal } = gone;
  const root = make('div', 'jp-Gipfel-launch', el);
  const head = make('div', 'gipfel-head', root);
  const status = make('span', 'gipfel-status', head);
  status.setAttribute('role', 'status');
  const shape = make('span', 'gipfel-shape', status);
  shape.setAttribute('aria-hidden', 'true');
  const word = make('span', 'gipfel-word', status);
  const name = make('span', 'gipfel-name', head);
  const stop = make('button', 'gipfel-button', head, 'Stop');
  stop.type = 'button';
  const phases = make('ol', 'gipfel-phases', root);
  const marks = PHASES.map(each => make('li', '', phases, each));
  const says = make('p', 'gipfel-says', root);
  const progress = make('div', 'gipfel-progress', root);
  const bar = make('progress', '', progress);
  bar.max = 1;
  bar.setAttribute('aria-label', 'Progress');
  const figures = make('span', 'gipfel-figures', progress);
  const curve = document.createElementNS(SVG, 'svg');
  curve.setAttribute('class', 'gipfel-curve');
  curve.setAttribute('viewBox', '0 0 120 24');
  curve.setAttribute('role', 'img');
  progress.append(curve);
  const checks = make('ul', 'gipfel-checks', root);
  const command = fold(root, 'the exact command');
  const commandText = make('pre', '', command.details);
  const trace = fold(root, '', true);
  const traceText = make('pre', '', trace.details);
  const flight = fold(root, 'torch’s flight recorder');
  const flightText = make('pre', '', flight.details);
  const log = new Log(root, model, signal);
  const files = make('div', 'gipfel-foot', root);
  let listed = '';
  const foot = make('div', 'gipfel-foot', root);
  const places = make('span', '', foot);
  const open = make('button', 'gipfel-button', foot, 'Open executed notebook');
  open.type = 'button';

  stop.addEventListener(
    'click',
    () => {
      stop.disabled = true;
      stop.textContent = 'Stopping …';
      notify(model, { type: 'stop' });
    },
    { signal }
  );
  open.addEventListener(
    'click',
    () => {
      const offered = globalThis[Symbol.for('gipfel.openLaunch')];
      offered?.(model.get('document').id);
    },
    { signal }
  );

  const draw = () => {
    const shown = model.get('document') ?? {};
    const ended = shown.phase === 'ended';
    root.hidden = !shown.phase;
    root.dataset.status = shown.status;
    shape.textContent = SHAPES[shown.status] ?? '·';
    word.textContent = shown.status === 'silent' ? 'not responding' : shown.status;
    const where = shown.node_count ? ` · ${sizeOf(shown.node_count, shown.ranks)}` : '';
    name.textContent = shown.number ? `#${shown.number} ${shown.name ?? ''}${where}` : '';
    stop.hidden = ended || !shown.id;
    const reached = PHASES.indexOf(shown.phase);
    marks.forEach((node, index) => {
      node.hidden = node.textContent === 'vetting' && !shown.vetting;
      node.dataset.reached = String(index <= reached);
      if (index === reached) {
        node.setAttribute('aria-current', 'step');
      } else {
        node.removeAttribute('aria-current');
      }
    });
    says.textContent = shown.message ?? '';
    says.hidden = !shown.message;
    // There is no log before the launch has started.
    log.show(Boolean(shown.id));
    const fraction = shown.progress?.fraction;
    progress.hidden = !shown.id || (shown.phase !== 'running' && !ended);
    bar.hidden = typeof fraction !== 'number';
    bar.value = fraction ?? 0;
    const percent = typeof fraction === 'number' ? [`${Math.round(100 * fraction)} %`] : [];
    figures.textContent = [...percent, ...figuresOf(shown)].join(' · ');
    drawCurve(curve, shown.training_curve?.losses ?? []);
    checks.replaceChildren(
      ...(shown.preflight ?? []).map(each => {
        const line = make('li', `gipfel-${each.verdict}`);
        const fix = each.verdict === 'pass' ? '' : ` ${each.fix}`;
        line.textContent = `${MARKS[each.verdict] ?? '·'} ${each.message}${fix}`;
        line.title = each.check;
        return line;
      })
    );
    command.details.hidden = !shown.command;
    commandText.textContent = shown.command ?? '';
    trace.details.hidden = !shown.traceback;
    trace.summary.textContent = `traceback of rank ${shown.failure?.rank ?? '?'}, the first that failed`;
    traceText.textContent = shown.traceback ?? '';
    flight.details.hidden = !shown.flight_recorder?.length;
    flightText.textContent = (shown.flight_recorder ?? []).join('\n');
    const said = [];
    if (shown.folder) {
      said.push(ended ? shown.folder : `${shown.folder} · keeps running if you close this tab or restart the kernel`);
    }
    // Links are replaced only if they change, so that a click is not lost.
    const now = JSON.stringify([shown.id, shown.traces, shown.dumps]);
    if (now !== listed) {
      listed = now;
      drawFiles(files, shown);
    }
    places.textContent = said.join(' · ');
    open.hidden = !shown.notebook || !globalThis[Symbol.for('gipfel.openLaunch')];
  };
  const onMessage = message => {
    if (message.type === 'logs') {
      log.take(message);
    } else if (message.type === 'said') {
      says.hidden = false;
      says.textContent = message.text;
      stop.disabled = false;
      stop.textContent = 'Stop';
    }
  };
  let asked = '';
  const onDocument = () => {
    draw();
    const id = model.get('document')?.id;
    // A view that is rendered later, as after a reload, requests earlier lines.
    if (id && id !== asked) {
      asked = id;
      stop.disabled = false;
      stop.textContent = 'Stop';
      notify(model, { type: 'logs', rank: log.rank });
    }
  };
  model.on('change:document', onDocument);
  model.on('msg:custom', onMessage);
  onDocument();
  log.said();
  return () => {
    gone.abort();
    model.off('change:document', onDocument);
    model.off('msg:custom', onMessage);
  };
}

export default { render };
