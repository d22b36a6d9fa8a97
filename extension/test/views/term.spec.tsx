import * as React from 'react';
import { act } from 'react';
import { createRoot } from 'react-dom/client';

import { Help } from '../../src/views/term';
import { SCORE } from '../../src/views/terms';
import { ENGLISH } from '../../src/views/translation';

Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });

describe('a term', () => {
  it('is explained by a button that says whether it is open, and closed by Escape', () => {
    // jsdom has no popovers.
    const state = (open: boolean) =>
      function (this: HTMLElement): void {
        const event = Object.assign(new Event('toggle'), { newState: open ? 'open' : 'closed' });
        this.dispatchEvent(event);
      };
    Object.assign(HTMLElement.prototype, { togglePopover: state(true), hidePopover: state(false) });
    const place = document.body.appendChild(document.createElement('div'));
    const root = createRoot(place);
    act(() => {
      root.render(<Help term={SCORE} trans={ENGLISH} />);
    });
    const button = place.querySelector('button');
    expect(button?.getAttribute('aria-label')).toBe('Explain: score');
    expect(button?.getAttribute('aria-expanded')).toBe('false');
    act(() => {
      button?.click();
    });
    expect(button?.getAttribute('aria-expanded')).toBe('true');
    expect(place.querySelector('[popover]')?.textContent).toContain(SCORE.text);
    expect(place.querySelector('a')?.href).toContain(SCORE.page);
    act(() => {
      button?.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
    });
    expect(button?.getAttribute('aria-expanded')).toBe('false');
    expect(document.activeElement).toBe(button);
    act(() => {
      root.unmount();
    });
    place.remove();
  });
});
