import * as React from 'react';

import type { IJobTopology } from '../../api';
import { StateLabel } from '../elements';
import type { ITranslation } from '../translation';
import { arrange, isFolded, type IArrangement, type IFrame, type IMark } from './boxes';
import { Frames, Lines, linesFor, Marks } from './drawing';
import { describe, LINKS, litBy, type ILine } from './lit';

/** The kind of unit that a click selects. */
export type TopologyUnit = 'rank' | 'gpu' | 'nic' | 'node' | 'switch';

interface ITopologyProps {
  readonly topology: IJobTopology;
  /** Selected ranks; null without a selection. */
  readonly selected: ReadonlySet<number> | null;
  /** Selected devices, also those without a rank. */
  readonly devices?: readonly string[];
  /** Called with what was clicked; `add` to add it to the selection. */
  readonly onChoose: (unit: TopologyUnit, names: readonly string[], add: boolean) => void;
  readonly trans: ITranslation;
}

const FALLBACK_WIDTH = 800;

/** Switches around nodes around NUMA nodes around GPUs and NICs, with the links of what is selected. */
export function TopologyView(props: ITopologyProps): React.JSX.Element {
  const { topology, selected, devices, trans } = props;
  const [axis, setAxis] = React.useState<string | null>(null);
  const [frame, width] = useWidth();
  const [current, setCurrent] = React.useState<IMark | IFrame | null>(null);
  const arrangement = React.useMemo(() => arrange(topology.nodes, width), [topology.nodes, width]);
  const places = React.useMemo(() => new Map(topology.ranks.map(each => [each.rank, each])), [topology]);
  const lit = React.useMemo(
    () => (selected === null ? null : litBy(topology.ranks, selected, devices)),
    [topology, selected, devices]
  );
  const colours = axis ?? defaultAxis(topology);
  const lines = linesFor(topology, arrangement, lit, current);
  const drawn = { topology, arrangement, places, lit, axis: colours, trans };
  return (
    <div className="jp-Gipfel-topology" ref={frame}>
      <Findings topology={topology} trans={trans} />
      <div className="jp-Gipfel-topology-legend">
        <Legend topology={topology} selected={lit?.rank.size ?? null} lines={lines} trans={trans} />
        <Axes topology={topology} axis={colours} onAxis={setAxis} trans={trans} />
      </div>
      <Picture {...props} arrangement={arrangement} selection={lit !== null} onCurrent={setCurrent}>
        <Frames {...drawn} />
        <Lines lines={lines} />
        <Marks {...drawn} />
      </Picture>
      <p className="jp-Gipfel-topology-detail">
        {current
          ? describe(topology, current, places, trans)
          : trans.__(
              'Point at a box, or move to it with Tab and the arrow keys, to see what it is. Enter or a click selects it, with Shift in addition.'
            )}
      </p>
    </div>
  );
}

interface IPictureProps extends ITopologyProps {
  readonly arrangement: IArrangement;
  readonly selection: boolean;
  readonly onCurrent: (item: IMark | IFrame | null) => void;
  readonly children: React.ReactNode;
}

/** The picture, and its pointer and keys: one listener of each kind for all boxes. */
function Picture(props: IPictureProps): React.JSX.Element {
  const { arrangement, onChoose, onCurrent, trans } = props;
  const items = React.useMemo(() => itemsOf(arrangement), [arrangement]);
  const at = (target: EventTarget): IMark | IFrame | null => items.get(keyOf(target)) ?? null;
  const choose = (target: EventTarget, add: boolean): void => {
    const item = at(target);
    if (item !== null && item.unit !== 'numa') {
      onChoose(item.unit, 'leaves' in item && item.unit === 'switch' ? item.leaves : [item.name], add);
    }
  };
  const onKey = (event: React.KeyboardEvent<SVGSVGElement>): void => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      choose(event.target, event.shiftKey);
    } else if (event.key in DIRECTIONS) {
      event.preventDefault();
      event.stopPropagation();
      focusNext(event.currentTarget, items, at(event.target), event.key);
    }
  };
  return (
    <svg
      width={Math.ceil(arrangement.width) + 2}
      height={Math.ceil(arrangement.height) + 2}
      role="group"
      aria-label={trans.__('Topology of the job')}
      data-selection={props.selection ? 'some' : 'none'}
      onPointerOver={event => {
        onCurrent(at(event.target));
      }}
      onPointerLeave={() => {
        onCurrent(null);
      }}
      onFocus={event => {
        onCurrent(at(event.target));
      }}
      onClick={event => {
        choose(event.target, event.shiftKey || event.ctrlKey || event.metaKey);
      }}
      onKeyDown={onKey}
    >
      {props.children}
    </svg>
  );
}

const DIRECTIONS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1]
};

function keyOf(target: EventTarget): string {
  const found = target instanceof Element ? target.closest<SVGElement>('[data-unit]') : null;
  return found ? `${found.dataset.unit ?? ''} ${found.dataset.name ?? ''}` : '';
}

