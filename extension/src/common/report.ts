import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import { isUtcChosen } from './clock';

/** Open a run's report, by its path below the server's base URL, in a new tab of the browser. */
export function openReport(settings: ServerConnection.ISettings, path: string): void {
  // The page has an origin of its own, so it can't read the user's choice of time zone.
  const url = URLExt.join(settings.baseUrl, path) + (isUtcChosen() ? '#utc' : '');
  window.open(url, '_blank', 'noopener');
}
