import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, UseSignal } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { GAUGE_METRICS, type IRunName } from '../api';
import { CommandIDs } from '../common/commands';
import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import { Figure } from '../views/figures/figure';
import { AdviceList } from '../views/saturation/advice';
import { Gpus } from '../views/saturation/gpus';
import { GpuHolders } from '../views/saturation/holders';
import { Score } from '../views/saturation/score';
import { Compare } from './compare';
import { Events } from './events';
import type { GaugeDrag } from './gauge';
import { Heat } from './heat';
import type { SaturationModel } from './model';
import { Sharing } from './sharing';
import { Notices, StatusLine } from './status';
import { Toolbar } from './toolbar';

/** Create the section with the use of the GPUs of a run: score, losses, advice and plots. */
export function saturationSection(
  model: SaturationModel,
  commands: CommandRegistry,
  drag: GaugeDrag,
  trans: TranslationBundle
): ISection {
  const Summary = (): React.JSX.Element => (
    <UseSignal signal={model.stateChanged}>
      {(): React.JSX.Element => <StatusLine model={model} trans={trans} />}
    </UseSignal>
  );
  const Body = (): React.JSX.Element => (
    <UseSignal signal={model.stateChanged}>
      {(): React.JSX.Element => <Views model={model} commands={commands} drag={drag} trans={trans} />}
    </UseSignal>
  );
  return {
    id: 'saturation',
    title: trans.__('Saturation'),
    setVisible: visible => {
      model.setVisible(visible);
    },
    Summary,
    Body
  };
}

interface IViewsProps {
  readonly model: SaturationModel;
  readonly commands: CommandRegistry;
  readonly drag: GaugeDrag;
  readonly trans: TranslationBundle;
}

function Views(props: IViewsProps): React.JSX.Element {
  const { model, trans } = props;
  const [runs, setRuns] = React.useState<readonly IRunName[]>([]);
  const [comparing, setComparing] = React.useState(false);
  const readRuns = React.useCallback((): void => {
    void model.requests.runs().then(setRuns, () => undefined);
  }, [model]);
  const { runName } = model.selection;
  React.useEffect(() => {
    // Another view or a link may have selected a run, whose name is in the list.
    if (runName !== '') {
      readRuns();
    }
  }, [runName, readRuns]);
  return (
    <div className="jp-Gipfel-saturation" aria-busy={model.busy}>
      <Toolbar
        model={model}
        runs={runs}
        comparing={comparing}
        trans={trans}
        onRuns={readRuns}
        onCompare={() => {
          readRuns();
          setComparing(!comparing);
        }}
      />
      <OtherRunNote model={model} runs={runs} trans={trans} />
      <Notices model={model} trans={trans} />
      {model.problem !== '' && <Notice error shape="✗" text={model.problem} />}
      {model.busy && !model.selection.live && (
        <p className="jp-Gipfel-small jp-Gipfel-pad" role="status">
          ◐ {trans.__('Reading the run…')}
        </p>
      )}
      {model.score && model.selection.gpus.length > 0 && (
        <Score
          score={model.score}
          live={model.selection.live && !model.paused ? model.selection.gpus.length : 0}
          trans={trans}
        />
      )}
      {comparing && <Compare model={model} runs={runs} trans={trans} />}
      <Plots {...props} />
      <Sharing model={model} trans={trans} />
      <Actions {...props} />
    </div>
  );
}

function Actions(props: IViewsProps): React.JSX.Element {
  const { model, commands, trans } = props;
  return (
    <div className="jp-Gipfel-actions">
      {model.status?.simulated === true && model.selection.runName === '' && (
        <button
          className="jp-Gipfel-button"
          disabled={model.busy}
          onClick={() => void model.stopSimulation()}
        >
          {trans.__('Stop the simulated GPUs')}
        </button>
      )}
      {commands.hasCommand(CommandIDs.openNotebook) && (
        // The site may have disabled the plugin of the notebooks.
        <button
          className="jp-Gipfel-button"
          onClick={() => {
            void commands.execute(CommandIDs.openNotebook);
          }}
        >
          {trans.__('Open the notebook that measures saturation')}
        </button>
      )}
    </div>
  );
}

