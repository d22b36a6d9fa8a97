import { Dialog, Notification, ReactWidget, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILookItem, ILookList, ILookPlan } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import { errorMessage } from '../common/error-message';
import { Notice } from '../common/notice';
import { ViewPoll } from '../common/view-poll';
import type { JobModel } from './model';
import { MOST_CHARACTERS } from './selection';

/** What ranks are asked for. */
export type LookKind = 'stacks' | 'flame' | 'trace' | 'memory' | 'dump';

const KINDS: readonly LookKind[] = ['stacks', 'flame', 'trace', 'memory', 'dump'];
const POLL_MS = 1_000;
const MOST_SHOWN = 5;
const MOST_LINKS = 16;
/** Within this time, ranks may still answer. */
const PATIENCE_MS = 660_000;

interface IProps {
  readonly model: JobModel;
  readonly trans: TranslationBundle;
}

/** Looks: diagnostics that the selected ranks of a running launch are asked for, and what they answered. */
export function Looks(props: IProps): React.JSX.Element | null {
  const { model, trans } = props;
  const launch = model.job?.launch ?? '';
  const { found, error, ask } = useLooks(props, launch);
  if (launch === '' || (found === null && error === '')) {
    return null;
  }
  const { selection } = model;
  const whom = selection.some
    ? trans._n('%1 selected rank', '%1 selected ranks', selection.ranks.length)
    : trans.__('the ranks that a verdict suspects, a peer, and rank 0');
  return (
    <section className="jp-Gipfel-pad jp-Gipfel-job-looks" aria-label={trans.__('Look into ranks')}>
      {found?.running === true && (
        <div className="jp-Gipfel-actions" role="group" aria-label={trans.__('Look into %1', whom)}>
          <span>{trans.__('Look into %1:', whom)}</span>
          {KINDS.map(kind => (
            <button
              key={kind}
              data-look={kind}
              className="jp-Gipfel-button"
              onClick={() => {
                void ask(kind);
              }}
            >
              {kindName(kind, trans)}…
            </button>
          ))}
        </div>
      )}
      {error !== '' && <Notice error shape="✗" text={error} />}
      <ul aria-live="polite">
        {found?.looks.slice(0, MOST_SHOWN).map(look => (
          <Look key={look.id} look={look} launch={launch} running={found.running} {...props} />
        ))}
      </ul>
    </section>
  );
}

interface ILooks {
  readonly found: ILookList | null;
  readonly error: string;
  readonly ask: (kind: LookKind) => Promise<void>;
}

/** Load the looks that were taken at a launch's ranks, and poll while any is not finished. */
function useLooks(props: IProps, launch: string): ILooks {
  const { model, trans } = props;
  const [found, setFound] = React.useState<ILookList | null>(null);
  const [error, setError] = React.useState('');
  const poll = React.useRef<ViewPoll | null>(null);
  React.useEffect(() => {
    if (launch === '') {
      return;
    }
    const own = new ViewPoll('job-looks', async () => {
      const list = await model.requests.looks(launch);
      if (!own.isDisposed) {
        setFound(list);
      }
      return list.running && list.looks.some(isUnderWay) ? POLL_MS : null;
    });
    poll.current = own;
    own.setVisible(true);
    return () => {
      own.dispose();
    };
  }, [model, launch]);
  const ask = async (kind: LookKind): Promise<void> => {
    setError('');
    try {
      if (await askAndStart(model, trans, launch, kind)) {
        await poll.current?.refresh();
      }
    } catch (reason) {
      setError(errorMessage(reason));
    }
  };
  return { found, error, ask };
}

function isUnderWay(look: ILookItem): boolean {
  return look.missing.length > 0 && Date.now() - look.time_ms < PATIENCE_MS;
}

/** Show which ranks are asked and what it costs; return true if the user has started it. */
async function askAndStart(
  model: JobModel,
  trans: TranslationBundle,
  launch: string,
  kind: LookKind
): Promise<boolean> {
  const { selection } = model;
  const ranks = selection.some ? `rank=${selection.ranks.join(',')}` : '';
  if (ranks.length > MOST_CHARACTERS) {
    throw new Error(trans.__('%1 ranks are too many. Select fewer.', selection.ranks.length));
  }
  // A dump is always of all ranks.
  const query = { launch, what: kind, ranks: kind === 'dump' ? '' : ranks };
  const plan = await model.requests.lookPlan(query);
  const body = new LookBody(kind, plan, trans);
  const { button, value } = await showDialog<ILookAmount>({
    title: kindName(kind, trans),
    body,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Start') })]
  });
  if (!button.accept || value === null) {
    return false;
  }
  // The ranks that the dialog showed, even if others are suspected by now.
  const named = kind === 'dump' ? '' : `rank=${plan.ranks.join(',')}`;
  await model.requests.startLook({ ...query, ranks: named, ...value });
  if (kind === 'dump') {
    const text = trans.__(
      'The ranks are writing their dumps. The verdicts then name the rank that the others wait for.'
    );
    Notification.success(text, { autoClose: 10_000 });
  }
  return true;
}

