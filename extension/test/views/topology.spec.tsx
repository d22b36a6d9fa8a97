import { act } from 'react';
import * as React from 'react';
import { createRoot, type Root } from 'react-dom/client';

import type { IJobTopology, INodeBox } from '../../src/api';
import { arrange, type IArrangement } from '../../src/views/topology/boxes';
import { hueOf, linesOf, litBy, toneOf } from '../../src/views/topology/lit';
import { TopologyView, type TopologyUnit } from '../../src/views/topology/topology';
import { ENGLISH } from '../../src/views/translation';

/** Nodes of four GPUs, one on each NUMA node with its NIC, and ranks of pp=nodes, dp=4. */
function job(nodes: number, perSwitch: number): IJobTopology {
  const four = [0, 1, 2, 3];
  const names = Array.from({ length: nodes }, (_, number) => `nid${String(number).padStart(4, '0')}`);
  return {
    run: 'alps-1',
    source: "Slurm's switches",
    nodes: names.map((node, number) => ({
      node,
      switches: ['root', `s${Math.floor(number / perSwitch)}`],
      numa: four.map(each => ({ number: each, cores: `${72 * each}-${72 * each + 71}` })),
      gpus: four.map(each => ({
        uuid: `GPU-${number}-${each}`,
        label: `GPU ${each}`,
        name: 'GH200',
        numa: each,
        nic: `cxi${each}@${node}`,
        fabric: '',
        ranks: [4 * number + each],
        simulated: false
      })),
      nics: four.map(each => ({
        id: `cxi${each}@${node}`,
        name: `cxi${each}`,
        kind: 'slingshot',
        numa: each,
        ranks: [4 * number + each]
      })),
      links: four.flatMap(each => [
        ...four.slice(each + 1).map(
          other =>
            ({
              first: `GPU-${number}-${each}`,
              second: `GPU-${number}-${other}`,
              kind: 'nvlink',
              count: 6
            }) as const
        ),
        { first: `GPU-${number}-${each}`, second: `numa:${each}`, kind: 'c2c', count: null } as const
      ]),
      ranks: [],
      stored: true,
      vetted: number === 1 ? 'fail' : 'pass'
    })),
    ranks: names.flatMap((node, number) =>
      four.map(each => ({
        rank: 4 * number + each,
        role: { pp: number, dp: each },
        node,
        switch: `s${Math.floor(number / perSwitch)}`,
        nic: `cxi${each}@${node}`,
        gpus: [`GPU-${number}-${each}`]
      }))
    ),
    axes: { pp: nodes, dp: 4 },
    scatter: {
      sentence: '2 leaf switches used, 1 would do.',
      unit: 'leaf switch',
      used: 2,
      fewest: 1,
      leaves: {},
      crossings: []
    },
    selected: null,
    problems: []
  };
}

const inside = (outer: IBox, inner: IBox): boolean =>
  inner.x >= outer.x &&
  inner.y >= outer.y &&
  inner.x + inner.width <= outer.x + outer.width + 0.01 &&
  inner.y + inner.height <= outer.y + outer.height + 0.01;
const apart = (one: IBox, other: IBox): boolean =>
  one.x + one.width <= other.x ||
  other.x + other.width <= one.x ||
  one.y + one.height <= other.y ||
  other.y + other.height <= one.y;

