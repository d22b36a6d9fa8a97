import * as React from 'react';

import type { ITranslation } from '../translation';

/** A symbol for each state of the samples, and of the connection to them. */
const SHAPES = {
  live: '●',
  starting: '◐',
  stale: '▲',
  absent: '○',
  open: '◐',
  connecting: '◐',
  retrying: '▲',
  paused: '‖',
  past: '◇',
  growing: '●',
  silent: '▪'
} as const;

export type SampleState = keyof typeof SHAPES;

/** The state of the samples as a symbol and a word; children follow the word, `beside` is not announced. */
export function StateLine(props: {
  state: SampleState;
  simulated: boolean;
  trans: ITranslation;
  title?: string;
  children?: React.ReactNode;
  beside?: React.ReactNode;
}): React.JSX.Element {
  const { state, simulated, trans } = props;
  return (
    <span className="jp-Gipfel-status" data-state={state} title={props.title}>
      <span role="status">
        {simulated && (
          <span className="jp-Gipfel-badge">
            <span aria-hidden="true">◇</span> {trans.__('simulated')}
          </span>
        )}
        <span className="jp-Gipfel-shape" aria-hidden="true">
          {SHAPES[state]}
        </span>{' '}
        {stateText(state, trans)}
        {props.children}
      </span>
      {props.beside}
    </span>
  );
}

function stateText(state: SampleState, trans: ITranslation): string {
  return {
    live: trans.__('live'),
    starting: trans.__('starting'),
    stale: trans.__('stale'),
    absent: trans.__('no samples'),
    open: trans.__('starting'),
    connecting: trans.__('connecting'),
    retrying: trans.__('disconnected'),
    paused: trans.__('paused'),
    past: trans.__('history'),
    growing: trans.__('being recorded'),
    silent: trans.__('disconnected; the last update is shown')
  }[state];
}
