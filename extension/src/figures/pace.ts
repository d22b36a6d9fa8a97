/** What draws that nobody waits for take of the main thread, all plots together: 45 ms of a second. */
const SHARE = 0.045;
/** What they take at most on a machine so slow that plots would stand still otherwise: a fifth. */
const MOST_SHARE = 0.2;
const LONGEST_PAUSE_MS = 2000;
const SHORTEST_PAUSE_MS = 40;

/** Draws one plot after the other, and measures each, so that the page stays free for everything else. */
export class DrawQueue {
  /**
   * Draw when it is this plot's turn; a draw of the same plot that still waits is replaced.
   *
   * A plot that somebody waits for, such as one that was just zoomed, is `urgent`: it comes first and at once.
   */
  request(name: string, draw: () => Promise<void>, urgent = false): void {
    const before = this._waiting.get(name);
    this._waiting.set(name, { draw, urgent: urgent || before?.urgent === true });
    if (!this._drawing) {
      this._schedule();
    }
  }

  /** Forget a plot that is gone. */
  drop(name: string): void {
    this._waiting.delete(name);
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
    const [name, { draw }] = found;
    this._waiting.delete(name);
    this._drawing = true;
    const started = performance.now();
    try {
      await draw();
    } catch {
      // The plot itself says that it failed; the others go on.
    } finally {
      const now = performance.now();
      this._freeAt = now + pauseMs(now - started);
      // Seen in a performance trace.
      performance.measure(`gipfel draw ${name}`, { start: started, end: now });
      performance.clearMeasures(`gipfel draw ${name}`);
      this._drawing = false;
      this._schedule();
    }
  }

  private readonly _waiting = new Map<string, { draw: () => Promise<void>; urgent: boolean }>();
  private _timer = 0;
  private _freeAt = 0;
  private _drawing = false;
}

/** How long to leave the page alone after a draw of so many milliseconds. */
function pauseMs(spent: number): number {
  const wanted = Math.min(LONGEST_PAUSE_MS, spent * (1 / SHARE - 1));
  return Math.max(SHORTEST_PAUSE_MS, wanted, spent * (1 / MOST_SHARE - 1));
}
