import * as React from 'react';

/** A message about something missing or failed, after a symbol; its children are the next step: a text or a button. */
export function Notice(props: {
  shape: string;
  text: string;
  error?: boolean;
  children?: React.ReactNode;
}): React.JSX.Element {
  return (
    <div
      className={props.error ? 'jp-Gipfel-notice jp-mod-error' : 'jp-Gipfel-notice'}
      role={props.error ? 'alert' : undefined}
    >
      <p>
        <span aria-hidden="true">{props.shape}</span> {props.text}
      </p>
      {props.children}
    </div>
  );
}
