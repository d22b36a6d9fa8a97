import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Debouncer } from '@lumino/polling';

import { decodeLocation, encodeLocation, locationOfUrl, urlWith, type IPageLocation } from './location';
import type { JobModel } from './model';
import { JobPage, type JobTabs } from './page';

/**
 * Milliseconds from a change until the URL is set: JupyterLab sets its own URL when another widget is shown, and
 * ours must be set after it.
 */
const SETTLE_MS = 250;

/** Opens the one job page, and keeps JupyterLab's URL and saved workspace in step with what the page shows. */
export class PageOpener {
  constructor(
    private readonly _shell: JupyterFrontEnd.IShell,
    private readonly _model: JobModel,
    private readonly _tabs: JobTabs,
    private readonly _tracker: WidgetTracker<JobPage>,
    private readonly _trans: TranslationBundle
  ) {
    const changed = (): void => {
      void this._settled.invoke();
    };
    _model.selection.changed.connect(changed);
    _tabs.changed.connect(changed);
    _shell.currentChanged?.connect(changed);
  }

  /** Return the page, created if it was closed. */
  page(): JobPage {
    if (this._page === null || this._page.isDisposed) {
      this._page = new JobPage(this._model, this._tabs, this._trans);
      void this._tracker.add(this._page);
    }
    return this._page;
  }

  /** Open the page; with a run, show that. */
  open(run?: string, launch?: string): JobPage {
    if (run !== undefined) {
      this._model.selection.show(run, launch ?? '');
    }
    return this._activate();
  }

  /** Open the page as a saved workspace has it. */
  restore(value: string): JobPage {
    return this._show(decodeLocation(value));
  }

  /** Open the page that the query of a URL shows, if it shows one. */
  openUrl(search: string): void {
    const place = locationOfUrl(search);
    if (place === null) {
      return;
    }
    const value = encodeLocation(place);
    if (value === this._value) {
      // The page has shown this URL or set it. The selection may have changed since, and the URL follows only
      // after a delay, so a late call by the router must not restore the old selection.
      this._activate();
      return;
    }
    this._value = value;
    this._show(place);
  }

  /** Whether the URL follows the page; until `begin` is called, the page has yet to show what the URL contains. */
  get followsPage(): boolean {
    return this._followsPage;
  }

  /** Show what the URL had when JupyterLab was loaded, then let the URL follow the page. */
  begin(search: string): void {
    this.openUrl(search);
    this._followsPage = true;
  }

  /** Return what a workspace keeps of the page. */
  placeOf(page: JobPage): string {
    return encodeLocation(page.location);
  }

  private _show(place: IPageLocation): JobPage {
    const { tab, ...state } = place;
    this._tabs.select(tab);
    this._model.selection.restore(state);
    return this._activate();
  }

  private _activate(): JobPage {
    const page = this.page();
    if (!page.isAttached) {
      this._shell.add(page, 'main', { type: 'Gipfel' });
    }
    this._shell.activateById(page.id);
    return page;
  }

  private _setUrl(): void {
    const page = this._page;
    if (page === null || !this._followsPage) {
      return;
    }
    const shown = !page.isDisposed && this._shell.currentWidget === page;
    this._value = shown ? encodeLocation(page.location) : '';
    const url = urlWith(window.location.href, shown ? page.location : null);
    if (url !== window.location.href) {
      window.history.replaceState(window.history.state, '', url);
    }
    if (!page.isDisposed) {
      void this._tracker.save(page);
    }
  }

  private readonly _settled = new Debouncer(() => {
    this._setUrl();
  }, SETTLE_MS);
  private _page: JobPage | null = null;
  /** Value of the URL's parameter that the page has last shown or set; empty if the page is not the current widget. */
  private _value = '';
  private _followsPage = false;
}
