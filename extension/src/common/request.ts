import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/**
 * What a route of our server extension says.
 *
 * @param path Below `gipfel`, its query with it.
 * @param body Sent as JSON where it is given.
 * @throws Error with one line for people: the server's own, where it has one.
 */
export async function answerOf<T>(
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
