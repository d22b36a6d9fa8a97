import type { Widget } from '@lumino/widgets';
import { renderToStaticMarkup } from 'react-dom/server';

/** The IDs of a panel's sections, in their order on the page. */
export function sectionsOf(panel: Widget | undefined): string[] {
  const html = renderToStaticMarkup((panel as unknown as { render(): React.JSX.Element }).render());
  return [...html.matchAll(/data-section="([^"]*)"/g)].map(found => found[1] ?? '');
}
