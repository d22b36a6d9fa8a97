import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { JobFigures } from './figures';
import type { JobModel } from './model';
import { Overview } from './overview';
import type { JobTabs } from './page';

/** Add the tabs that the page has by itself. */
export function addOwnTabs(
  tabs: JobTabs,
  model: JobModel,
  figures: JobFigures,
  trans: TranslationBundle
): void {
  const common = { model, figures, trans };
  tabs.addTab({ id: 'overview', title: trans.__('Overview'), Body: () => <Overview {...common} /> }, 10);
}
