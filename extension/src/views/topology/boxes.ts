import type { INodeBox } from '../../api';

/** The kind of unit that a mark represents. */
export type MarkUnit = 'gpu' | 'nic' | 'rank';

/** A GPU, a NIC, or a rank whose GPU is unknown, with its place in pixels. */
export interface IMark {
  readonly unit: MarkUnit;
  readonly name: string;
  readonly node: string;
  readonly text: string;
  readonly ranks: readonly number[];
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** The frame of a switch, a node or a NUMA node, with its place in pixels. */
export interface IFrame {
  readonly unit: 'switch' | 'node' | 'numa';
  readonly name: string;
  readonly label: string;
  /** Leaf switches below a switch: itself, if it is one. */
  readonly leaves: readonly string[];
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** Frames, outer ones first, and marks. */
export interface IArrangement {
  readonly width: number;
  readonly height: number;
  readonly frames: readonly IFrame[];
  readonly marks: readonly IMark[];
}

/** Largest number of nodes that are drawn in full; more are drawn small, without NUMA nodes and texts in marks. */
const MOST_FULL = 40;
const CHARACTER = 6.3;
const LABEL = 15;

interface ISizes {
  readonly gpu: number;
  readonly nic: number;
  readonly gap: number;
  readonly padding: number;
  readonly perRow: number;
  readonly texts: boolean;
}

const FULL: ISizes = { gpu: 26, nic: 15, gap: 4, padding: 7, perRow: 4, texts: true };
const SMALL: ISizes = { gpu: 11, nic: 5, gap: 2, padding: 4, perRow: 8, texts: false };

const NOTHING: IArrangement = { width: 0, height: 0, frames: [], marks: [] };

/** Return true if this number of nodes is drawn small. */
export function isFolded(nodes: number): boolean {
  return nodes > MOST_FULL;
}

/** Return nodes below their switches, in rows that fit a width. */
export function arrange(nodes: readonly INodeBox[], width: number): IArrangement {
  const sizes = isFolded(nodes.length) ? SMALL : FULL;
  return arrangeLevel(nodes, 0, width, sizes);
}

function arrangeLevel(nodes: readonly INodeBox[], depth: number, width: number, sizes: ISizes): IArrangement {
  const parts: IArrangement[] = [];
  const inside = new Map<string, INodeBox[]>();
  for (const node of nodes) {
    const name = node.switches[depth];
    if (name !== undefined) {
      inside.set(name, [...(inside.get(name) ?? []), node]);
    }
  }
  for (const [name, own] of inside) {
    const content = arrangeLevel(own, depth + 1, width - 2 * sizes.padding, sizes);
    const leaves = [...new Set(own.map(node => node.switches[node.switches.length - 1] ?? name))];
    parts.push(framed({ unit: 'switch', name, label: name, leaves }, content, sizes, width));
  }
  for (const node of nodes) {
    if (node.switches[depth] === undefined) {
      parts.push(arrangeNode(node, width, sizes));
    }
  }
  return flow(parts, width, 2 * sizes.gap);
}

function arrangeNode(node: INodeBox, width: number, sizes: ISizes): IArrangement {
  const inner = width - 2 * sizes.padding;
  const numbers = new Set(node.numa.map(each => each.number));
  const named = sizes.texts
    ? node.numa
        .map(({ number }) => ({
          number,
          gpus: node.gpus.filter(gpu => gpu.numa === number),
          nics: node.nics.filter(nic => nic.numa === number)
        }))
        .filter(({ gpus, nics }) => gpus.length + nics.length > 0)
    : [];
  const isElsewhere = (numa: number | null): boolean => !sizes.texts || numa === null || !numbers.has(numa);
  const parts = named.map(({ number, gpus, nics }) =>
    framed(
      { unit: 'numa', name: `${number}@${node.node}`, label: `NUMA ${number}`, leaves: [] },
      stacked([gpuRow(node, gpus, inner, sizes), nicRow(node, nics, inner, sizes)], sizes),
      sizes,
      inner
    )
  );
  const rest = stacked(
    [
      gpuRow(
        node,
        node.gpus.filter(gpu => isElsewhere(gpu.numa)),
        inner,
        sizes
      ),
      rankRow(node, inner, sizes),
      nicRow(
        node,
        node.nics.filter(nic => isElsewhere(nic.numa)),
        inner,
        sizes
      )
    ],
    sizes
  );
  const content = flow(rest.marks.length > 0 ? [...parts, rest] : parts, inner, sizes.gap);
  const label = node.vetted === 'fail' ? `✗ ${node.node}` : node.node;
  return framed({ unit: 'node', name: node.node, label, leaves: [] }, content, sizes, width);
}

type Own = Pick<IMark, 'unit' | 'name' | 'text' | 'ranks'>;

function gpuRow(node: INodeBox, gpus: INodeBox['gpus'], width: number, sizes: ISizes): IArrangement {
  return row(
    node,
    gpus.map(gpu => ({
      unit: 'gpu',
      name: gpu.uuid,
      text: rankText(gpu.ranks, /\d+$/.exec(gpu.label)?.[0] ?? ''),
      ranks: gpu.ranks
    })),
    sizes.gpu,
    width,
    sizes
  );
}

function rankRow(node: INodeBox, width: number, sizes: ISizes): IArrangement {
  const own: Own[] = node.ranks.map(rank => ({
    unit: 'rank',
    name: String(rank),
    text: rankText([rank], ''),
    ranks: [rank]
  }));
  return row(node, own, sizes.gpu, width, sizes);
}

function nicRow(node: INodeBox, nics: INodeBox['nics'], width: number, sizes: ISizes): IArrangement {
  const own: Own[] = nics.map(nic => ({
    unit: 'nic',
    name: nic.id,
    text: `n${/\d+$/.exec(nic.name)?.[0] ?? ''}`,
    ranks: nic.ranks
  }));
  return row(node, own, sizes.nic, width, sizes);
}

function rankText(ranks: readonly number[], index: string): string {
  const [first] = ranks;
  return first === undefined ? index : `${first}${ranks.length > 1 ? '+' : ''}`;
}

function row(
  node: INodeBox,
  own: readonly Own[],
  height: number,
  width: number,
  sizes: ISizes
): IArrangement {
  const step = sizes.gpu + sizes.gap;
  const columns = Math.max(1, Math.min(sizes.perRow, Math.floor((width + sizes.gap) / step)));
  const marks = own.map((each, place) => ({
    ...each,
    text: sizes.texts ? each.text : '',
    node: node.node,
    x: (place % columns) * step,
    y: Math.floor(place / columns) * (height + sizes.gap),
    width: sizes.gpu,
    height
  }));
  const rows = Math.ceil(own.length / columns);
  return {
    width: Math.max(0, Math.min(own.length, columns) * step - sizes.gap),
    height: Math.max(0, rows * (height + sizes.gap) - sizes.gap),
    frames: [],
    marks
  };
}

function framed(
  frame: Omit<IFrame, 'x' | 'y' | 'width' | 'height'>,
  content: IArrangement,
  sizes: ISizes,
  most: number
): IArrangement {
  const width = Math.min(
    Math.max(content.width, frame.label.length * CHARACTER) + 2 * sizes.padding,
    Math.max(most, content.width + 2 * sizes.padding)
  );
  const height = content.height + LABEL + sizes.padding + (content.height > 0 ? sizes.gap : 0);
  const inside = moved(content, sizes.padding, LABEL + sizes.gap);
  return {
    width,
    height,
    frames: [{ ...frame, x: 0, y: 0, width, height }, ...inside.frames],
    marks: inside.marks
  };
}

function flow(parts: readonly IArrangement[], width: number, gap: number): IArrangement {
  let [x, y, rowHeight, widest] = [0, 0, 0, 0];
  const placed: IArrangement[] = [];
  for (const part of parts) {
    if (x > 0 && x + part.width > width) {
      [x, y, rowHeight] = [0, y + rowHeight + gap, 0];
    }
    placed.push(moved(part, x, y));
    x += part.width + gap;
    rowHeight = Math.max(rowHeight, part.height);
    widest = Math.max(widest, x - gap);
  }
  return joined(placed, widest, y + rowHeight);
}

function stacked(parts: readonly IArrangement[], sizes: ISizes): IArrangement {
  return parts
    .filter(part => part.height > 0)
    .reduce((above, part) => {
      const y = above.height > 0 ? above.height + sizes.gap : 0;
      return joined([above, moved(part, 0, y)], Math.max(above.width, part.width), y + part.height);
    }, NOTHING);
}

function joined(parts: readonly IArrangement[], width: number, height: number): IArrangement {
  return {
    width,
    height,
    frames: parts.flatMap(part => part.frames),
    marks: parts.flatMap(part => part.marks)
  };
}

function moved(part: IArrangement, x: number, y: number): IArrangement {
  const by = <T extends { x: number; y: number }>(each: T): T => ({ ...each, x: each.x + x, y: each.y + y });
  return { ...part, frames: part.frames.map(by), marks: part.marks.map(by) };
}
