import type { TranslationBundle } from '@jupyterlab/translation';

import type { ITableRow } from '../api';
import { formatLocalTime } from '../common/clock';
import { durationText } from '../views/launch/summary';

const COMMIT_DIGITS = 8;

/** A column of the table. */
export interface IColumn {
  readonly id: string;
  /** Translated heading. */
  readonly title: string;
  /** Value by which rows are sorted; null if it is unknown. */
  readonly value: (run: ITableRow) => number | string | null;
  /** Text of a cell; empty if the value is unknown. */
  readonly text: (run: ITableRow) => string;
  /** True if the first click sorts from high to low. */
  readonly descending?: boolean;
}

/** The order of the table. */
export interface IOrder {
  readonly column: string;
  readonly descending: boolean;
}

/** Return the columns of the table, from left to right. */
export function runColumns(trans: TranslationBundle): readonly IColumn[] {
  const number = (
    id: 'score' | 'duration_s' | 'gpu_hours' | 'energy_wh' | 'throughput',
    title: string,
    text: (value: number, run: ITableRow) => string
  ): IColumn => ({
    id,
    title,
    value: run => run[id],
    text: run => (run[id] === null ? '' : text(run[id], run)),
    descending: true
  });
  const string = (id: string, title: string, text: (run: ITableRow) => string): IColumn => ({
    id,
    title,
    value: run => text(run) || null,
    text
  });
  return [
    string('name', trans.__('Name'), runTitle),
    string('tags', trans.__('Tags'), run => run.tags.join(' ')),
    number('score', trans.__('Score'), value => String(Math.round(value))),
    {
      id: 'loss',
      title: trans.__('Largest loss'),
      value: run => run.loss_points,
      text: run =>
        run.loss_points === null ? '' : `${run.loss.replace('_', '-')} ${Math.round(run.loss_points)}`,
      descending: true
    },
    number('duration_s', trans.__('Duration'), durationText),
    number('gpu_hours', trans.__('GPU hours'), value => shortNumber(value)),
    number('energy_wh', trans.__('Energy'), value =>
      value >= 1000 ? `${shortNumber(value / 1000)} kWh` : `${shortNumber(value)} Wh`
    ),
    number('throughput', trans.__('Throughput'), throughputText),
    string('commit', trans.__('Commit'), run => commitText(run, trans)),
    string('parameters', trans.__('Parameters'), parametersText),
    string('end', trans.__('End'), run => endText(run, trans)),
    {
      id: 'modified',
      title: trans.__('Changed'),
      value: run => run.modified,
      text: run => formatLocalTime(1000 * run.modified),
      descending: true
    }
  ];
}

/** Return the name that the user gave a run, or else the name of its run folder. */
export function runTitle(run: ITableRow): string {
  return run.display_name || run.name;
}

/** Return the runs that contain all words of a filter, sorted; pinned runs come first, unknown values last. */
export function arrange(
  runs: readonly ITableRow[],
  columns: readonly IColumn[],
  order: IOrder,
  filter: string
): readonly ITableRow[] {
  const words = filter
    .toLowerCase()
    .split(/\s+/)
    .filter(each => each !== '');
  const textOf = (run: ITableRow): string =>
    [run.name, run.kind, run.note, ...columns.map(each => each.text(run))].join(' ').toLowerCase();
  const value = columns.find(each => each.id === order.column)?.value ?? ((): null => null);
  return runs
    .filter(run => words.length === 0 || words.every(word => textOf(run).includes(word)))
    .sort((one, other) => {
      if (one.pinned !== other.pinned) {
        return one.pinned ? -1 : 1;
      }
      return compareValues(value(one), value(other), order.descending);
    });
}

function compareValues(
  one: number | string | null,
  other: number | string | null,
  descending: boolean
): number {
  if (one === null || other === null) {
    return Number(one === null) - Number(other === null);
  }
  const order =
    typeof one === 'number' && typeof other === 'number'
      ? one - other
      : String(one).localeCompare(String(other), undefined, { numeric: true });
  return descending ? -order : order;
}

function commitText(run: ITableRow, trans: TranslationBundle): string {
  const changed = run.changed_files ? ` ${trans.__('changed')}` : '';
  return run.commit === '' ? '' : run.commit.slice(0, COMMIT_DIGITS) + changed;
}

/** Return a rate such as `41.2 k tokens/s`; the name of its metric ends with the unit. */
function throughputText(value: number, run: ITableRow): string {
  const unit = `${run.throughput_name.replace(/_per_s$/, '')}/s`;
  return value >= 10000 ? `${shortNumber(value / 1000)} k ${unit}` : `${shortNumber(value)} ${unit}`;
}

function parametersText(run: ITableRow): string {
  return Object.entries(run.parameters)
    .map(([name, value]) => (isPosition(name) ? value : `${name}=${value}`))
    .join(' ');
}

/** Return true if a parameter's name is only its position among the program's arguments. */
export function isPosition(name: string): boolean {
  return /^\d+$/.test(name);
}

function endText(run: ITableRow, trans: TranslationBundle): string {
  if (run.ended === '') {
    return run.in_use_reason === '' ? trans.__('no end recorded') : trans.__('in use');
  }
  return run.exit_status === null
    ? trans.__('ended')
    : run.exit_status === 0
      ? trans.__('completed')
      : trans.__('failed (exit status %1)', run.exit_status);
}

function shortNumber(value: number): string {
  return value >= 100
    ? value.toFixed(0)
    : value >= 1 || value === 0
      ? String(Number(value.toFixed(1)))
      : value.toPrecision(2);
}