interface ILookAmount {
  readonly steps?: number;
  readonly seconds?: number;
}

class LookBody extends ReactWidget implements Dialog.IBodyWidget<ILookAmount> {
  constructor(
    private readonly _kind: LookKind,
    private readonly _plan: ILookPlan,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-Gipfel-job-look');
    this._amount = _kind === 'flame' ? 10 : 3;
  }

  getValue(): ILookAmount {
    const amount = Math.max(1, Math.min(600, Math.round(this._amount) || 1));
    switch (this._kind) {
      case 'flame':
        return { seconds: amount };
      case 'trace':
      case 'memory':
        return { steps: amount };
      default:
        return {};
    }
  }

  protected override render(): React.JSX.Element {
    const { ranks, why, cost } = this._plan;
    const label = this._kind === 'flame' ? this._trans.__('Seconds') : this._trans.__('Steps');
    return (
      <>
        <p>
          {this._trans._n('Rank %2 is asked', 'Ranks %2 are asked', ranks.length, shortened(ranks))}: {why}.
        </p>
        <p>
          <strong>{this._trans.__('Cost:')}</strong> {cost}
        </p>
        {['flame', 'trace', 'memory'].includes(this._kind) && (
          <label>
            {label}{' '}
            <input
              className="jp-Gipfel-field"
              type="number"
              min={1}
              max={600}
              defaultValue={this._amount}
              onChange={event => {
                this._amount = event.target.valueAsNumber;
              }}
            />
          </label>
        )}
      </>
    );
  }

  private _amount: number;
}

function shortened(ranks: readonly number[]): string {
  const shown = ranks.slice(0, MOST_LINKS).join(', ');
  return ranks.length > MOST_LINKS ? `${shown}, …` : shown;
}

/** One look: how many ranks answered, and links to what they wrote. */
function Look(
  props: IProps & { readonly look: ILookItem; readonly launch: string; readonly running: boolean }
): React.JSX.Element {
  const { look, launch, running, model, trans } = props;
  const total = look.answers.length + look.missing.length;
  const waits = running && isUnderWay(look);
  const url = (rank: number | null): string => model.requests.lookFile(launch, look.id, rank);
  const notes = [...new Set(look.answers.map(each => each.note).filter(note => note !== ''))];
  return (
    <li data-look={look.what} data-done={look.missing.length === 0}>
      {waits ? '◐ ' : ''}
      {kindName(look.what, trans)} · {formatTimeOfDay(look.time_ms)} {zoneName(look.time_ms)} ·{' '}
      {look.missing.length === 0
        ? trans._n('%1 rank', '%1 ranks', total)
        : trans.__('%1 of %2 ranks', look.answers.length, total)}
      {look.flame && (
        <>
          {' · '}
          <a href={url(null)} target="_blank" rel="noreferrer">
            {trans.__('flame graph')}
          </a>
        </>
      )}
      {look.answers.slice(0, MOST_LINKS).map(answer => (
        <React.Fragment key={answer.rank}>
          {' · '}
          {answer.error === '' ? (
            <a href={url(answer.rank)} target="_blank" rel="noreferrer">
              {trans.__('rank %1', answer.rank)}
            </a>
          ) : (
            <span>✗ {trans.__('rank %1: %2', answer.rank, answer.error)}</span>
          )}
        </React.Fragment>
      ))}
      {notes.map(note => (
        <div key={note} className="jp-Gipfel-small">
          {note}.
        </div>
      ))}
    </li>
  );
}

function kindName(kind: LookKind, trans: TranslationBundle): string {
  switch (kind) {
    case 'stacks':
      return trans.__('Stacks');
    case 'flame':
      return trans.__('Flame graph');
    case 'trace':
      return trans.__('Profiler trace');
    case 'memory':
      return trans.__('GPU memory');
    case 'dump':
      return trans.__('Flight recorder');
  }
}
