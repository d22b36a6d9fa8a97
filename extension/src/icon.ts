import { LabIcon } from '@jupyterlab/ui-components';

import mountain from '../style/icons/mountain.svg';

/** The panel's icon: a mountain, German "Gipfel". */
export const mountainIcon = new LabIcon({ name: 'gipfel:mountain', svgstr: mountain });
