import type { IJobTopology, ILinkLine, IRankPlace } from '../../api';
import type { ITranslation } from '../translation';
import type { IFrame, IMark } from './boxes';

/** State of a mark: `chosen` is selected, `job` is used by the job, `free` is used by no rank. */
export type MarkState = 'chosen' | 'job' | 'free';

/** Names of the units that a selection of ranks highlights, by kind. */
export interface ILit {
  readonly gpu: ReadonlySet<string>;
  readonly nic: ReadonlySet<string>;
  readonly node: ReadonlySet<string>;
  readonly switch: ReadonlySet<string>;
  readonly rank: ReadonlySet<string>;
}

/** Return exactly the GPUs, NICs, nodes and leaf switches of some ranks, and devices without a rank. */
export function litBy(
  ranks: readonly IRankPlace[],
  selected: ReadonlySet<number>,
  devices: readonly string[] = []
): ILit {
  const own = ranks.filter(each => selected.has(each.rank));
  const named = (names: readonly string[]): Set<string> => new Set(names.filter(name => name !== ''));
  return {
    gpu: named([...own.flatMap(each => each.gpus), ...devices]),
    nic: named(own.map(each => each.nic)),
    node: named(own.map(each => each.node)),
    switch: named(own.map(each => each.switch)),
    rank: new Set(own.map(each => String(each.rank)))
  };
}

/** Return the state of a mark; without a selection, all that the job uses is `job`. */
export function stateOf(mark: IMark, lit: ILit | null): MarkState {
  if (lit?.[mark.unit].has(mark.name)) {
    return 'chosen';
  }
  return mark.ranks.length > 0 ? 'job' : 'free';
}

/** Return the hue of a coordinate among `count`, in degrees; neighbours differ. */
export function hueOf(value: number, count: number): number {
  return Math.round(210 + (360 * value) / Math.max(1, count)) % 360;
}

/** Return the tone of a coordinate, from 0 to 2: neighbours differ in grey, too. */
export function toneOf(value: number): number {
  return value % 3;
}

/** A line between two marks, or from a mark to the label of its node. */
export interface ILine {
  readonly kind: ILinkLine['kind'] | 'nearest';
  readonly count: number | null;
  readonly first: IMark;
  readonly second: IMark | IFrame;
}

/** Largest number of highlighted GPUs with lines; the lines of more would hide them. */
const MOST_LINKED = 64;

/** Return the links of lit GPUs: between them, to the switches of their node, to their NUMA node and nearest NIC. */
export function linesOf(
  topology: IJobTopology,
  marks: readonly IMark[],
  frames: readonly IFrame[],
  lit: ReadonlySet<string>
): ILine[] {
  if (lit.size === 0 || lit.size > MOST_LINKED) {
    return [];
  }
  const byName = new Map(marks.map(mark => [mark.name, mark]));
  const frameOf = new Map(frames.map(frame => [frame.name, frame]));
  const found: ILine[] = [];
  for (const node of topology.nodes) {
    for (const link of node.links) {
      const line = lineOf(link, node.node, byName, frameOf, lit);
      found.push(...(line ? [line] : []));
    }
    for (const gpu of node.gpus.filter(each => lit.has(each.uuid))) {
      const [first, second] = [byName.get(gpu.uuid), byName.get(gpu.nic)];
      found.push(...(first && second ? [{ kind: 'nearest' as const, count: null, first, second }] : []));
    }
  }
  return found;
}

function lineOf(
  link: ILinkLine,
  node: string,
  marks: ReadonlyMap<string, IMark>,
  frames: ReadonlyMap<string, IFrame>,
  lit: ReadonlySet<string>
): ILine | null {
  const names = marks.has(link.first) ? [link.first, link.second] : [link.second, link.first];
  const [name = '', end = ''] = names;
  const first = marks.get(name);
  const numa = /^numa:(\d+)$/.exec(end)?.[1];
  const second = marks.get(end) ?? frames.get(numa === undefined ? node : `${numa}@${node}`);
  // For a link between two GPUs, both must be highlighted; otherwise it leads to a GPU that is not selected.
  const isLit = lit.has(name) && (!marks.has(end) || lit.has(end));
  return first && second && isLit ? { kind: link.kind, count: link.count, first, second } : null;
}

