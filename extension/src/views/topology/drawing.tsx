import * as React from 'react';

import type { IJobTopology, IRankPlace } from '../../api';
import type { ITranslation } from '../translation';
import type { IArrangement, IFrame, IMark } from './boxes';
import { describe, hueOf, linesOf, stateOf, toneOf, type ILine, type ILit } from './lit';

/** Properties of a drawing. */
export interface IDrawingProps {
  readonly topology: IJobTopology;
  readonly arrangement: IArrangement;
  readonly places: ReadonlyMap<number, IRankPlace>;
  /** What is selected; null without a selection. */
  readonly lit: ILit | null;
  /** The axis of the roles that gives the colours; empty for none. */
  readonly axis: string;
  readonly trans: ITranslation;
}

/** Frames. Redrawn only when what is selected changes, not while a pointer moves over them. */
export const Frames = React.memo(function Frames(props: IDrawingProps): React.JSX.Element {
  const { arrangement } = props;
  return (
    <>
      {arrangement.frames.map(frame => (
        <Frame key={`${frame.unit} ${frame.name}`} frame={frame} {...props} />
      ))}
    </>
  );
});

/** Labels of frames, GPUs, NICs and ranks, drawn over the lines so that none crosses a text. */
export const Marks = React.memo(function Marks(props: IDrawingProps): React.JSX.Element {
  const { arrangement } = props;
  return (
    <>
      {arrangement.frames.map(frame => (
        <Label key={`${frame.unit} ${frame.name}`} frame={frame} {...props} />
      ))}
      {arrangement.marks.map((mark, place) => (
        <Mark key={`${mark.unit} ${mark.name}`} mark={mark} first={place === 0} {...props} />
      ))}
    </>
  );
});

function Frame(props: IDrawingProps & { frame: IFrame }): React.JSX.Element {
  const { frame, topology, places, trans } = props;
  const state = frameState(props);
  const interactive =
    frame.unit === 'numa'
      ? {}
      : {
          role: 'button',
          tabIndex: -1,
          'aria-pressed': state['data-state'] === 'chosen',
          'aria-label': describe(topology, frame, places, trans)
        };
  return (
    <g
      className="jp-Gipfel-topology-frame"
      data-unit={frame.unit}
      data-name={frame.name}
      {...state}
      {...interactive}
    >
      <rect x={frame.x + 0.5} y={frame.y + 0.5} width={frame.width} height={frame.height} rx={3} />
    </g>
  );
}

function Label(props: IDrawingProps & { frame: IFrame }): React.JSX.Element {
  const { unit, label, x, y, width } = props.frame;
  const most = Math.max(3, Math.floor(width / 6.3) - 1);
  return (
    <text
      className="jp-Gipfel-topology-label"
      aria-hidden="true"
      data-frame={unit}
      x={x + 5}
      y={y + 12}
      {...frameState(props)}
    >
      {label.length > most ? `${label.slice(0, most - 1)}…` : label}
    </text>
  );
}

/** Return the attributes of a frame and its label that the style sheet reads. */
function frameState({ frame, lit, topology }: IDrawingProps & { frame: IFrame }): {
  readonly 'data-state': 'chosen' | 'job';
  readonly 'data-failed': true | undefined;
} {
  const isLit = frame.unit !== 'numa' && lit?.[frame.unit].has(frame.name) === true;
  const failed =
    frame.unit === 'node' && topology.nodes.some(each => each.node === frame.name && each.vetted === 'fail');
  return { 'data-state': isLit ? 'chosen' : 'job', 'data-failed': failed || undefined };
}

