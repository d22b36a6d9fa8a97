import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IClusterState, IJobCluster, INodeCounts, ISwitchLoad } from '../api';
import { formatLocalTime } from '../common/clock';
import { errorMessage } from '../common/error-message';
import { ViewPoll } from '../common/view-poll';
import { Figure } from '../views/figures/figure';
import type { JobFigures } from './figures';
import type { JobModel } from './model';

/** The server asks the cluster no sooner. */
const ASK_MS = 30_000;
const MOST_SWITCHES = 8;

interface IProps {
  readonly model: JobModel;
  readonly figures: JobFigures;
  readonly trans: TranslationBundle;
}

/** The cluster around the job: nodes, queue and neighbours, with source and age, and the nodes over time. */
export function Cluster(props: IProps): React.JSX.Element | null {
  const { model, figures, trans } = props;
  const [found, error] = useCluster(model);
  if (found === null) {
    return error === '' ? null : <p className="jp-Gipfel-pad jp-Gipfel-small">✗ {error}</p>;
  }
  const { state, problem } = found;
  if (state === null && problem === '') {
    return null;
  }
  return (
    <section
      className="jp-Gipfel-view jp-Gipfel-job-cluster"
      aria-label={trans.__('The cluster around this job')}
    >
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('The cluster around this job')}</h3>
        {state !== null && (
          <span className="jp-Gipfel-small" data-source="">
            {sourceText(state, found.live, trans)}
          </span>
        )}
      </div>
      {problem !== '' && <p className="jp-Gipfel-small">⚠ {problem}</p>}
      {state !== null && <State state={state} trans={trans} />}
      {model.figure('cluster') !== null && (
        <Figure
          source={figures}
          name="cluster"
          label={trans.__('Allocated, idle and down nodes of the cluster')}
          trans={trans}
        />
      )}
    </section>
  );
}

/** Poll the cluster while the job is recorded. */
function useCluster(model: JobModel): [IJobCluster | null, string] {
  const [found, setFound] = React.useState<IJobCluster | null>(null);
  const [error, setError] = React.useState('');
  const { run } = model.selection;
  React.useEffect(() => {
    const poll = new ViewPoll('job-cluster', async () => {
      try {
        const next = await model.requests.cluster(run);
        if (!poll.isDisposed) {
          setFound(next);
          setError('');
        }
        return next.live ? ASK_MS : null;
      } catch (reason) {
        if (!poll.isDisposed) {
          setError(errorMessage(reason));
        }
        return ASK_MS;
      }
    });
    poll.setVisible(true);
    return () => {
      poll.dispose();
    };
  }, [model, run]);
  return [found, error];
}

function sourceText(state: IClusterState, live: boolean, trans: TranslationBundle): string {
  const at = state.time_ns / 1e6;
  const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
  return live
    ? trans.__('from %1, %2 s ago', state.source, seconds)
    : trans.__('from %1, recorded %2', state.source, formatLocalTime(at));
}

function State(props: { state: IClusterState; trans: TranslationBundle }): React.JSX.Element {
  const { state, trans } = props;
  const queue = [
    state.running === null ? '' : trans._n('%1 job runs', '%1 jobs run', state.running),
    state.pending === null ? '' : trans._n('%1 job waits', '%1 jobs wait', state.pending)
  ].filter(text => text !== '');
  return (
    <>
      <p>
        {trans.__('All nodes:')} {countText(state.nodes, trans)}
      </p>
      {(state.partition !== '' || queue.length > 0) && (
        <p>
          {state.partition === '' ? trans.__('Jobs:') : trans.__('Partition %1:', state.partition)}{' '}
          {[state.partition_nodes === null ? '' : countText(state.partition_nodes, trans), ...queue]
            .filter(text => text !== '')
            .join(' · ')}
        </p>
      )}
      {state.switches.length > 0 && (
        <ul aria-label={trans.__('Neighbours on the switches of this job')}>
          {state.switches.slice(0, MOST_SWITCHES).map(each => (
            <li key={each.name}>{switchText(each, trans)}</li>
          ))}
          {state.switches.length > MOST_SWITCHES && (
            <li>{trans.__('and %1 more', state.switches.length - MOST_SWITCHES)}</li>
          )}
        </ul>
      )}
      {state.problems.map(problem => (
        <p key={problem} className="jp-Gipfel-small">
          ⚠ {problem}
        </p>
      ))}
    </>
  );
}

function countText(counts: INodeCounts, trans: TranslationBundle): string {
  return trans.__('%1 allocated, %2 idle, %3 down', counts.allocated, counts.idle, counts.down);
}

function switchText(each: ISwitchLoad, trans: TranslationBundle): string {
  const others =
    each.jobs === null
      ? trans._n('%1 node of others', '%1 nodes of others', each.others)
      : trans.__('%1 of %2 other jobs', each.others, each.jobs);
  return trans.__(
    'Switch %1: %2 nodes of this job, %3, %4 idle, %5 down',
    each.name,
    each.own,
    others,
    each.idle,
    each.down
  );
}
