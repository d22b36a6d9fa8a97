/** The browser half of `saturation.py`: draws with the page's one plotly.js, which the Gipfel panel offers. */

const OFFER = Symbol.for('gipfel.plotly');
/** Within this the panel's plugin has started, where there is one. */
const OFFER_MS = 4000;
/** A kernel that says nothing for so long after a page asked is busy or gone. */
const SILENT_MS = 8000;
const FIRST_WORD_MS = 4000;
const IMAGE_MS = 10000;
const SHORTEST_SPAN_MS = 60000;

const SHAPES = {
  live: ['●', 'live'],
  starting: ['◐', 'starting'],
  stale: ['▲', 'stale'],
  absent: ['○', 'no samples'],
  silent: ['▪', 'not live: as it was last heard of']
};

const CONFIG = {
  displaylogo: false,
  // Back to the moving window rather than to where it was when the figure was drawn.
  doubleClick: 'autosize',
  modeBarButtons: [['toImage', 'autoScale2d']]
};

/** Plotly.js, or null where nobody offers it. */
async function offeredPlotly() {
  for (let waited = 0; waited < OFFER_MS && !globalThis[OFFER]; waited += 200) {
    await new Promise(resolve => setTimeout(resolve, 200));
  }
  return globalThis[OFFER] ? globalThis[OFFER]() : null;
}

function make(tag, name, parent) {
  return Object.assign(parent.appendChild(document.createElement(tag)), { className: name });
}

function isDark(node) {
  const ground = getComputedStyle(node).getPropertyValue('--jp-layout-color1').trim();
  const canvas = document.createElement('canvas').getContext('2d');
  if (!ground || !canvas) {
    return false;
  }
  // Whatever way the theme writes its colour, the canvas reads it.
  canvas.fillStyle = ground;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
  return red + green + blue < 384;
}

/** The layout with the text and lines of the page's theme. */
function themed(layout, node) {
  const style = getComputedStyle(node);
  const colour = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const result = {
    ...layout,
    autosize: true,
    // The figure's own top margin has room for the legend; plotly.js would reserve it a second time.
    margin: { ...layout.margin, autoexpand: false },
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: {
      ...layout.font,
      color: colour('--jp-ui-font-color1', '#303030'),
      family: colour('--jp-ui-font-family', 'sans-serif')
    },
    hoverlabel: {
      bgcolor: colour('--jp-layout-color1', '#ffffff'),
      bordercolor: colour('--jp-border-color1', '#bdbdbd'),
      font: { color: colour('--jp-ui-font-color1', '#303030') }
    },
    modebar: {
      bgcolor: 'rgba(0,0,0,0)',
      color: colour('--jp-ui-font-color2', '#616161'),
      activecolor: colour('--jp-brand-color1', '#1976d2')
    },
    annotations: (layout.annotations ?? []).map(note =>
      note.name === 'simulated'
        ? { ...note, font: { ...note.font, color: colour('--jp-warn-color1', note.font.color) } }
        : note
    )
  };
  for (const [key, axis] of Object.entries(layout)) {
    if (/^[xy]axis\d*$/.test(key)) {
      const grid = colour('--jp-border-color2', '#dedede');
      result[key] = { ...axis, gridcolor: grid, zerolinecolor: grid };
    }
  }
  return result;
}

/** Whether somebody drags across a node: a frame that is being pulled counts in the axis of its start. */
class Drag {
  constructor(node) {
    this.node = node;
    /** Settled as long as nobody does. */
    this.over = Promise.resolve();
    this.release = () => undefined;
    this.begin = () => {
      this.release();
      this.over = new Promise(resolve => this.wait(resolve));
    };
    node.addEventListener('mousedown', this.begin, true);
  }

  wait(resolve) {
    const ends = ['mouseup', 'blur'];
    const release = () => {
      ends.forEach(end => window.removeEventListener(end, release, true));
      // plotly.js takes its part of the same event first.
      setTimeout(resolve);
    };
    this.release = release;
    ends.forEach(end => window.addEventListener(end, release, true));
  }

  dispose() {
    this.node.removeEventListener('mousedown', this.begin, true);
    this.release();
  }
}

