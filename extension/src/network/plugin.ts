import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../common/commands';
import { addDocumentTab } from '../job/document-tab';
import { encodeLocation } from '../job/location';
import { IGipfelJob, IGipfelPanel } from '../tokens';
import { networkTab } from './tab';

/** The tab "Network" of the job page, and the section of the panel for the same run. */
export const networkPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:network',
  description:
    "Shows connections of a run's programs and ports that they opened on the job page and in the panel.",
  autoStart: true,
  requires: [IGipfelJob],
  optional: [IGipfelPanel, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    job: IGipfelJob,
    panel: IGipfelPanel | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const openTab = (): void => {
      const { run, launch, layout, expression, pick, span, lastS } = job.selection;
      const place = encodeLocation({ tab: 'network', run, launch, layout, expression, pick, span, lastS });
      void app.commands.execute(CommandIDs.openJob, { place });
    };
    const section = addDocumentTab(app, job, trans, networkTab(trans, openTab));
    panel?.addSection(section, { rank: 460 });
  }
};
