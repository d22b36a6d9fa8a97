import * as React from 'react';

/** A state: a symbol and its name. */
export function StateLabel(props: { shape: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <span>
      <span aria-hidden="true">{props.shape}</span> {props.children}
    </span>
  );
}

/** A button for an action on a list item; `item` names the item for screen readers. */
export function ActionButton(props: {
  text: string;
  item: string;
  onClick: () => void;
  busy?: boolean;
  pressed?: boolean;
}): React.JSX.Element {
  return (
    <button
      className="jp-Gipfel-button"
      aria-pressed={props.pressed}
      aria-label={`${props.text}: ${props.item}`}
      disabled={props.busy}
      onClick={props.onClick}
    >
      {props.text}
    </button>
  );
}

/** Join the texts that are not empty to one line. */
export function joinParts(found: readonly string[]): string {
  return found.filter(each => each !== '').join(' · ');
}
