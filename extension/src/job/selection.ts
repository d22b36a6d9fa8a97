import { Signal, type ISignal } from '@lumino/signaling';

import type { IJobSelected } from '../api';
import type { IJobPick, IJobSelection, IJobSpan, JobUnit } from '../tokens';

/** The longest expression, and the most units of a pick, that the server accepts. */
export const MOST_CHARACTERS = 1000;
const MOST_PICKED = 256;

/** How tabs show the job: choices that select nothing. */
export interface IViewChoices {
  /** The metric of the heat map, and the order of its rows. */
  readonly metric: string;
  readonly order: string;
  /** The users' metrics, and the metrics of GPUs, that the tab Metrics draws; null for the first ones. */
  readonly names: readonly string[] | null;
  readonly bands: readonly string[] | null;
  /** The column by which the ranks are sorted, and whether its highest values come first. */
  readonly sort: string;
  readonly down: boolean;
  /** The kind of events that are listed; empty for all. */
  readonly kind: string;
  /** The earlier runs that the run is compared with; null for those of the same script, size and image. */
  readonly beside: readonly string[] | null;
}

export const FIRST_VIEW: IViewChoices = {
  metric: 'SM_ACTIVE',
  order: 'rank',
  names: null,
  bands: null,
  sort: 'rank',
  down: false,
  kind: '',
  beside: null
};

/** What the page's URL holds: the selection, and how tabs show the job. */
export interface ISelectionState {
  readonly run: string;
  readonly launch: string;
  readonly layout: string;
  readonly expression: string;
  readonly pick: IJobPick | null;
  readonly span: IJobSpan | null;
  readonly lastS: number | null;
  readonly view: IViewChoices;
}

const NOTHING: ISelectionState = {
  run: '',
  launch: '',
  layout: '',
  expression: '',
  pick: null,
  span: null,
  lastS: null,
  view: FIRST_VIEW
};
const UNRESOLVED: IJobSelected = { ranks: [], nodes: [], devices: [], group: [] };

/** What is selected on the job page. */
export class JobSelection implements IJobSelection {
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get cursorMoved(): ISignal<this, void> {
    return this._cursorMoved;
  }

  get run(): string {
    return this._state.run;
  }

  get launch(): string {
    return this._state.launch;
  }

  get layout(): string {
    return this._state.layout;
  }

  get expression(): string {
    return this._state.expression;
  }

  get pick(): IJobPick | null {
    return this._state.pick;
  }

  get span(): IJobSpan | null {
    return this._state.span;
  }

  get lastS(): number | null {
    return this._state.lastS;
  }

  get view(): IViewChoices {
    return this._state.view;
  }

  get cursorMs(): number | null {
    return this._cursorMs;
  }

  get ranks(): readonly number[] {
    return this._resolved.ranks;
  }

  get nodes(): readonly string[] {
    return this._resolved.nodes;
  }

  get devices(): readonly string[] {
    return this._resolved.devices;
  }

  get group(): readonly number[] {
    return this._resolved.group;
  }

  get dark(): boolean {
    return this._dark;
  }

  /** The pick as an expression; empty without one. */
  get pickExpression(): string {
    return this.pick === null ? '' : expressionOf(this.pick);
  }

  /** True if ranks are selected by a pick or by the expression. */
  get some(): boolean {
    return this.pick !== null || this.expression.trim() !== '';
  }

  /** What the page's URL holds. */
  get state(): ISelectionState {
    return this._state;
  }

  /** Show what a URL holds. */
  restore(state: Partial<ISelectionState>): void {
    this._set({ ...NOTHING, ...state });
  }

  show(run: string, launch = ''): void {
    if (run !== this.run || launch !== this.launch) {
      this._set({ ...NOTHING, run, launch, view: { ...this.view, beside: null } });
    }
  }

  setLayout(layout: string): void {
    this._change({ layout });
  }

  setExpression(expression: string): void {
    this._change({ expression: expression.slice(0, MOST_CHARACTERS), pick: null });
  }

  choose(unit: JobUnit, names: readonly string[], add = false): void {
    const usable = names.filter(isUsable);
    const before = this.pick?.unit === unit ? this.pick.names : [];
    const known = new Set(before);
    if (usable.length === 0) {
      return;
    }
    const all = usable.every(name => known.has(name));
    if (add) {
      const rest = before.filter(name => !usable.includes(name));
      this._pick(unit, all ? rest : [...rest, ...usable]);
    } else {
      this._pick(unit, all && before.length === usable.length ? [] : usable);
    }
  }

  clear(): void {
    if (this.pick !== null) {
      this._change({ pick: null });
    } else {
      this.setExpression('');
    }
  }

  setSpan(span: IJobSpan | null): void {
    this._change({ span });
  }

  /** Show the last seconds, also while the run grows; null for the whole run. */
  setLast(seconds: number | null): void {
    this._change({ span: null, lastS: seconds });
  }

  /** Change how tabs show the job. */
  setView(part: Partial<IViewChoices>): void {
    this._change({ view: { ...this.view, ...part } });
  }

  setCursor(timeMs: number | null): void {
    if (timeMs !== this._cursorMs) {
      this._cursorMs = timeMs;
      this._cursorMoved.emit();
    }
  }

  /** Set what the server resolved the selection to. */
  setResolved(resolved: IJobSelected): void {
    if (JSON.stringify(resolved) !== JSON.stringify(this._resolved)) {
      this._resolved = resolved;
      this._changed.emit();
    }
  }

  setDark(dark: boolean): void {
    if (dark !== this._dark) {
      this._dark = dark;
      this._changed.emit();
    }
  }

  private _pick(unit: JobUnit, names: readonly string[]): void {
    const pick = names.length > 0 ? { unit, names: names.slice(0, MOST_PICKED) } : null;
    if (pick === null || expressionOf(pick).length <= MOST_CHARACTERS) {
      this._change({ pick });
    }
  }

  private _change(part: Partial<ISelectionState>): void {
    this._set({ ...this._state, ...part });
  }

  private _set(state: ISelectionState): void {
    if (JSON.stringify(state) === JSON.stringify(this._state)) {
      return;
    }
    const other = state.run !== this.run || state.launch !== this.launch;
    this._state = state;
    if (other || (state.pick === null && state.expression.trim() === '')) {
      this._resolved = UNRESOLVED;
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _cursorMoved = new Signal<this, void>(this);
  private _state = NOTHING;
  private _resolved = UNRESOLVED;
  private _cursorMs: number | null = null;
  private _dark = false;
}

/** Return a pick as an expression that the server parses; neighbouring ranks become a range. */
export function expressionOf(pick: IJobPick): string {
  return `${pick.unit}=${(pick.unit === 'rank' ? ranges(pick.names) : pick.names).join(',')}`;
}

function ranges(names: readonly string[]): readonly string[] {
  const found: [number, number][] = [];
  for (const rank of names.map(Number).sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && rank <= last[1] + 1) {
      last[1] = rank;
    } else {
      found.push([rank, rank]);
    }
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
}

/** Return true for a name that an expression can hold. */
export function isUsable(name: string): boolean {
  return name !== '' && name.length <= 128 && !/[,&=\s\p{Cc}]/u.test(name);
}
