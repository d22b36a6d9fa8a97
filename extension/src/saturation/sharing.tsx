import { PageConfig } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { SaturationModel } from './model';

/** The user's consent to share the score with the hub's administrators; nothing without a hub. */
export function Sharing(props: {
  model: SaturationModel;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { model, trans } = props;
  const [shared, setShared] = React.useState<boolean | null>(null);
  const hub = PageConfig.getOption('hubPrefix') !== '';
  React.useEffect(() => {
    if (hub) {
      model.requests.shares().then(setShared, () => undefined);
    }
  }, [model, hub]);
  if (shared === null) {
    return null;
  }
  return (
    <label className="jp-Gipfel-check jp-Gipfel-small jp-Gipfel-pad">
      <input
        type="checkbox"
        checked={shared}
        onChange={() => {
          void model.attempt(async () => {
            setShared(await model.requests.share(!shared));
          });
        }}
      />
      {trans.__("Share this server's score, bottleneck and SM activity with the hub and its administrators")}
    </label>
  );
}
