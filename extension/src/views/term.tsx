import * as React from 'react';

import { DOCUMENTATION, type ITerm } from './terms';
import type { ITranslation } from './translation';

const MARGIN_PX = 8;

/** A "?" that explains a term in two sentences, with a link to its page; Escape and a click elsewhere close it. */
export function Help({ term, trans }: { term: ITerm; trans: ITranslation }): React.JSX.Element {
  const button = React.useRef<HTMLButtonElement>(null);
  const note = React.useRef<HTMLSpanElement>(null);
  const open = useOpen(note, button);
  return (
    <span
      className="jp-Gipfel-help"
      onKeyDown={event => {
        if (event.key === 'Escape' && open) {
          // Escape would also leave a notebook's cell.
          event.stopPropagation();
          note.current?.hidePopover();
          button.current?.focus();
        }
      }}
    >
      <button
        ref={button}
        type="button"
        aria-expanded={open}
        aria-label={trans.__('Explain: %1', term.name)}
        onClick={event => {
          // Do not toggle the checkbox or summary that contains this button.
          event.preventDefault();
          event.stopPropagation();
          note.current?.togglePopover();
        }}
      />
      <span ref={note} {...{ popover: 'auto' }} role="note">
        {open && (
          <>
            <strong>{term.name}</strong> {term.text}{' '}
            <a href={DOCUMENTATION + term.page} target="_blank" rel="noopener noreferrer">
              {trans.__('Documentation')}
            </a>
          </>
        )}
      </span>
    </span>
  );
}

/** Return whether a note is open; an open one stays beside its button. */
function useOpen(
  note: React.RefObject<HTMLElement | null>,
  button: React.RefObject<HTMLElement | null>
): boolean {
  const [open, setOpen] = React.useState(false);
  React.useEffect(() => {
    const node = note.current;
    const onToggle = (event: Event): void => {
      setOpen((event as ToggleEvent).newState === 'open');
    };
    node?.addEventListener('toggle', onToggle);
    return () => {
      node?.removeEventListener('toggle', onToggle);
    };
  }, [note]);
  React.useEffect(() => {
    const follow = (): void => {
      if (button.current && note.current) {
        placeBeside(note.current, button.current);
      }
    };
    if (!open) {
      return;
    }
    follow();
    document.addEventListener('scroll', follow, true);
    window.addEventListener('resize', follow);
    return () => {
      document.removeEventListener('scroll', follow, true);
      window.removeEventListener('resize', follow);
    };
  }, [open, note, button]);
  return open;
}

/** Put a note below a button, or above it where there is no room, and inside the window. */
function placeBeside(note: HTMLElement, button: HTMLElement): void {
  const { left, top, bottom } = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = note;
  const below = bottom + MARGIN_PX / 2;
  const y = below + height > window.innerHeight ? top - height - MARGIN_PX / 2 : below;
  const x = Math.min(left - MARGIN_PX, window.innerWidth - width - MARGIN_PX);
  note.style.left = `${Math.max(MARGIN_PX, x)}px`;
  note.style.top = `${Math.max(MARGIN_PX, y)}px`;
}
