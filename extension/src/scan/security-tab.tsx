import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobException, IJobSecurity } from '../api';
import { Notice } from '../common/notice';
import { Table } from '../common/table';
import type { IDocumentTab } from '../job/document-tab';

/** Return the tab "Security" of the job page: the verdict on the job's image, and findings that were accepted. */
export function securityTab(trans: TranslationBundle): IDocumentTab<IJobSecurity> {
  return {
    id: 'security',
    title: trans.__('Security'),
    rank: 39,
    reading: trans.__('Comparing the packages of the image with advisories…'),
    Content: ({ value }) => <Content trans={trans} value={value} />
  };
}

function Content(props: { trans: TranslationBundle; value: IJobSecurity }): React.JSX.Element {
  const { trans, value } = props;
  if (value.image === '') {
    return <Notice shape="○" text={trans.__('This job has no container image.')} />;
  }
  return (
    <>
      <h3 className="jp-Gipfel-security" data-level={value.level}>
        {value.line}
      </h3>
      {value.fix !== '' && <p>{value.fix}</p>}
      <Facts {...props} />
      <Lines title={trans.__('Most serious')} lines={value.worst} />
      <Lines title={trans.__('Could not be judged')} lines={value.not_judged} />
      {value.excepted.length > 0 && <Exceptions rows={value.excepted} trans={trans} />}
      <p className="jp-Gipfel-small">
        {trans.__(
          'Packages of the image alone: what a job installs later, and models, are scanned by gipfel scan.'
        )}
      </p>
    </>
  );
}

function Facts(props: { trans: TranslationBundle; value: IJobSecurity }): React.JSX.Element {
  const { trans, value } = props;
  const policies = {
    report: trans.__('report: the verdict is shown'),
    warn: trans.__('warn: high and critical vulnerabilities are warned of'),
    refuse: trans.__('refuse: a critical vulnerability, or an image that can’t be judged, does not start')
  };
  const days = value.advisories_days;
  const rows = [
    [trans.__('Image'), value.image],
    [trans.__('Packages'), String(value.packages)],
    [
      trans.__('Age of the advisories'),
      days === null ? trans.__('none') : trans._n('1 day', '%1 days', days)
    ],
    [trans.__('Policy of the site'), policies[value.policy]]
  ];
  return (
    <dl className="jp-Gipfel-security-facts">
      {rows.map(([name, text]) => (
        <React.Fragment key={name}>
          <dt>{name}</dt>
          <dd>{text}</dd>
        </React.Fragment>
      ))}
    </dl>
  );
}

function Lines(props: { title: string; lines: readonly string[] }): React.JSX.Element | null {
  const { title, lines } = props;
  return lines.length === 0 ? null : (
    <>
      <h4>{title}</h4>
      <ul>
        {lines.map(each => (
          <li key={each}>{each}</li>
        ))}
      </ul>
    </>
  );
}

function Exceptions(props: { rows: readonly IJobException[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Accepted'),
    trans.__('Package'),
    trans.__('By'),
    trans.__('Until'),
    trans.__('Reason')
  ];
  return (
    <Table heads={heads}>
      {rows.map(each => (
        <tr key={`${each.rule} ${each.path}`}>
          <th scope="row">{each.rule}</th>
          <td>{each.path}</td>
          <td>{each.by === '' ? trans.__('unknown') : each.by}</td>
          <td>{each.until}</td>
          <td>{each.reason}</td>
        </tr>
      ))}
    </Table>
  );
}
