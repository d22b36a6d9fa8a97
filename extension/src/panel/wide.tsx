import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CommandIDs } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { PanelWidget } from './content';
import type { RunModel } from './run';
import type { SectionList } from './section-list';

/** The content of the panel in the main area, with figures in two columns; it shares models and feed with the panel. */
export class WidePanel extends PanelWidget {
  constructor(model: RunModel, sections: SectionList, trans: TranslationBundle) {
    super(model, sections, trans);
    this.id = 'gipfel-wide-panel';
    this.addClass('jp-Gipfel-panel');
    this.addClass('jp-Gipfel-wide');
    this.title.icon = mountainIcon;
    this.title.label = trans.__('Gipfel');
    this.title.closable = true;
  }

  protected override render(): React.JSX.Element {
    return (
      <>
        {this.renderHeader(null)}
        {this.renderTabs()}
      </>
    );
  }
}

/** Add the command for the panel in the main area, which a reload restores. */
export function addWidePanel(
  app: JupyterFrontEnd,
  create: () => WidePanel,
  shell: ILabShell | null,
  restorer: ILayoutRestorer | null,
  trans: TranslationBundle
): void {
  const tracker = new WidgetTracker<WidePanel>({ namespace: 'gipfel-wide-panel' });
  const command = CommandIDs.openWide;
  app.commands.addCommand(command, {
    label: trans.__('Open the Panel Wide'),
    caption: trans.__('Show the Gipfel panel in the main area, with figures in two columns'),
    icon: mountainIcon,
    describedBy: { args: { type: 'object', properties: { restored: { type: 'boolean' } } } },
    execute: async args => {
      const wide = tracker.currentWidget ?? create();
      if (!wide.isAttached) {
        app.shell.add(wide, 'main');
        await tracker.add(wide);
      }
      app.shell.activateById(wide.id);
      if (args.restored !== true) {
        // The same content is not needed twice, and its width is needed here.
        shell?.collapseRight();
      }
    }
  });
  void restorer?.restore(tracker, { command, args: () => ({ restored: true }), name: () => 'wide' });
}
