import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { batchPlugin } from './batch/plugin';
import { checkpointsPlugin } from './checkpoints/plugin';
import { communicationPlugin } from './communication/plugin';
import { figuresPlugin } from './figures/plugin';
import { jobPlugin } from './job/plugin';
import { launchesPlugin } from './launches/plugin';
import { networkPlugin } from './network/plugin';
import { notebooksPlugin } from './notebooks/plugin';
import { noticesPlugin } from './notices/plugin';
import { outputsPlugin } from './outputs/plugin';
import { panelPlugin } from './panel/plugin';
import { runsPlugin } from './runs/plugin';
import { saturationPlugin } from './saturation/plugin';
import { scanPlugin } from './scan/plugin';
import { servicesPlugin } from './services/plugin';
import { statusBarPlugin } from './status-bar/plugin';
import { topologyPlugin } from './topology/plugin';
import { vettingPlugin } from './vetting/plugin';
import { otherWorkloadsPlugin, workloadsPlugin } from './workloads/plugin';

export * from './tokens';

/** A plugin for each feature; a site disables one by its ID. */
const plugins: JupyterFrontEndPlugin<unknown>[] = [
  panelPlugin,
  saturationPlugin,
  vettingPlugin,
  jobPlugin,
  topologyPlugin,
  communicationPlugin,
  networkPlugin,
  checkpointsPlugin,
  runsPlugin,
  workloadsPlugin,
  launchesPlugin,
  batchPlugin,
  servicesPlugin,
  otherWorkloadsPlugin,
  noticesPlugin,
  statusBarPlugin,
  notebooksPlugin,
  scanPlugin,
  figuresPlugin,
  outputsPlugin
];

export default plugins;
