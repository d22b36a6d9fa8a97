import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import type { IWorkloadKind, IWorkloads } from '../../src/tokens';
import { WorkloadList } from '../../src/workloads/list';
import { workloadsSection } from '../../src/workloads/section';

const trans: TranslationBundle = nullTranslator.load('gipfel');

interface IItem {
  readonly name: string;
  readonly ms: number;
  readonly running?: boolean;
}

/** Workloads of a kind as a test sets them. */
class Workloads implements IWorkloads<IItem> {
  readonly changed = new Signal<this, void>(this);
  items: readonly IItem[] | null = null;
  error = '';
  visible = false;

  isRunning(item: IItem): boolean {
    return item.running === true;
  }

  setVisible(visible: boolean): void {
    this.visible = visible;
  }

  set(items: readonly IItem[]): void {
    this.items = items;
    this.changed.emit();
  }
}

function kindOf(id: string, workloads: Workloads): IWorkloadKind<IItem> {
  return {
    id,
    title: `${id}s`,
    emptyText: `Start a ${id}.`,
    workloads,
    keyOf: item => item.name,
    createdMs: item => item.ms,
    render: item => <article>{item.name}</article>
  };
}

function listOf(): { list: WorkloadList; launches: Workloads; sleeps: Workloads } {
  const [list, launches, sleeps] = [new WorkloadList(), new Workloads(), new Workloads()];
  list.addKind(kindOf('launch', launches));
  list.addKind(kindOf('sleep', sleeps));
  return { list, launches, sleeps };
}

const keysOf = (list: WorkloadList): string[] | undefined => list.rows?.map(each => each.key);
function html(list: WorkloadList): string {
  const { Body } = workloadsSection(list, trans, () => new Promise(() => undefined));
  return renderToStaticMarkup(<Body />);
}

describe('WorkloadList', () => {
  it('lists all kinds, running ones first, then the newest', () => {
    const { list, launches, sleeps } = listOf();
    launches.set([
      { name: 'new', ms: 30 },
      { name: 'old', ms: 10, running: true }
    ]);
    sleeps.set([{ name: 'middle', ms: 20 }]);
    expect(keysOf(list)).toEqual(['launch:old', 'launch:new', 'sleep:middle']);
    expect(list.running).toBe(1);
    expect(html(list)).toMatch(/<option value="launch">launchs<.*<article>old<.*>new<.*>middle</);
  });

  it('shows one kind where it is chosen, and counts what runs of all', () => {
    const { list, launches, sleeps } = listOf();
    launches.set([{ name: 'a', ms: 1, running: true }]);
    sleeps.set([{ name: 'b', ms: 2 }]);
    list.choose('sleep');
    expect(keysOf(list)).toEqual(['sleep:b']);
    expect(list.running).toBe(1);
    list.choose('');
    expect(keysOf(list)).toEqual(['launch:a', 'sleep:b']);
  });

  it('loads until every kind has answered, and says how to start each', () => {
    const { list, launches, sleeps } = listOf();
    launches.set([]);
    expect(html(list)).toContain('Loading your workloads…');
    sleeps.set([]);
    expect(html(list)).toMatch(/None yet\..*Start a launch\..*Start a sleep\./);
  });

  it('keeps the list of one kind when another fails, and says an error of both once', () => {
    const { list, launches, sleeps } = listOf();
    launches.set([{ name: 'a', ms: 1 }]);
    launches.error = sleeps.error = 'The notebook server does not respond.';
    expect(html(list).match(/does not respond/g)).toHaveLength(1);
    expect(html(list)).toContain('<article>a</article>');
    expect(html(list)).not.toContain('Loading');
  });

  it('polls a kind while the list is visible and the kind is in it', () => {
    const { list, launches } = listOf();
    const late = new Workloads();
    list.setVisible(true);
    const added = list.addKind(kindOf('late', late));
    expect([launches.visible, late.visible]).toEqual([true, true]);
    list.choose('late');
    added.dispose();
    expect(late.visible).toBe(false);
    expect(list.kinds.map(each => each.id)).toEqual(['launch', 'sleep']);
    expect(list.shownKinds).toHaveLength(2);
    expect(() => list.addKind(kindOf('launch', late))).toThrow("already has a kind 'launch'");
  });
});