/** Return what a mark or a frame is, in one line. */
export function describe(
  topology: IJobTopology,
  item: IMark | IFrame,
  places: ReadonlyMap<number, IRankPlace>,
  trans: ITranslation
): string {
  const parts = 'ranks' in item ? markParts(topology, item, trans) : frameParts(topology, item, trans);
  if ('ranks' in item) {
    parts.push(...item.ranks.slice(0, 4).map(rank => rankPart(rank, places.get(rank), trans)));
    parts.push(item.ranks.length > 0 ? '' : trans.__('no rank'), item.node);
  }
  return parts.filter(part => part !== '').join(' · ');
}

function markParts(topology: IJobTopology, mark: IMark, trans: ITranslation): string[] {
  const node = topology.nodes.find(each => each.node === mark.node);
  const numa = (number: number | null): string => (number === null ? '' : trans.__('NUMA %1', number));
  if (mark.unit === 'gpu') {
    const gpu = node?.gpus.find(each => each.uuid === mark.name);
    const nearest = gpu?.nic ? trans.__('nearest NIC %1', gpu.nic.split('@')[0] ?? '') : '';
    const kinds = new Set(
      node?.links.filter(each => each.first === mark.name || each.second === mark.name).map(each => each.kind)
    );
    const links = [...kinds].map(kind => LINKS[kind]).join(', ');
    const simulated = gpu?.simulated ? trans.__('simulated') : '';
    return [gpu?.label ?? '', gpu?.name ?? '', simulated, numa(gpu?.numa ?? null), nearest, links];
  }
  if (mark.unit === 'nic') {
    const nic = node?.nics.find(each => each.id === mark.name);
    return nic ? [nic.name, NETWORKS[nic.kind], numa(nic.numa)] : [];
  }
  return [trans.__('GPU unknown')];
}

function frameParts(topology: IJobTopology, frame: IFrame, trans: ITranslation): string[] {
  if (frame.unit === 'switch') {
    const nodes = topology.nodes.filter(node => node.switches.includes(frame.name));
    const count = nodes.length;
    return [frame.name, trans._n('%1 node of the job', '%1 nodes of the job', count)];
  }
  if (frame.unit === 'numa') {
    const [number = '', node = ''] = frame.name.split('@');
    const found = topology.nodes.find(each => each.node === node)?.numa;
    const cores = found?.find(each => String(each.number) === number)?.cores ?? '';
    return [trans.__('NUMA %1', number), trans.__('cores %1', cores), node];
  }
  const node = topology.nodes.find(each => each.node === frame.name);
  const verdicts = { pass: trans.__('vetted'), fail: trans.__('failed its vetting'), '': '' };
  return [
    frame.name,
    node?.switches.join(' / ') ?? '',
    node?.stored === false ? trans.__('hardware unknown: no recorder stored it') : '',
    verdicts[node?.vetted ?? '']
  ];
}

function rankPart(rank: number, place: IRankPlace | undefined, trans: ITranslation): string {
  const role = Object.entries(place?.role ?? {}).map(([axis, value]) => `${axis} ${value}`);
  return trans.__('rank %1', rank) + (role.length > 0 ? ` (${role.join(', ')})` : '');
}

/** Names of links and networks, the same in every language. */
export const LINKS: Readonly<Record<ILinkLine['kind'], string>> = {
  nvlink: 'NVLink',
  nvswitch: 'NVSwitch',
  c2c: 'C2C',
  xgmi: 'XGMI'
};
const NETWORKS: Readonly<Record<IJobTopology['nodes'][0]['nics'][0]['kind'], string>> = {
  slingshot: 'Slingshot',
  infiniband: 'InfiniBand',
  roce: 'RoCE',
  ethernet: 'Ethernet'
};
