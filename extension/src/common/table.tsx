import * as React from 'react';

/** A table in a box that scrolls, with a row of column titles. */
export function Table(props: React.PropsWithChildren<{ heads: readonly string[] }>): React.JSX.Element {
  return (
    // Focusable, so that it can be scrolled with the keyboard.
    <div className="jp-Gipfel-job-ranks" tabIndex={0} role="region" aria-label={props.heads.join(', ')}>
      <table>
        <thead>
          <tr>
            {props.heads.map(each => (
              <th key={each} scope="col">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}