interface IBox {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

function check(found: IArrangement, nodes: readonly INodeBox[], width: number): void {
  const frames = new Map(found.frames.map(frame => [`${frame.unit} ${frame.name}`, frame]));
  const problems: string[] = found.width > width ? [`${found.width} > ${width}`] : [];
  for (const node of nodes) {
    const marks = found.marks.filter(mark => mark.node === node.node);
    const frame = frames.get(`node ${node.node}`);
    const leaf = frames.get(`switch ${node.switches[1] ?? ''}`);
    const nested = leaf && frame && inside(leaf, frame) && marks.every(mark => inside(frame, mark));
    const free = marks.every((mark, place) => marks.slice(place + 1).every(other => apart(mark, other)));
    if (!nested || !free || marks.length !== node.gpus.length + node.nics.length) {
      problems.push(node.node);
    }
  }
  expect(problems).toEqual([]);
}

describe('arrange', () => {
  it.each([320, 640, 1400, 2560])('nests everything without overlap in %i pixels', width => {
    for (const [nodes, perSwitch] of [
      [1, 1],
      [12, 5],
      [256, 16]
    ] as const) {
      const { nodes: own } = job(nodes, perSwitch);
      check(arrange(own, width), own, width);
    }
  });

  it('draws what no recorder stored: ranks alone, and nodes without a switch', () => {
    const bare = job(1, 1).nodes.map(node => ({
      ...node,
      switches: [],
      numa: [],
      gpus: [],
      nics: [],
      ranks: [0, 1]
    }));
    const found = arrange(bare, 320);
    expect(found.frames.map(frame => frame.unit)).toEqual(['node']);
    expect(found.marks.map(mark => [mark.unit, mark.text])).toEqual([
      ['rank', '0'],
      ['rank', '1']
    ]);
    expect(arrange([], 320).marks).toEqual([]);
  });
});

describe('what a selection lights', () => {
  it('is exactly the GPUs, NICs, nodes and leaf switches of its ranks', () => {
    const lit = litBy(job(16, 4).ranks, new Set([24, 28]));
    expect([...lit.gpu].sort()).toEqual(['GPU-6-0', 'GPU-7-0']);
    expect([...lit.nic].sort()).toEqual(['cxi0@nid0006', 'cxi0@nid0007']);
    expect([...lit.node].sort()).toEqual(['nid0006', 'nid0007']);
    expect([...lit.switch]).toEqual(['s1']);
  });

  it('links only selected GPUs, with their NUMA node and their NIC', () => {
    const topology = job(4, 2);
    const { marks, frames } = arrange(topology.nodes, 1000);
    const lines = linesOf(topology, marks, frames, new Set(['GPU-0-0', 'GPU-0-1', 'GPU-3-2']));
    const ends = lines.map(line => `${line.kind} ${line.first.name} ${line.second.name}`).sort();
    expect(ends).toEqual([
      'c2c GPU-0-0 0@nid0000',
      'c2c GPU-0-1 1@nid0000',
      'c2c GPU-3-2 2@nid0003',
      'nearest GPU-0-0 cxi0@nid0000',
      'nearest GPU-0-1 cxi1@nid0000',
      'nearest GPU-3-2 cxi2@nid0003',
      'nvlink GPU-0-0 GPU-0-1'
    ]);
    expect(linesOf(topology, marks, frames, new Set())).toEqual([]);
  });

  it('has a hue of its own for each coordinate', () => {
    expect(new Set([...Array(64).keys()].map(value => hueOf(value, 64))).size).toBe(64);
    expect(hueOf(0, 0)).toBe(210);
    expect([0, 1, 2, 3].map(toneOf)).toEqual([0, 1, 2, 0]);
  });
});

Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });

