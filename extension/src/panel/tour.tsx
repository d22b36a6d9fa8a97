import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';

import { CommandIDs } from '../common/commands';

/** A step of the tour. */
export interface ITourStep {
  /** ID of the panel's section that the step is about; none where it is about all of them. */
  readonly section?: string;
  readonly text: string;
  /** A button that does what the text proposes. */
  readonly action?: {
    readonly label: string;
    readonly execute: () => void;
    /** Returns false if a site has disabled what the action needs. */
    readonly isAvailable: () => boolean;
  };
}

/** Return the steps of the tour through the panel. */
export function tourSteps(trans: TranslationBundle, commands: CommandRegistry): readonly ITourStep[] {
  return [
    {
      text: trans.__(
        'Welcome to Gipfel. This panel belongs to your server: the first lines name its GPUs, environment, remaining time and node.'
      )
    },
    {
      section: 'saturation',
      text: trans.__(
        'Saturation tells how well the GPUs are used: a score from 0 to 100, what cost the rest, and advice. Without a GPU it offers a simulated one.'
      )
    },
    {
      section: 'workloads',
      text: trans.__(
        'Workloads lists your training launches and batch notebooks with their logs. They continue when the kernel or the browser ends.'
      )
    },
    {
      section: 'vetting',
      text: trans.__(
        'Vetting tests the nodes of your job before you train on them, and names those to exclude.'
      )
    },
    {
      section: 'saturation',
      text: trans.__(
        'The notebook “Start here” tries all of this in five minutes, without a GPU. It is also in the launcher, in the section Gipfel.'
      ),
      action: {
        label: trans.__('Open “Start here”'),
        execute: () => {
          void commands.execute(CommandIDs.openNotebook, { name: 'start-here' });
        },
        isAvailable: () => commands.hasCommand(CommandIDs.openNotebook)
      }
    }
  ];
}

/** The tour through the panel: where it stands. */
export class Tour {
  /**
   * @param _steps - steps whose section is missing are left out
   * @param _hasSection - returns true if the panel has a section
   * @param _selectSection - shows a section
   */
  constructor(
    private readonly _steps: readonly ITourStep[],
    private readonly _hasSection: (id: string) => boolean,
    private readonly _selectSection: (id: string) => void
  ) {}

  /** Emitted when the tour has started, moved or ended. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The steps that this panel has something for. */
  get steps(): readonly ITourStep[] {
    return this._steps.filter(({ section }) => section === undefined || this._hasSection(section));
  }

  /** The position of the current step; null while there is no tour. */
  get position(): number | null {
    return this._position;
  }

  /** Go to a step by its position; past the last one, the tour ends. */
  go(position: number): void {
    const step = this.steps[position];
    this._position = step === undefined ? null : position;
    if (step?.section !== undefined) {
      this._selectSection(step.section);
    }
    this._changed.emit();
  }

  /** End the tour. */
  end(): void {
    this._position = null;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _position: number | null = null;
}

interface ICardProps {
  readonly tour: Tour;
  readonly trans: TranslationBundle;
}

/** The current step with its buttons; nothing while there is no tour. */
export function TourCard(props: ICardProps): React.JSX.Element | null {
  const { tour, trans } = props;
  const { steps, position } = tour;
  const step = position === null ? undefined : steps[position];
  return position === null || step === undefined ? null : (
    <section className="jp-Gipfel-tour" aria-label={trans.__('Tour')}>
      <p aria-live="polite">{step.text}</p>
      <div>
        <span>{trans.__('%1 of %2', position + 1, steps.length)}</span>
        <Buttons {...props} step={step} position={position} last={position === steps.length - 1} />
      </div>
    </section>
  );
}

function Buttons(
  props: ICardProps & { step: ITourStep; position: number; last: boolean }
): React.JSX.Element {
  const { tour, trans, step, position, last } = props;
  const action = step.action?.isAvailable() === true ? step.action : null;
  const button = (label: string, onClick: () => void, accept = false): React.JSX.Element => (
    <button className={accept ? 'jp-Gipfel-button jp-mod-accept' : 'jp-Gipfel-button'} onClick={onClick}>
      {label}
    </button>
  );
  const end = (): void => {
    tour.end();
  };
  const go = (to: number) => (): void => {
    tour.go(to);
  };
  const act = (): void => {
    action?.execute();
    tour.end();
  };
  return (
    <>
      {!last && button(trans.__('Skip'), end)}
      {position > 0 && button(trans.__('Back'), go(position - 1))}
      {action && button(action.label, act, true)}
      {button(last ? trans.__('Done') : trans.__('Next'), go(position + 1), action === null)}
    </>
  );
}
