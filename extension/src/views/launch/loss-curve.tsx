import * as React from 'react';

import type { ITranslation } from '../translation';
import { CURVE, curvePoints, formatNumber } from './summary';

/** The loss as a line without axes. */
export function LossCurve(props: {
  losses: readonly number[];
  trans: ITranslation;
}): React.JSX.Element | null {
  const { losses, trans } = props;
  const [first] = losses;
  const last = losses.at(-1);
  if (losses.length < 2 || first === undefined || last === undefined) {
    return null;
  }
  return (
    <svg
      className="jp-Gipfel-launch-curve"
      viewBox={`0 0 ${CURVE.width} ${CURVE.height}`}
      role="img"
      aria-label={trans.__('loss from %1 to %2', formatNumber(first), formatNumber(last))}
    >
      <polyline points={curvePoints(losses)} />
    </svg>
  );
}