describe('TopologyView', () => {
  let root: Root;
  let page: HTMLElement;
  const chosen: [TopologyUnit, readonly string[], boolean][] = [];

  const draw = (topology: IJobTopology, selected: ReadonlySet<number> | null): void => {
    act(() => {
      root.render(
        <TopologyView
          topology={topology}
          selected={selected}
          onChoose={(...what) => {
            chosen.push(what);
          }}
          trans={ENGLISH}
        />
      );
    });
  };
  const box = (unit: string, name: string): SVGElement =>
    page.querySelector(`[data-unit="${unit}"][data-name="${name}"]`) as unknown as SVGElement;
  const label = (name: string): string =>
    [...page.querySelectorAll('text[data-failed="true"]')]
      .map(each => each.textContent)
      .find(each => each.endsWith(name)) ?? '';
  const lit = (unit: string): (string | undefined)[] =>
    [...page.querySelectorAll<SVGElement>(`[data-unit="${unit}"][data-state="chosen"]`)].map(
      each => each.dataset.name
    );

  beforeEach(() => {
    page = document.body.appendChild(document.createElement('div'));
    root = createRoot(page);
    chosen.length = 0;
  });

  afterEach(() => {
    act(() => {
      root.unmount();
    });
    page.remove();
  });

  it('lights what is selected, says so, and colours by role', () => {
    draw(job(8, 4), new Set([24, 28]));
    expect(lit('gpu')).toEqual(['GPU-6-0', 'GPU-7-0']);
    expect(lit('nic')).toEqual(['cxi0@nid0006', 'cxi0@nid0007']);
    expect(lit('node')).toEqual(['nid0006', 'nid0007']);
    expect(lit('switch')).toEqual(['s1']);
    expect(page.textContent).toContain('2 ranks selected');
    expect(page.textContent).toContain('1 would do');
    expect(box('gpu', 'GPU-6-0').dataset.role).toBe('pp=6');
    expect(box('node', 'nid0001').dataset.failed).toBe('true');
    expect(label('nid0001')).toContain('✗');
    // The link to a NUMA node ends at its border, beside the label above; marks and labels lie over the lines.
    const line = page.querySelector('line[data-kind="c2c"]');
    expect(line?.getAttribute('y1')).toBe(line?.getAttribute('y2'));
    const after = line?.compareDocumentPosition(box('gpu', 'GPU-6-0')) ?? 0;
    expect(after & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy();
    draw(job(8, 4), null);
    expect(lit('gpu')).toEqual([]);
  });

  it('chooses what is clicked or entered, and all leaves of a switch above them', () => {
    draw(job(8, 4), null);
    const click = (target: Element, init: MouseEventInit = {}): void => {
      act(() => {
        target.dispatchEvent(new MouseEvent('click', { bubbles: true, ...init }));
      });
    };
    click(box('gpu', 'GPU-2-1').querySelector('rect') ?? page);
    click(box('node', 'nid0003'), { shiftKey: true });
    click(box('switch', 'root'));
    click(box('numa', '0@nid0003'));
    act(() => {
      box('nic', 'cxi1@nid0002').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
    });
    expect(chosen).toEqual([
      ['gpu', ['GPU-2-1'], false],
      ['node', ['nid0003'], true],
      ['switch', ['s0', 's1'], false],
      ['nic', ['cxi1@nid0002'], false]
    ]);
  });

  it('moves with the arrow keys, keeps one tab stop, and says what has the focus', () => {
    draw(job(2, 2), null);
    expect(page.querySelectorAll('[tabindex="0"]')).toHaveLength(1);
    act(() => {
      box('gpu', 'GPU-0-0').focus();
    });
    const detail = (): string => page.querySelector('.jp-Gipfel-topology-detail')?.textContent ?? '';
    expect(detail()).toBe(
      'GPU 0 · GH200 · NUMA 0 · nearest NIC cxi0 · NVLink, C2C · rank 0 (pp 0, dp 0) · nid0000'
    );
    act(() => {
      box('gpu', 'GPU-0-0').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }));
    });
    expect((document.activeElement as SVGElement | null)?.dataset.name).toBe('cxi0@nid0000');
    expect(page.querySelectorAll('[tabindex="0"]')).toHaveLength(1);
    expect(detail()).toContain('cxi0 · Slingshot · NUMA 0');
  });

  it('draws 1 024 GPUs small, with each of them there', () => {
    draw(job(256, 16), new Set([1023]));
    expect(page.querySelectorAll('[data-unit="gpu"]')).toHaveLength(1024);
    expect(lit('gpu')).toEqual(['GPU-255-3']);
    expect(page.querySelectorAll('[data-unit="numa"]')).toHaveLength(0);
  });
});