/** A figure in a node: drawn once, then extended point by point. */
class FigureView {
  constructor(node, plotly, darkColours) {
    this.node = node;
    this.plotly = plotly;
    this.darkColours = darkColours;
    this.last = Promise.resolve();
    this.revision = 0;
    this.drag = new Drag(node);
    this.resizes = new ResizeObserver(() => this.enqueue(() => this.fit()));
    this.resizes.observe(node);
    this.themes = new MutationObserver(() => this.figure && this.draw(this.figure));
    const watched = { attributes: true, attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name'] };
    this.themes.observe(document.body, watched);
  }

  /** Draw a figure; a zoomed time axis stays, and lines that were hidden stay hidden. */
  draw(figure) {
    return this.enqueue(async () => {
      await this.drag.over;
      const first = !this.figure;
      // plotly.js writes into what it is given.
      this.figure = figure;
      const { data, layout } = structuredClone(figure);
      const dark = isDark(this.node);
      this.byUid = new Map(data.map(trace => [trace.uid, trace]));
      for (const trace of data) {
        const metric = trace.uid.slice(trace.uid.lastIndexOf('/') + 1);
        if (dark && this.darkColours[metric]) {
          trace.line.color = this.darkColours[metric];
        }
        // plotly.js makes a CSS selector of it when the trace goes, and throws where it is none.
        trace.uid = trace.uid.replace(/[^\w-]/g, '_');
      }
      this.traces = data;
      this.layout = themed(layout, this.node);
      await this.react();
      if (first) {
        this.node.on('plotly_relayout', event => this.followZoom(event));
      }
      await this.fit();
    });
  }

  /** Append points by the uid of their trace. */
  extend(points) {
    return this.enqueue(async () => {
      await this.drag.over;
      const kept = new Map(this.figure.data.map(trace => [trace.uid, trace]));
      for (const [uid, added] of Object.entries(points)) {
        // What is drawn, and what would be drawn in another theme.
        for (const trace of [this.byUid.get(uid), kept.get(uid)]) {
          trace?.x.push(...added.x);
          trace?.y.push(...added.y);
        }
      }
      const oldest = this.newest() - this.windowMs();
      for (const trace of [...this.traces, ...this.figure.data]) {
        const old = trace.x.findIndex(x => x >= oldest);
        trace.x.splice(0, Math.max(0, old));
        trace.y.splice(0, Math.max(0, old));
      }
      await this.react();
    });
  }

  dispose() {
    this.disposed = true;
    this.resizes.disconnect();
    this.themes.disconnect();
    this.drag.dispose();
    this.plotly.purge(this.node);
  }

  newest() {
    return Math.max(...this.traces.map(trace => trace.x.at(-1) ?? -Infinity));
  }

  windowMs() {
    return 1000 * (this.layout.meta?.window_s ?? 600);
  }

  followZoom(event) {
    const ends = ['0', '1'].map(
      end =>
        Object.entries(event).find(([key]) => new RegExp(`^xaxis\\d*\\.range\\[${end}\\]$`).test(key))?.[1]
    );
    if (ends.every(end => end !== undefined)) {
      this.zoom = ends;
    } else if (Object.keys(event).some(key => /^xaxis\d*\.autorange$/.test(key))) {
      this.zoom = null;
    }
  }

  async react() {
    const newest = this.newest();
    if (newest !== -Infinity) {
      const oldest = Math.min(...this.traces.map(trace => trace.x[0] ?? Infinity));
      // The part of the window that has been recorded so far.
      const from = Math.min(newest - SHORTEST_SPAN_MS, Math.max(newest - this.windowMs(), oldest));
      const range = this.zoom ?? [from, newest];
      for (const key of Object.keys(this.layout)) {
        if (/^xaxis\d*$/.test(key)) {
          Object.assign(this.layout[key], { range: [...range], autorange: false });
        }
      }
    }
    // The arrays are the same objects as before; only this says that they changed.
    this.layout = { ...this.layout, datarevision: ++this.revision };
    await this.plotly.react(this.node, this.traces, this.layout, CONFIG);
  }

  async fit() {
    if (this.node.clientWidth > 0 && this.layout) {
      await this.plotly.Plots.resize(this.node);
    }
  }

  enqueue(step) {
    const next = this.last.then(() => (this.disposed ? undefined : step()));
    // One step that failed must not keep the later ones from running.
    this.last = next.catch(() => undefined);
    return next;
  }
}

/** State as shape and word, the pace, and what the kernel says. */
function statusLine(root) {
  const line = make('div', 'gipfel-status', root);
  line.setAttribute('role', 'status');
  const badge = make('span', 'gipfel-badge', line);
  badge.textContent = '◇ simulated';
  const shape = make('span', 'gipfel-shape', line);
  shape.setAttribute('aria-hidden', 'true');
  const word = make('span', 'gipfel-word', line);
  return (status, silent) => {
    const state = silent && status.state === 'live' ? 'silent' : (status.state ?? 'starting');
    const [sign, text] = SHAPES[state] ?? SHAPES.absent;
    line.dataset.state = state;
    badge.hidden = status.simulated !== true;
    shape.textContent = sign;
    const pace = state === 'live' ? ` every ${status.interval} s` : '';
    const message = state === 'live' && status.gpus > 0 ? '' : (status.message ?? '');
    word.textContent = text + pace + (message && state !== 'silent' ? ` · ${message}` : '');
  };
}

const OTHERS = {
  activity: 'lines',
  score: 'score and losses',
  heat: 'GPUs over time',
  series: 'time series',
  shares: 'where the time went'
};

/** The score in a line, and which plot is shown. */
function scoreLine(root, model, onChoice) {
  const line = make('div', 'gipfel-score', root);
  const words = make('span', 'gipfel-words', line);
  const choice = make('select', 'gipfel-choice', line);
  choice.setAttribute('aria-label', 'Which plot is shown');
  for (const [name, label] of Object.entries(OTHERS)) {
    choice.append(new Option(label, name));
  }
  choice.addEventListener('change', () => onChoice(choice.value));
  return () => {
    const { score, losses, bottleneck } = model.get('score') ?? {};
    line.hidden = Object.keys(model.get('plots') ?? {}).length === 0;
    const lost = Object.entries(losses ?? {})
      .filter(([, points]) => points >= 0.5)
      .sort((a, b) => b[1] - a[1])
      .map(([name, points]) => `${name} ${Math.round(points)}`);
    words.textContent =
      typeof score === 'number'
        ? `score ${Math.round(score)} of 100, ${bottleneck} · lost: ${lost.join(' · ') || 'nothing'}`
        : 'no score yet';
  };
}

/** Say something to the kernel; where there is none, what is shown stays as it was saved. */
function tell(model, message) {
  try {
    model.send(message);
  } catch {}
}

/** A still image that the kernel draws, with the way to the live view. */
function showImage(model, image, note, text, signal) {
  note.hidden = false;
  note.textContent = text;
  let url = '';
  const ask = () => tell(model, { type: 'image' });
  model.on('msg:custom', (message, buffers) => {
    if (message.type === 'image' && buffers?.length && !signal.aborted) {
      URL.revokeObjectURL(url);
      url = URL.createObjectURL(new Blob([buffers[0]], { type: 'image/png' }));
      image.src = url;
      image.alt = 'GPU and host activity';
      image.hidden = false;
    }
  });
  ask();
  const timer = setInterval(() => model.get('status').state === 'live' && ask(), IMAGE_MS);
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    URL.revokeObjectURL(url);
  });
}

