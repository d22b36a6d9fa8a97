import { LabIcon } from '@jupyterlab/ui-components';

import batch from '../../style/icons/batch.svg';
import mountain from '../../style/icons/mountain.svg';

/** The panel's icon: a mountain, German "Gipfel". */
export const mountainIcon = new LabIcon({ name: 'gipfel:mountain', svgstr: mountain });

/** The icon of batch jobs: a page with a play sign. */
export const batchIcon = new LabIcon({ name: 'gipfel:batch', svgstr: batch });
