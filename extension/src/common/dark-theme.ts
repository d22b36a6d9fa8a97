import type { IThemeManager } from '@jupyterlab/apputils';

import { FORCED, forcedDark } from '../views/figures/theme';

/** Report now and at each change whether the page is dark, because of its theme or because the browser forces it. */
export function followDark(themes: IThemeManager | null, report: (dark: boolean) => void): void {
  const update = (): void => {
    report(forcedDark() ?? (themes?.theme ? !themes.isLight(themes.theme) : false));
  };
  themes?.themeChanged.connect(update);
  if (typeof globalThis.matchMedia === 'function') {
    FORCED.forEach(query => {
      globalThis.matchMedia(query).addEventListener('change', update);
    });
  }
  update();
}