/** A note that another run is shown, while the panel's header is about this server. */
function OtherRunNote(props: {
  model: SaturationModel;
  runs: readonly IRunName[];
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { model, runs, trans } = props;
  const { runName, gpus } = model.selection;
  const named = runs.find(run => run.run === runName)?.display_name ?? '';
  return runName === '' ? null : (
    <p className="jp-Gipfel-small jp-Gipfel-pad">
      {trans._n('Run %2 with %1 GPU.', 'Run %2 with %1 GPUs.', gpus.length, named === '' ? runName : named)}{' '}
      {trans.__('The header of the panel is about this server.')}
    </p>
  );
}

function Plots(props: IViewsProps): React.JSX.Element {
  const { model, trans } = props;
  const hasGpus = model.selection.gpus.length > 0;
  const host = (
    <Figure
      source={model.figures}
      name="host"
      label={trans.__('CPU, memory, input and output')}
      trans={trans}
    />
  );
  return (
    <>
      <div className="jp-Gipfel-columns">
        {(hasGpus || (model.figure('job')?.data.length ?? 0) > 0) && (
          <Figure
            source={model.figures}
            name="job"
            label={trans.__('Means over the GPUs of the job')}
            trans={trans}
          />
        )}
        <div>
          {model.score && (
            <AdviceList
              advice={model.score.advice}
              since={model.score.advice_effect?.lines ?? []}
              onShow={(span, evidence) => {
                model.selection.setTimeSpan(span, evidence);
              }}
              trans={trans}
            />
          )}
          {hasGpus && <Heat model={model} trans={trans} />}
        </div>
      </div>
      {hasGpus && <GaugeButtons {...props} />}
      {hasGpus && <GpuPlots model={model} trans={trans} />}
      {model.figure('host')?.data.length ? (
        hasGpus ? (
          <Collapsible title={trans.__('Host')}>{host}</Collapsible>
        ) : (
          host
        )
      ) : null}
      <Events events={model.events} model={model} trans={trans} />
    </>
  );
}

/** Buttons that open one metric of all GPUs in the main area, or are dragged into it. */
function GaugeButtons(props: IViewsProps): React.JSX.Element {
  const { commands, drag, trans } = props;
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('Plots in a tab')}>
      <h3>{trans.__('Plots in a tab')}</h3>
      <div className="jp-Gipfel-buttons">
        {GAUGE_METRICS.map(([metric, label]) => (
          <button
            key={metric}
            className="jp-Gipfel-button jp-mod-small"
            title={trans.__('Show %1 of all GPUs in the main area; drag it to a place there', label)}
            onPointerDown={event => {
              if (event.button === 0 && event.pointerType !== 'touch') {
                drag(metric, event.nativeEvent);
              }
            }}
            onClick={() => void commands.execute(CommandIDs.openGauge, { metric })}
          >
            {label}
          </button>
        ))}
      </div>
    </section>
  );
}

/** Who holds the GPUs, while they are recorded, and the plots of each selected GPU. */
function GpuPlots(props: { model: SaturationModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  const { live, gpus } = model.selection;
  return (
    <>
      {live && <GpuHolders processes={model.score?.gpu_processes ?? []} gpus={gpus} trans={trans} />}
      <Gpus
        selection={model.selection}
        score={model.score}
        plot={(gpu, name) => (
          <Figure
            source={model.figures}
            name={`gpu/${gpu.uuid}`}
            label={trans.__('Activity, links, clock and power of %1', name)}
            trans={trans}
          />
        )}
        closeIcon={<closeIcon.react tag="span" height="16px" width="16px" />}
        trans={trans}
      />
    </>
  );
}

/** A collapsible part, whose content is drawn only while it is open. */
function Collapsible(props: { title: string; children: React.ReactNode }): React.JSX.Element {
  const [open, setOpen] = React.useState(false);
  return (
    <details
      className="jp-Gipfel-more jp-Gipfel-view"
      onToggle={event => {
        setOpen(event.currentTarget.open);
      }}
    >
      <summary>{props.title}</summary>
      {open && props.children}
    </details>
  );
}
