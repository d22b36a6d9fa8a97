import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import {
  Clipboard,
  ICommandPalette,
  MainAreaWidget,
  Notification,
  WidgetTracker
} from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { openReport } from '../common/report';
import { IGipfelPanel } from '../tokens';
import type { IRunActions } from './details';
import { RunsModel } from './model';
import { RunRequests } from './requests';
import { RunsView, runsSection } from './section';
import type { IRunsProps } from './table';

const WIDE = 'gipfel-runs';

/** The table of runs, in the panel and in the main area. */
export const runsPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:runs',
  description: 'Lists the runs with names, tags, notes and scores; compares and deletes them.',
  autoStart: true,
  requires: [IGipfelPanel],
  optional: [ICommandPalette, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const requests = new RunRequests(app.serviceManager.serverSettings);
    const model = new RunsModel(requests);
    const props = { model, trans, actions: runActions(app, requests, trans.__('The link is copied.')) };
    addCommand(app, props, restorer);
    const openWide = (): void => {
      void app.commands.execute(CommandIDs.openRuns);
    };
    panel.addSection(runsSection({ ...props, openWide }), { rank: 250 });
    palette?.addItem({ command: CommandIDs.openRuns, category: trans.__('Gipfel') });
  }
};

function runActions(app: JupyterFrontEnd, requests: RunRequests, copied: string): IRunActions {
  const { commands } = app;
  return {
    openReport: run => {
      openReport(requests.settings, requests.reportPath(run));
    },
    copyLink: run => {
      Clipboard.copyToSystem(requests.reportLink(run));
      Notification.info(copied, { autoClose: 3000 });
    },
    showPlots: run => {
      // A site may have disabled the plots.
      if (commands.hasCommand(CommandIDs.showRun)) {
        void commands.execute(CommandIDs.showRun, { run });
      } else {
        openReport(requests.settings, requests.reportPath(run));
      }
    }
  };
}

/** Add the command that opens the table in the main area, where JupyterLab restores it. */
function addCommand(app: JupyterFrontEnd, props: IRunsProps, restorer: ILayoutRestorer | null): void {
  const { model, trans } = props;
  const tracker = new WidgetTracker<MainAreaWidget>({ namespace: WIDE });
  app.commands.addCommand(CommandIDs.openRuns, {
    label: trans.__('Open the Table of Runs'),
    caption: trans.__('Names, tags, scores, losses and parameters of all your runs'),
    icon: mountainIcon,
    describedBy: NO_ARGUMENTS,
    execute: () => {
      let widget = tracker.find(each => each.id === WIDE);
      if (widget === undefined) {
        const content = ReactWidget.create(React.createElement(RunsView, props));
        content.addClass('jp-Gipfel-wide');
        widget = new MainAreaWidget({ content });
        widget.id = WIDE;
        widget.title.label = trans.__('Runs');
        widget.title.icon = mountainIcon;
        app.shell.add(widget, 'main');
        void tracker.add(widget);
      }
      app.shell.activateById(widget.id);
      model.setVisible(true);
    }
  });
  if (restorer !== null) {
    void restorer.restore(tracker, { command: CommandIDs.openRuns, name: () => WIDE });
  }
}
