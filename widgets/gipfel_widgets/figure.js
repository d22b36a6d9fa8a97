/**
 * The plots of `saturation.js`, which follows in the same module: plotly.js, the theme, a figure in a node.
 * `clock.js` comes before it.
 */

const OFFER = Symbol.for('gipfel.plotly');
/** Time within which the plugin of the panel starts, if it is installed. */
const OFFER_MS = 4000;
const SHORTEST_SPAN_MS = 60000;

const CONFIG = {
  displaylogo: false,
  // A double click returns to the moving window, not to the range at the first draw.
  doubleClick: 'autosize',
  modeBarButtons: [['toImage', 'autoScale2d']]
};

/** Return plotly.js, or null if the page does not offer it. */
async function offeredPlotly() {
  for (let waited = 0; waited < OFFER_MS && !globalThis[OFFER]; waited += 200) {
    await new Promise(resolve => setTimeout(resolve, 200));
  }
  return globalThis[OFFER] ? globalThis[OFFER]() : null;
}

function isDark(node) {
  const ground = getComputedStyle(node).getPropertyValue('--jp-layout-color1').trim();
  const canvas = document.createElement('canvas').getContext('2d');
  if (!ground || !canvas) {
    return false;
  }
  // A canvas parses every notation of CSS colours.
  canvas.fillStyle = ground;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
  return red + green + blue < 384;
}

/** Return the layout in the colours of the page's theme. */
function themed(layout, node) {
  const style = getComputedStyle(node);
  const colour = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const result = {
    ...layout,
    autosize: true,
    // The top margin already includes the legend; plotly.js would add its height again.
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
        ? {
            ...note,
            font: {
              ...note.font,
              color: colour('--jp-warn-color1', note.font.color)
            }
          }
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

/** Return new points, after a missing one if samples are missing: no line is drawn across the gap. */
function withGap(before, added, uid) {
  const pauses = before
    .slice(-6)
    .flatMap((x, place, all) => (place ? [x - all[place - 1]] : []))
    .sort((a, b) => a - b);
  const usual = pauses[Math.floor(pauses.length / 2)];
  // Users' metrics may be logged at any interval.
  if (uid.startsWith('metrics/') || !usual || !(added.x[0] - before.at(-1) > 3.5 * usual)) {
    return added;
  }
  return { x: [before.at(-1) + usual, ...added.x], y: [null, ...added.y] };
}

/** Tracks whether the user drags across a node: the selection of a drag refers to the axis at its start. */
class Drag {
  constructor(node) {
    this.node = node;
    /** Settled while no drag is in progress. */
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
      // plotly.js handles the same event first.
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
    const watched = {
      attributes: true,
      attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name']
    };
    this.themes.observe(document.body, watched);
  }

  /** Draw a figure; a zoomed time axis stays, and lines that were hidden stay hidden. */
  draw(figure) {
    return this.enqueue(async () => {
      await this.drag.over;
      const first = !this.figure;
      // plotly.js modifies its input.
      this.figure = figure;
      const { data, layout } = structuredClone(figure);
      const dark = isDark(this.node);
      this.byUid = new Map(data.map(trace => [trace.uid, trace]));
      for (const trace of data) {
        const metric = trace.uid.slice(trace.uid.lastIndexOf('/') + 1);
        if (dark && this.darkColours[metric]) {
          trace.line.color = this.darkColours[metric];
        }
        // plotly.js uses it in a CSS selector when the trace is removed, and throws if that is invalid.
        trace.uid = trace.uid.replace(/[^\w-]/g, '_');
      }
      this.traces = data;
      // plotly.js keeps these objects, and stores in them which lines are hidden.
      this.drawn = data.map(trace => ({ ...trace }));
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
        // The drawn trace, and its copy for other themes.
        for (const trace of [this.byUid.get(uid), kept.get(uid)]) {
          const { x, y } = trace ? withGap(trace.x, added, uid) : added;
          trace?.x.push(...x);
          trace?.y.push(...y);
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
      const range = [from, newest];
      for (const key of Object.keys(this.layout)) {
        if (/^xaxis\d*$/.test(key)) {
          Object.assign(this.layout[key], {
            range: [...range],
            autorange: false
          });
        }
      }
    }
    const offsetMs = utcOffsetMs(newest === -Infinity ? Date.now() : newest);
    this.traces.forEach((trace, place) =>
      Object.assign(this.drawn[place], trace, localTimes(trace, this.layout, offsetMs))
    );
    const layout = localTimeLayout(this.layout, offsetMs);
    if (this.zoom) {
      for (const key of Object.keys(layout).filter(each => /^xaxis\d*$/.test(each))) {
        // As plotly.js reported it.
        layout[key] = { ...layout[key], range: [...this.zoom] };
      }
    }
    // The revision tells plotly.js that the data of the traces changed.
    layout.datarevision = ++this.revision;
    await this.plotly.react(this.node, this.drawn, layout, CONFIG);
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
