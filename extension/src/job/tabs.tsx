import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { Events } from './events';
import type { JobFigures } from './figures';
import { Metrics } from './metrics';
import type { JobModel } from './model';
import { Overview } from './overview';
import type { JobTabs } from './page';
import { Ranks } from './ranks';

/** Add the tabs that the page has by itself. */
export function addOwnTabs(
  tabs: JobTabs,
  model: JobModel,
  figures: JobFigures,
  trans: TranslationBundle
): void {
  const common = { model, figures, trans };
  tabs.addTab({ id: 'overview', title: trans.__('Overview'), Body: () => <Overview {...common} /> }, 10);
  tabs.addTab({ id: 'ranks', title: trans.__('Ranks'), Body: () => <Ranks {...common} /> }, 20);
  tabs.addTab({ id: 'metrics', title: trans.__('Metrics'), Body: () => <Metrics {...common} /> }, 40);
  tabs.addTab({ id: 'events', title: trans.__('Events'), Body: () => <Events {...common} /> }, 50);
}