function Mark(props: IDrawingProps & { mark: IMark; first: boolean }): React.JSX.Element {
  const { mark, lit, axis, topology, places, trans, first } = props;
  const state = stateOf(mark, lit);
  const [rank = -1] = mark.ranks;
  const value = mark.unit === 'nic' ? undefined : places.get(rank)?.role[axis];
  const style = (
    value === undefined
      ? undefined
      : { '--gipfel-hue': hueOf(value, topology.axes[axis] ?? 1), '--gipfel-tone': toneOf(value) }
  ) as React.CSSProperties | undefined;
  return (
    <g
      className="jp-Gipfel-topology-mark"
      role="button"
      tabIndex={first ? 0 : -1}
      aria-pressed={state === 'chosen'}
      aria-label={describe(topology, mark, places, trans)}
      data-unit={mark.unit}
      data-name={mark.name}
      data-state={state}
      data-role={value === undefined ? undefined : `${axis}=${value}`}
      style={style}
    >
      <Shape mark={mark} free={state === 'free'} />
      {mark.text !== '' && (
        <text
          x={mark.x + mark.width / 2}
          y={mark.y + mark.height / 2}
          textLength={mark.text.length > 3 ? mark.width - 3 : undefined}
          lengthAdjust="spacingAndGlyphs"
        >
          {mark.text}
        </text>
      )}
    </g>
  );
}

/** A square for a GPU, a lozenge for a rank without one, a pill for a NIC; small while no rank uses it. */
function Shape({ mark, free }: { mark: IMark; free: boolean }): React.JSX.Element {
  const { x, y, width, height } = mark;
  if (mark.unit === 'rank') {
    const points = [
      [x + width / 2, y],
      [x + width, y + height / 2],
      [x + width / 2, y + height],
      [x, y + height / 2]
    ];
    return <polygon points={points.map(each => each.join(',')).join(' ')} />;
  }
  const inset = free ? Math.min(width, height) / 6 : 0.75;
  return (
    <rect
      x={x + inset}
      y={y + inset}
      width={width - 2 * inset}
      height={height - 2 * inset}
      rx={mark.unit === 'nic' ? height / 2 : free ? width / 2 : 2}
    />
  );
}

/** Links of some GPUs, with a title of kind and number. */
export function Lines(props: { lines: readonly ILine[] }): React.JSX.Element {
  return (
    <g className="jp-Gipfel-topology-lines" aria-hidden="true">
      {props.lines.map((line, place) => {
        const [from, to] = endsOf(line);
        return (
          <line
            key={place}
            data-kind={line.kind}
            data-first={line.first.name}
            data-second={line.second.name}
            x1={from[0]}
            y1={from[1]}
            x2={to[0]}
            y2={to[1]}
          />
        );
      })}
    </g>
  );
}

type Point = readonly [number, number];

/** Return both ends of a line: between the middles of two marks, or from a mark to the border of its frame. */
function endsOf({ first, second }: ILine): readonly [Point, Point] {
  const from = centre(first);
  if ('ranks' in second) {
    return [from, centre(second)];
  }
  if (second.unit !== 'numa') {
    // Beside the line to a NIC, which is drawn from the same middle.
    const x = from[0] + first.width / 4;
    return [
      [x, from[1]],
      [x, second.y + second.height]
    ];
  }
  // To the nearer side, of a single GPU to the right, where there is more space.
  const right = second.x + second.width;
  const isLeft = first.x - second.x < right - first.x - first.width && second.width > 2 * first.width;
  return [from, [isLeft ? second.x : right, from[1]]];
}

function centre(item: IMark | IFrame): Point {
  return [item.x + item.width / 2, item.y + item.height / 2];
}

/** Return the links of the selected GPUs, or of the one that is pointed at. */
export function linesFor(
  topology: IJobTopology,
  arrangement: IArrangement,
  lit: ILit | null,
  current: IMark | IFrame | null
): ILine[] {
  const { marks, frames } = arrangement;
  const own = linesOf(topology, marks, frames, lit?.gpu ?? new Set());
  if (current === null || !('ranks' in current) || current.unit !== 'gpu' || lit?.gpu.has(current.name)) {
    return own;
  }
  // Pass all GPUs of the node, so that each link of the current one has both ends.
  const node = new Set(marks.filter(mark => mark.node === current.node).map(mark => mark.name));
  const shown = linesOf(topology, marks, frames, node);
  return [...own, ...shown.filter(line => line.first === current || line.second === current)];
}
