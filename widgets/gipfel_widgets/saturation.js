/**
 * The browser side of `saturation.py`: draws with the page's plotly.js, which the Gipfel panel offers.
 * `figure.js` comes before it in the same module.
 */

/** Time without a response after which the kernel counts as busy or gone. */
const SILENT_MS = 8000;
const FIRST_WORD_MS = 4000;
const IMAGE_MS = 10000;
/** Difference of the bounds of a score, in points, from which they are shown. */
const WIDE = 5;
const SHAPES = {
  live: ['●', 'live'],
  starting: ['◐', 'starting'],
  stale: ['▲', 'stale'],
  absent: ['○', 'no samples'],
  silent: ['▪', 'not live: as it was last heard of']
};

function make(tag, name, parent) {
  return Object.assign(parent.appendChild(document.createElement(tag)), {
    className: name
  });
}

/** The state as a symbol and a word, the interval, and the message of the kernel. */
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
    const message = state === 'live' && status.gpus > 0 ? '' : inLocalTime(status.message ?? '');
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

/** Return the bounds of a score at the interval of the samples. */
function rangeOf(range) {
  const [least, most] = range ?? [0, 0];
  return most - least >= WIDE ? ` (between ${Math.round(least)} and ${Math.round(most)})` : '';
}

/** The score in one line, and the choice of the plot. */
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
    const { score, losses, bottleneck, range } = model.get('score') ?? {};
    line.hidden = Object.keys(model.get('plots') ?? {}).length === 0;
    const lost = Object.entries(losses ?? {})
      .filter(([, points]) => points >= 0.5)
      .sort((a, b) => b[1] - a[1])
      .map(([name, points]) => `${name} ${Math.round(points)}`);
    words.textContent =
      typeof score === 'number'
        ? `score ${Math.round(score)} of 100${rangeOf(range)}, ${bottleneck ?? 'bottleneck unclear'} · lost: ${lost.join(' · ') || 'nothing'}`
        : 'no score yet';
  };
}

/** Send the kernel a message; without a kernel, the view stays as it was saved. */
function tell(model, message) {
  try {
    model.send(message);
  } catch {}
}

/** A static image that the kernel draws, with a note on how to get the live view. */
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
      const { data, layout } = localTimeFigure(structuredClone(shown));
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
  // A running kernel responds soon; a saved notebook has none.
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
      // A page that was opened later needs the whole figure.
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
