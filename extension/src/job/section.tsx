import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { CommandIDs } from '../common/commands';
import type { ISection } from '../tokens';
import type { JobModel } from './model';
import { WorldLine } from './overview';
import { SECURITY_TAB } from './page';
import { States } from './states';
import { Headline, SecurityLine } from './verdicts';

/** Create the panel's summary of this server's run: world size, missing ranks, worst verdict. */
export function jobSection(model: JobModel, commands: CommandRegistry, trans: TranslationBundle): ISection {
  const open = (): void => {
    void commands.execute(CommandIDs.openJob, { run: '' });
  };
  const Body = (): React.JSX.Element => (
    <UseSignal signal={model.changed}>
      {(): React.JSX.Element => (
        <>
          <Headline model={model} trans={trans} onShow={open} />
          <SecurityLine
            job={model.job}
            trans={trans}
            onDetails={() => {
              void commands.execute(CommandIDs.openJob, { place: `tab=${SECURITY_TAB}` });
            }}
          />
          <States model={model} trans={trans} />
          {model.job !== null && <WorldLine job={model.job} trans={trans} />}
          <div className="jp-Gipfel-actions">
            <button className="jp-Gipfel-button" onClick={open}>
              {trans.__('Open the job page')}
            </button>
          </div>
        </>
      )}
    </UseSignal>
  );
  return {
    id: 'job',
    title: trans.__('Job'),
    Body,
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}
