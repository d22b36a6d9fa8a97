/** Fraction of the main thread's time for non-urgent draws of all plots together: 45 ms per second. */
const SHARE = 0.045;
/** Largest fraction, used on a machine so slow that plots would otherwise stop updating. */
const MOST_SHARE = 0.2;
const LONGEST_PAUSE_MS = 2000;
const SHORTEST_PAUSE_MS = 40;

/** Draws plots one after the other, with pauses by their measured durations, so that the page stays responsive. */
export class DrawQueue {
  /**
   * Queue a draw of a plot; it replaces a queued draw of the same plot. Several plots may have one name.
   *
   * A plot that the user waits for, such as after a zoom, is `urgent`: it is drawn first and without a pause.
   */
  request(plot: object, name: string, draw: () => Promise<void>, urgent = false): void {
    const before = this._waiting.get(plot);
    this._waiting.set(plot, { name, draw, urgent: urgent || before?.urgent === true });
    if (!this._drawing) {
      this._schedule();
    }
  }

  /** Remove a plot from the queue. */
  drop(plot: object): void {
    this._waiting.delete(plot);
  }

  private _schedule(): void {
    window.clearTimeout(this._timer);
    if (this._waiting.size === 0) {
      return;
    }
    const urgent = [...this._waiting.values()].some(each => each.urgent);
    const wait = urgent ? 0 : Math.max(0, this._freeAt - performance.now());
    this._timer = window.setTimeout(() => void this._next(), wait);
  }

  private async _next(): Promise<void> {
    const found = [...this._waiting].find(([, each]) => each.urgent) ?? [...this._waiting][0];
    if (!found) {
      return;
    }
    const [plot, { name, draw }] = found;
    this._waiting.delete(plot);
    this._drawing = true;
    const started = performance.now();
    try {
      await draw();
    } catch {
      // The plot reports its failure itself; continue with the others.
    } finally {
      const now = performance.now();
      this._freeAt = now + pauseMs(now - started);
      // Visible in a performance trace of the browser.
      performance.measure(`gipfel draw ${name}`, { start: started, end: now });
      performance.clearMeasures(`gipfel draw ${name}`);
      this._drawing = false;
      this._schedule();
    }
  }

  private readonly _waiting = new Map<object, { name: string; draw: () => Promise<void>; urgent: boolean }>();
  private _timer = 0;
  private _freeAt = 0;
  private _drawing = false;
}

/** Return the pause after a draw, both in milliseconds. */
function pauseMs(spent: number): number {
  const wanted = Math.min(LONGEST_PAUSE_MS, spent * (1 / SHARE - 1));
  return Math.max(SHORTEST_PAUSE_MS, wanted, spent * (1 / MOST_SHARE - 1));
}
