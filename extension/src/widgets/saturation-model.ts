import type { IFigure, ISaturationStatus, IScore } from '../api';
import { isDark } from '../views/figures/theme';
import type { Traces } from '../views/figures/traces';
import type { SampleState } from '../views/saturation/state';
import { notify, type IWidgetModel, type IWidgetViewModel } from './host';
import { ACTIVITY, CellFigures, offeredPlotly } from './saturation-figures';

/** Time without a response after which the kernel counts as busy or gone. */
const SILENT_MS = 8000;
const FIRST_WORD_MS = 4000;
const TICK_MS = 2000;
const IMAGE_MS = 10_000;

type KernelMessage = { readonly type: 'samples'; readonly traces: Traces } | { readonly type: 'image' };

/** The saturation in a cell: the state that the kernel sends, plotly.js of the page or else the kernel's image. */
export class SaturationCellModel implements IWidgetViewModel {
  /** @param _changed Called after each change. */
  constructor(
    private readonly _kernel: IWidgetModel,
    private readonly _changed: () => void
  ) {
    // A running kernel responds soon; a saved notebook has no kernel.
    this._heardMs = Date.now() - this._silentMs + FIRST_WORD_MS;
    _kernel.on('msg:custom', this._onMessage);
    _kernel.on('change:figure', this._hear);
    _kernel.on('change:status', this._hear);
    _kernel.on('change:plots', _changed);
    _kernel.on('change:score', _changed);
    this._clock = window.setInterval(_changed, TICK_MS);
    void this._load();
  }

  /** The page's figures; null without plotly.js. */
  get figures(): CellFigures | null {
    return this._figures;
  }

  /** True if the page has no plotly.js: the kernel's image takes its place. */
  get still(): boolean {
    return this._still;
  }

  /** True if plotly.js could not be loaded. */
  get failed(): boolean {
    return this._failed;
  }

  /** URL of the kernel's image; empty before there is one. */
  get imageUrl(): string {
    return this._imageUrl;
  }

  get status(): Partial<ISaturationStatus> {
    return this._kernel.get('status') ?? {};
  }

  /** The state of the samples, if the kernel still reports it. */
  get state(): SampleState {
    const state = this.status.state ?? 'starting';
    return state === 'live' && Date.now() - this._heardMs > this._silentMs ? 'silent' : state;
  }

  /** The score; null before the kernel has scored any GPU. */
  get score(): IScore | null {
    const score = (this._kernel.get('score') ?? {}) as IScore | Record<string, never>;
    return 'integer_points' in score && this.hasPlots ? (score as IScore) : null;
  }

  /** The name of the plot that is shown. */
  get chosen(): string {
    return this._chosen;
  }

  /** True if there are other plots than the activity. */
  get hasPlots(): boolean {
    return Object.keys(this._plots).length > 0;
  }

  /** Show another plot, which the kernel draws for the page's theme. */
  choose(name: string): void {
    this._chosen = name;
    this._requestPlots();
    this._changed();
  }

  dispose(): void {
    this._disposed = true;
    window.clearInterval(this._clock);
    window.clearInterval(this._imageTimer);
    this._setImage(null);
    this._figures?.dispose();
    this._kernel.off('msg:custom', this._onMessage);
    this._kernel.off('change:figure', this._hear);
    this._kernel.off('change:status', this._hear);
    this._kernel.off('change:plots', this._changed);
    this._kernel.off('change:score', this._changed);
  }

  private async _load(): Promise<void> {
    try {
      const plotly = await offeredPlotly();
      if (this._disposed) {
        return;
      }
      if (plotly) {
        this._figures = new CellFigures(this._kernel, plotly, this._requestPlots);
        // A page that was opened later needs the whole figure.
        notify(this._kernel, { type: 'figure' });
      } else {
        this._still = true;
        this._followImage();
      }
    } catch {
      this._failed = true;
    }
    this._changed();
  }

  /** Ask for the plots besides the activity, if one is shown, in the colours of the page. */
  private readonly _requestPlots = (): void => {
    if (this._chosen !== ACTIVITY) {
      notify(this._kernel, { type: 'plots', dark: isDark(document.body) });
    }
  };

  private _followImage(): void {
    notify(this._kernel, { type: 'image' });
    this._imageTimer = window.setInterval(() => {
      if (this.status.state === 'live') {
        notify(this._kernel, { type: 'image' });
      }
    }, IMAGE_MS);
  }

  private readonly _onMessage = (message: KernelMessage, buffers?: readonly BlobPart[]): void => {
    if (message.type === 'samples') {
      // The figures handle the samples themselves; apart from them, only the state may change.
      const before = this.state;
      this._figures?.extend({ traces: message.traces });
      this._heardMs = Date.now();
      if (this.state !== before) {
        this._changed();
      }
      return;
    }
    if (this._still && buffers?.[0]) {
      this._setImage(new Blob([buffers[0]], { type: 'image/png' }));
    }
    this._hear();
  };

  private _setImage(image: Blob | null): void {
    if (this._imageUrl) {
      URL.revokeObjectURL(this._imageUrl);
    }
    this._imageUrl = image ? URL.createObjectURL(image) : '';
  }

  private readonly _hear = (): void => {
    this._heardMs = Date.now();
    this._changed();
  };

  private get _plots(): Readonly<Record<string, IFigure>> {
    return (this._kernel.get('plots') ?? {}) as Readonly<Record<string, IFigure>>;
  }

  private get _silentMs(): number {
    return Math.max(SILENT_MS, 4000 * (this.status.interval ?? 1));
  }

  private readonly _clock: number;
  private _imageTimer = 0;
  private _heardMs: number;
  private _figures: CellFigures | null = null;
  private _still = false;
  private _failed = false;
  private _imageUrl = '';
  private _chosen = ACTIVITY;
  private _disposed = false;
}
