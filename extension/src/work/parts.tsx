import * as React from 'react';

/** A state, by a shape before its word. */
export function Mark(props: { shape: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <span>
      <span aria-hidden="true">{props.shape}</span> {props.children}
    </span>
  );
}

/** What can be done with one of a list; `of` says to a screen reader with which. */
export function ActButton(props: {
  text: string;
  of: string;
  onClick: () => void;
  busy?: boolean;
  pressed?: boolean;
}): React.JSX.Element {
  return (
    <button
      className="jp-Gipfel-button"
      aria-pressed={props.pressed}
      aria-label={`${props.text}: ${props.of}`}
      disabled={props.busy}
      onClick={props.onClick}
    >
      {props.text}
    </button>
  );
}

/** What there is to say, in one line; nothing is left out of it that is not empty. */
export function wordsOf(found: readonly string[]): string {
  return found.filter(each => each !== '').join(' · ');
}
