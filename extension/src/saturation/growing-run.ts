/** A run that somebody records elsewhere is read from its folder; its recorder writes every few seconds. */
const AGAIN_MS = 5_000;

/** Reads a run that grows once more, without a word, while somebody looks. */
export class Again {
  constructor(private readonly read: () => Promise<void>) {}

  /** Whether the run grows. */
  growing = false;

  /** Whether somebody looks. */
  visible = false;

  /** Read it later, where there will be more. */
  later(): void {
    this.stop();
    if (this.growing) {
      this._timer = window.setTimeout(() => {
        if (this.visible) {
          this.read().catch(() => {
            this.later();
          });
        } else {
          this.later();
        }
      }, AGAIN_MS);
    }
  }

  /** Wait no longer. */
  stop(): void {
    window.clearTimeout(this._timer);
  }

  private _timer = 0;
}
