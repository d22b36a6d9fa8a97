import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification, showErrorMessage } from '@jupyterlab/apputils';
import { IDefaultFileBrowser, IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { errorMessage } from '../common/error-message';
import { addDocumentTab } from '../job/document-tab';
import { IGipfelJob } from '../tokens';
import { VerdictBadges } from './badges';
import { showScan } from './dialog';
import { ScanRequests } from './requests';
import { addSaveEnvironment } from './save-environment';
import { securityTab } from './security-tab';

/** Scans: a command in the file browser's context menu, badges on model files, the verdict on a job's image. */
export const scanPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:scan',
  description: "Scans files of the file browser, and shows the verdicts on model files and on a job's image.",
  autoStart: true,
  requires: [IFileBrowserFactory],
  optional: [IDefaultFileBrowser, IGipfelJob, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    factory: IFileBrowserFactory,
    browser: IDefaultFileBrowser | null,
    job: IGipfelJob | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    addSaveEnvironment(app, browser, trans);
    palette?.addItem({ command: CommandIDs.saveEnvironment, category: trans.__('Gipfel') });
    const requests = new ScanRequests(app.serviceManager.serverSettings);
    if (job !== null) {
      addDocumentTab(app, job, trans, securityTab(trans));
    }
    const badges = browser === null ? null : new VerdictBadges(browser, requests, trans);
    const selected = () => {
      const items = Array.from(factory.tracker.currentWidget?.selectedItems() ?? []);
      return items.length === 1 ? items[0] : undefined;
    };
    app.commands.addCommand(CommandIDs.scan, {
      label: trans.__('Scan'),
      caption: trans.__('Look for code that loading this file would run; nothing is loaded'),
      describedBy: NO_ARGUMENTS,
      isEnabled: () => selected() !== undefined,
      execute: async () => {
        const item = selected();
        if (item === undefined) {
          return;
        }
        const shown = Notification.emit(trans.__('Scanning %1…', item.name), 'in-progress', {
          autoClose: false
        });
        try {
          const scan = await requests.scan(item.path);
          Notification.dismiss(shown);
          void badges?.refresh();
          await showScan(item.name, scan, trans);
        } catch (error) {
          Notification.dismiss(shown);
          await showErrorMessage(trans.__('%1 could not be scanned', item.name), errorMessage(error));
        }
      }
    });
    app.contextMenu.addItem({
      command: CommandIDs.scan,
      selector: '.jp-DirListing-item[data-isdir]',
      rank: 11
    });
  }
};
