import { LabIcon } from '@jupyterlab/ui-components';

import batch from '../../style/icons/batch.svg';
import mountain from '../../style/icons/mountain.svg';

/** The panel's icon: a mountain, German "Gipfel". */
export const mountainIcon = new LabIcon({ name: 'gipfel:mountain', svgstr: mountain });

/** A batch job's icon: a page that is run. */
export const batchIcon = new LabIcon({ name: 'gipfel:batch', svgstr: batch });