function itemsOf(arrangement: IArrangement): Map<string, IMark | IFrame> {
  const all: (IMark | IFrame)[] = [...arrangement.frames, ...arrangement.marks];
  return new Map(all.map(item => [`${item.unit} ${item.name}`, item]));
}

/** Move the focus to the nearest box in a direction: its label if it is a frame. */
function focusNext(
  picture: SVGSVGElement,
  items: ReadonlyMap<string, IMark | IFrame>,
  from: IMark | IFrame | null,
  key: string
): void {
  const [right, down] = DIRECTIONS[key] ?? [0, 0];
  if (from === null) {
    return;
  }
  let best: [number, string] | null = null;
  for (const [name, item] of items) {
    const [x, y] = [item.x - from.x, item.y - from.y];
    const along = x * right + y * down;
    // A box that lies off the direction counts as farther away.
    const distance = along + 3 * Math.abs(x * down + y * right);
    if (item.unit !== 'numa' && along > 0 && (best === null || distance < best[0])) {
      best = [distance, name];
    }
  }
  const next = [...picture.querySelectorAll<SVGElement>('[tabindex]')].find(
    each => keyOf(each) === best?.[1]
  );
  if (next) {
    // Tab returns to the box that had the focus last.
    picture.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1');
    next.setAttribute('tabindex', '0');
    next.focus();
  }
}

/** Notes: how scattered the job is, the source of the switches, and contradictions between sources. */
function Findings(props: { topology: IJobTopology; trans: ITranslation }): React.JSX.Element {
  const { topology, trans } = props;
  return (
    <div className="jp-Gipfel-topology-findings">
      {topology.scatter.sentence && <p className="jp-Gipfel-topology-scatter">{topology.scatter.sentence}</p>}
      <p className="jp-Gipfel-small">{trans.__('Switches: %1.', topology.source)}</p>
      {topology.problems.map(each => (
        <p key={each.text}>
          <span aria-hidden="true">▲</span> {each.text} {each.fix}
        </p>
      ))}
    </div>
  );
}

function Legend(props: {
  topology: IJobTopology;
  selected: number | null;
  lines: readonly ILine[];
  trans: ITranslation;
}): React.JSX.Element {
  const { topology, selected, lines, trans } = props;
  const kinds = [...new Set(lines.map(line => line.kind))];
  const failed = topology.nodes.filter(node => node.vetted === 'fail').length;
  return (
    <>
      {selected !== null && (
        <StateLabel shape="■">{trans._n('%1 rank selected', '%1 ranks selected', selected)}</StateLabel>
      )}
      <StateLabel shape="□">{trans.__('of the job')}</StateLabel>
      <StateLabel shape="○">{trans.__('used by no rank')}</StateLabel>
      {failed > 0 && <StateLabel shape="✗">{trans.__('failed its vetting')}</StateLabel>}
      {kinds.map(kind => (
        <span key={kind}>
          <svg width="18" height="8" aria-hidden="true">
            <g className="jp-Gipfel-topology-lines">
              <line data-kind={kind} x1="0" y1="4" x2="18" y2="4" />
            </g>
          </svg>{' '}
          {kind === 'nearest' ? trans.__('nearest NIC') : LINKS[kind]}
        </span>
      ))}
      {isFolded(topology.nodes.length) && <span>{trans.__('small: squares are GPUs, pills NICs')}</span>}
    </>
  );
}

function Axes(props: {
  topology: IJobTopology;
  axis: string;
  onAxis: (axis: string) => void;
  trans: ITranslation;
}): React.JSX.Element | null {
  const axes = Object.keys(props.topology.axes);
  if (axes.length === 0) {
    return null;
  }
  return (
    <label>
      {props.trans.__('Colour by')}{' '}
      <select
        className="jp-Gipfel-field"
        value={props.axis}
        onChange={event => {
          props.onAxis(event.target.value);
        }}
      >
        {axes.map(axis => (
          <option key={axis} value={axis}>
            {axis}
          </option>
        ))}
        <option value="">{props.trans.__('nothing')}</option>
      </select>
    </label>
  );
}

function defaultAxis(topology: IJobTopology): string {
  const axes = Object.keys(topology.axes);
  return axes.find(axis => axis === 'pp') ?? axes[0] ?? '';
}

/** Return a ref for an element, and its width in pixels. */
function useWidth(): [React.RefObject<HTMLDivElement>, number] {
  const element = React.useRef<HTMLDivElement>(null);
  const [width, setWidth] = React.useState(FALLBACK_WIDTH);
  React.useEffect(() => {
    const found = element.current;
    if (found === null || typeof ResizeObserver === 'undefined') {
      return;
    }
    const measure = (): void => {
      // Minus the frame of the outermost box; a hidden panel has no width.
      setWidth(Math.max(120, Math.floor(found.clientWidth) - 2));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(found);
    measure();
    return (): void => {
      observer.disconnect();
    };
  }, []);
  return [element, width];
}
