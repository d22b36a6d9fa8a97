import { PathExt } from '@jupyterlab/coreutils';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { ScanRequests, Verdict } from './requests';

const BADGE = 'jp-Gipfel-verdict';
/** Names of files that programs load as models. */
const MODELS =
  /\.(pt|pth|bin|pkl|pickle|ckpt|safetensors|joblib|npy|npz|h5|hdf5|keras|onnx|gguf|nemo|msgpack|ipynb)$/i;
/** The server's limit for one request. */
const MAX_PATHS = 500;
const SHAPES: Readonly<Record<Verdict, string>> = {
  plain: '✓',
  'needs code': '◆',
  'not understood': '?',
  malicious: '▲'
};

/** Return a verdict as translated text. */
export function verdictText(verdict: Verdict, trans: TranslationBundle): string {
  return {
    plain: trans.__('Plain: loading it only builds values'),
    'needs code': trans.__('Needs code: loading it runs code'),
    'not understood': trans.__('Not understood: it could not be judged'),
    malicious: trans.__('Malicious: do not load it')
  }[verdict];
}

/** Badges with the verdict on model files in a file browser, requested whenever it refreshes. */
export class VerdictBadges {
  constructor(
    private readonly browser: FileBrowser,
    private readonly requests: ScanRequests,
    private readonly trans: TranslationBundle
  ) {
    browser.model.refreshed.connect(() => void this.refresh());
    browser.model.pathChanged.connect(() => void this.refresh());
    const content = browser.node.querySelector('.jp-DirListing-content');
    if (content !== null) {
      // The listing draws its rows again without a signal.
      new MutationObserver(() => {
        this.draw();
      }).observe(content, { childList: true, subtree: true, characterData: true });
    }
    void this.refresh();
  }

  /** Request the verdicts of the shown files, and draw their badges. */
  async refresh(): Promise<void> {
    const paths = Array.from(this.browser.model.items())
      .filter(item => item.type !== 'directory' && MODELS.test(item.name))
      .map(item => item.path)
      .slice(0, MAX_PATHS);
    try {
      this.verdicts = paths.length === 0 ? {} : await this.requests.kept(paths);
    } catch {
      // The server is busy: keep the badges until the next refresh.
      return;
    }
    this.draw();
  }

  private draw(): void {
    const names = new Map(
      Object.entries(this.verdicts).map(([path, verdict]) => [PathExt.basename(path), verdict])
    );
    for (const row of this.browser.node.querySelectorAll<HTMLElement>('.jp-DirListing-item')) {
      const text = row.querySelector<HTMLElement>('.jp-DirListing-itemText');
      if (text === null) {
        continue;
      }
      const old = text.querySelector<HTMLElement>(`.${BADGE}`);
      const name = text.querySelector(`span:not(.${BADGE})`)?.textContent ?? '';
      const verdict = names.get(name);
      if (verdict === undefined) {
        old?.remove();
      } else if (old?.dataset.verdict !== verdict) {
        old?.remove();
        text.append(this.badge(verdict));
      }
    }
  }

  private badge(verdict: Verdict): HTMLElement {
    const made = document.createElement('span');
    made.className = BADGE;
    made.dataset.verdict = verdict;
    made.textContent = SHAPES[verdict];
    made.title = verdictText(verdict, this.trans);
    made.setAttribute('role', 'img');
    made.setAttribute('aria-label', made.title);
    return made;
  }

  private verdicts: Readonly<Record<string, Verdict>> = {};
}
