import * as React from 'react';

import type { ITranslation } from '../translation';
import type { IRecentValues } from './recent-values';

const REFRESH_MS = 5_000;

/** A figure as text: a table of the last minute, read again while it is open. */
export function ValuesTable(props: {
  /** Description of the figure. */
  label: string;
  read: () => readonly IRecentValues[];
  trans: ITranslation;
}): React.JSX.Element {
  const { label, trans } = props;
  const [rows, setRows] = React.useState<readonly IRecentValues[] | null>(null);
  const read = React.useRef(props.read);
  React.useEffect(() => {
    read.current = props.read;
  });
  const open = rows !== null;
  React.useEffect(() => {
    if (!open) {
      return undefined;
    }
    const timer = window.setInterval(() => {
      setRows(read.current());
    }, REFRESH_MS);
    return () => {
      window.clearInterval(timer);
    };
  }, [open]);
  return (
    <details
      className="jp-Gipfel-more jp-Gipfel-values"
      onToggle={event => {
        setRows(event.currentTarget.open ? read.current() : null);
      }}
    >
      <summary aria-label={trans.__('Last minute as a table: %1', label)}>{trans.__('Table')}</summary>
      {open && <Rows rows={rows} caption={label} trans={trans} />}
    </details>
  );
}

function Rows(props: {
  rows: readonly IRecentValues[];
  caption: string;
  trans: ITranslation;
}): React.JSX.Element {
  const { rows, caption, trans } = props;
  if (rows.length === 0) {
    return <p className="jp-Gipfel-small">{trans.__('There are no values in the last minute.')}</p>;
  }
  return (
    <table className="jp-Gipfel-table">
      <caption className="jp-Gipfel-hidden">{caption}</caption>
      <thead>
        <tr>
          <th scope="col">{trans.__('last minute')}</th>
          <th scope="col">{trans.__('mean')}</th>
          <th scope="col">{trans.__('least')}</th>
          <th scope="col">{trans.__('greatest')}</th>
          <th scope="col">{trans.__('unit')}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row, place) => (
          <tr key={`${row.name} ${place}`}>
            <th scope="row">{row.name}</th>
            <td>{digits(row.mean)}</td>
            <td>{digits(row.low)}</td>
            <td>{digits(row.high)}</td>
            <td>{row.unit}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function digits(value: number): string {
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}
