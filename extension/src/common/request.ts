import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** Return the URL of a websocket below `gipfel`. */
export function socketUrl(
  settings: ServerConnection.ISettings,
  path: string,
  query: Readonly<Record<string, string>> = {}
): string {
  // Only for another origin: on the server's own page the cookie suffices, and tokens in URLs end up in logs.
  const token = settings.appendToken && settings.token ? { token: settings.token } : {};
  return URLExt.join(settings.wsUrl, 'gipfel', path) + URLExt.objectToQueryString({ ...query, ...token });
}

/**
 * Send a request to a route of the server extension and return the JSON of its response.
 *
 * @param path Path below `gipfel`, with its query.
 * @param body Value to send as JSON, if any.
 * @throws Error with the server's message, or the status if there is none.
 */
export async function requestJson<T>(
  settings: ServerConnection.ISettings,
  path: string,
  method = 'GET',
  body?: unknown
): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
  }
  const url = URLExt.join(settings.baseUrl, 'gipfel', path);
  const response = await ServerConnection.makeRequest(url, init, settings);
  const answer = (await response.json().catch(() => null)) as (T & { message?: string }) | null;
  if (!response.ok || answer === null) {
    const [route] = path.split('?');
    throw new Error(answer?.message ?? `The notebook server answered ${response.status} to ${route}.`);
  }
  return answer;
}