function render({ model, el }) {
  const gone = new AbortController();
  const root = make('div', 'jp-Gipfel-saturation', el);
  const showStatus = statusLine(root);
  const note = make('p', 'gipfel-note', root);
  let chosen = 'activity';
  const showScore = scoreLine(root, model, name => choose(name));
  const figure = make('div', 'gipfel-figure', root);
  const other = make('div', 'gipfel-other', root);
  other.hidden = true;
  const dragged = new Drag(other);
  const image = make('img', 'gipfel-image', root);
  note.hidden = image.hidden = true;
  let view = null;
  const early = [];
  let heard = 0;

  const refresh = () => showStatus(model.get('status'), Date.now() - heard > silentMs());
  const silentMs = () => Math.max(SILENT_MS, 4000 * (model.get('status').interval ?? 1));
  const hear = () => {
    heard = Date.now();
    refresh();
  };
  const choose = name => {
    chosen = name;
    figure.hidden = !view || name !== 'activity';
    other.hidden = !view || name === 'activity';
    if (name !== 'activity') {
      tell(model, { type: 'plots', dark: isDark(other) });
    }
    onPlots();
  };
  const onPlots = async () => {
    showScore();
    await dragged.over;
    const shown = model.get('plots')?.[chosen];
    if (view && shown && !other.hidden && !gone.signal.aborted) {
      const { data, layout } = structuredClone(shown);
      data.forEach(trace => (trace.uid = trace.uid.replace(/[^\w-]/g, '_')));
      view.plotly.react(other, data, themed(layout, other), CONFIG).catch(fail);
    }
  };
  const onSamples = message => {
    hear();
    if (message.type === 'samples' && view) {
      view.extend(message.traces).catch(() => undefined);
    } else if (message.type === 'samples') {
      early.push(message.traces);
    }
  };
  const onFigure = () => {
    hear();
    early.length = 0;
    view?.draw(structuredClone(model.get('figure'))).catch(fail);
  };
  const fail = () => {
    note.hidden = false;
    note.textContent = '✗ The plots could not be drawn. Reload this page.';
  };
  // A kernel that is there speaks soon; a saved notebook has none.
  heard = Date.now() - silentMs() + FIRST_WORD_MS;
  model.on('msg:custom', onSamples);
  model.on('change:figure', onFigure);
  model.on('change:status', hear);
  model.on('change:plots', onPlots);
  refresh();
  showScore();
  const clock = setInterval(refresh, 2000);

  offeredPlotly()
    .then(plotly => {
      if (gone.signal.aborted) {
        return undefined;
      }
      if (!plotly) {
        figure.hidden = true;
        const how =
          'This is a still image: for the live view open the notebook in JupyterLab with Gipfel’s panel.';
        showImage(model, image, note, how, gone.signal);
        return undefined;
      }
      view = new FigureView(figure, plotly, model.get('dark_colours'));
      const drawn = view.draw(structuredClone(model.get('figure')));
      for (const traces of early.splice(0)) {
        view.extend(traces).catch(() => undefined);
      }
      // A page that was opened later has missed what came before it.
      tell(model, { type: 'figure' });
      return drawn;
    })
    .catch(fail);

  return () => {
    gone.abort();
    clearInterval(clock);
    model.off('msg:custom', onSamples);
    model.off('change:figure', onFigure);
    model.off('change:status', hear);
    model.off('change:plots', onPlots);
    dragged.dispose();
    view?.plotly.purge(other);
    view?.dispose();
  };
}

export default { render };
