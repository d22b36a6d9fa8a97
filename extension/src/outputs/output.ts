import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Panel, Widget } from '@lumino/widgets';

import type { IGipfelLaunches } from '../tokens';

/** MIME type in the outputs of Gipfel's widgets: the other types are the saved view of the widget. */
export const LIVE_MIME_TYPE = 'application/vnd.gipfel.live+json';
const WIDGET_MIME_TYPE = 'application/vnd.jupyter.widget-view+json';
const SHORTEST_LOOK_MS = 50;
const LONGEST_LOOK_MS = 2_000;
/** Delay before the saved view is shown: an idle kernel restores the widget sooner. */
const SAVED_MS = 300;
const NOTE_MS = 1_500;
const SHORTEST_RETRY_MS = 1_000;
const LONGEST_RETRY_MS = 60_000;

/** The renderer of widgets; it contains the view once it has found the model. */
interface IHolder extends IRenderMime.IRenderer {
  readonly widgets: readonly Widget[];
}

/** A saved view, which the live widget replaces as soon as the kernel responds; a busy kernel may take minutes. */
export class LiveOutput extends Panel implements IRenderMime.IRenderer {
  /**
   * @param rendermime The renderers of the notebook; its renderer of widgets has the notebook's widget manager.
   * @param registry The renderers of the page; its renderer of widgets has no manager.
   * @param launches Views of launches; null if the site has disabled them.
   */
  constructor(
    private readonly rendermime: IRenderMimeRegistry,
    private readonly registry: IRenderMimeRegistry,
    private readonly trans: TranslationBundle,
    private readonly launches: IGipfelLaunches | null
  ) {
    super();
    this.addClass('jp-Gipfel-live');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    window.clearTimeout(this._timer);
    // The old view is disposed of for the new output, not because the kernel closed it.
    this._model = null;
    [this._saved, this._note, this._holder].forEach(each => each?.dispose());
    this._saved = this._note = this._holder = null;
    this._fromServer = false;
    this._asking = false;
    this._model = model;
    this._began = Date.now();
    this._retryMs = SHORTEST_RETRY_MS;
    this._look();
    return Promise.resolve();
  }

  override dispose(): void {
    window.clearTimeout(this._timer);
    super.dispose();
  }

  private _look(): void {
    window.clearTimeout(this._timer);
    const model = this._model;
    if (this.isDisposed || !model) {
      return;
    }
    if (!(WIDGET_MIME_TYPE in model.data)) {
      // A launch that had ended: its cell has no widget any more, but the server still has the launch.
      this._showSaved(model);
      return;
    }
    this._hold(model);
    const live = this._holder?.widgets[0];
    if (live) {
      this._showLive(live);
      return;
    }
    const waited = Date.now() - this._began;
    const failed = this._holder?.hasClass('jupyter-widgets') ?? false;
    if (failed && Date.now() - this._held > this._retryMs) {
      // The renderer does not retry, although the kernel may send the model later.
      this._holder?.dispose();
      this._holder = null;
      this._retryMs = Math.min(LONGEST_RETRY_MS, 2 * this._retryMs);
    }
    if (!this._saved && (failed || waited > SAVED_MS)) {
      this._showSaved(model);
    }
    // The server's view of a launch is up to date.
    this._setNote(!failed && waited > NOTE_MS && !this._fromServer);
    const next = Math.min(LONGEST_LOOK_MS, Math.max(SHORTEST_LOOK_MS, waited / 10));
    this._timer = window.setTimeout(() => {
      this._look();
    }, next);
  }

  /** Create a hidden renderer of widgets, which looks for the model, once the notebook has a manager. */
  private _hold(model: IRenderMime.IMimeModel): void {
    const factory = this.rendermime.getFactory(WIDGET_MIME_TYPE);
    if (this._holder || !factory || factory === this.registry.getFactory(WIDGET_MIME_TYPE)) {
      return;
    }
    const holder = this.rendermime.createRenderer(WIDGET_MIME_TYPE) as IHolder;
    holder.hide();
    this._holder = holder;
    this._held = Date.now();
    this.addWidget(holder);
    void holder.renderModel(model).catch(() => undefined);
  }

  private _showLive(view: Widget): void {
    this._holder?.show();
    this._asking = false;
    this._setNote(false);
    this._dropSaved();
    view.disposed.connect(() => {
      // The kernel closed the widget.
      if (!this.isDisposed && this._model && !this._saved) {
        this._showSaved(this._model);
      }
    });
  }

  /** Show the server's view of a launch, which runs without its cell; else the view in the notebook. */
  private _showSaved(model: IRenderMime.IMimeModel): void {
    const launch = (model.data[LIVE_MIME_TYPE] as { launch?: unknown } | undefined)?.launch;
    if (typeof launch !== 'string' || !this.launches) {
      this._showKept(model);
    } else if (!this._asking) {
      this._asking = true;
      void this.launches.createView(launch).then(found => {
        if (this.isDisposed || model !== this._model || !this._asking) {
          found?.dispose();
        } else if (found) {
          this._saved = found;
          this._fromServer = true;
          this.insertWidget(0, found);
        } else {
          this._showKept(model);
        }
      });
    }
  }

  private _showKept(model: IRenderMime.IMimeModel): void {
    const saved = Object.fromEntries(
      Object.entries(model.data).filter(([type]) => type !== LIVE_MIME_TYPE && type !== WIDGET_MIME_TYPE)
    );
    const type = this.rendermime.preferredMimeType(saved, model.trusted ? 'any' : 'ensure');
    if (type !== undefined) {
      const kept = this.rendermime.createRenderer(type);
      this._saved = kept;
      this.insertWidget(0, kept);
      void kept.renderModel(model).catch(() => undefined);
    }
  }

  /** Remove the saved view; a renderer that fails to dispose must not prevent the live view. */
  private _dropSaved(): void {
    const saved = this._saved;
    this._saved = null;
    this._fromServer = false;
    try {
      saved?.dispose();
    } catch {
      saved?.node.remove();
    }
  }

  private _setNote(shown: boolean): void {
    if (!shown) {
      this._note?.dispose();
      this._note = null;
    } else if (!this._note) {
      this._note = new Widget();
      this._note.addClass('jp-Gipfel-live-note');
      this._note.node.textContent = this.trans.__(
        'Saved view. The live view appears when the kernel responds.'
      );
      this.addWidget(this._note);
    }
  }

  private _model: IRenderMime.IMimeModel | null = null;
  private _saved: Widget | null = null;
  /** True from the request for the launch to the server until a live view is shown. */
  private _asking = false;
  /** True if the saved view is that of the server, not of the notebook. */
  private _fromServer = false;
  private _holder: IHolder | null = null;
  private _note: Widget | null = null;
  private _timer = 0;
  private _began = 0;
  private _held = 0;
  private _retryMs = SHORTEST_RETRY_MS;
}
