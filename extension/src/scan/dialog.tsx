import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { verdictText } from './badges';
import type { IFinding, IScan } from './requests';

/** Show the verdict on a file with its reasons, and what to do. */
export async function showScan(path: string, scan: IScan, trans: TranslationBundle): Promise<void> {
  await showDialog({
    title: trans.__('Scan of %1', path),
    body: ReactWidget.create(<Scan scan={scan} trans={trans} />),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}

function Scan(props: { scan: IScan; trans: TranslationBundle }): React.JSX.Element {
  const { scan, trans } = props;
  return (
    <div className="jp-Gipfel-scan">
      <p className="jp-Gipfel-scan-verdict" data-verdict={scan.verdict}>
        {verdictText(scan.verdict, trans)}
      </p>
      {scan.findings.length > 0 && (
        <ul>
          {scan.findings.map((each, index) => (
            <Finding key={index} finding={each} />
          ))}
        </ul>
      )}
      {scan.left_out > 0 && <p>{trans.__('%1 more: gipfel scan lists them.', scan.left_out)}</p>}
      {scan.not_judged.map(each => (
        <p key={each}>{trans.__('Could not be judged: %1', each)}</p>
      ))}
      {scan.excepted.length > 0 && (
        <p>
          {trans.__('Accepted: %1', scan.excepted.map(each => `${each.rule} (${each.until})`).join(', '))}
        </p>
      )}
      <p className="jp-Gipfel-small">{trans.__('Nothing in it was loaded or executed.')}</p>
    </div>
  );
}

function Finding(props: { finding: IFinding }): React.JSX.Element {
  const { finding } = props;
  return (
    <li>
      <strong>{finding.severity}</strong> {finding.message}
      {finding.fix !== '' && <span className="jp-Gipfel-small"> {finding.fix}</span>}
    </li>
  );
}
