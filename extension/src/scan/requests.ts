import type { ServerConnection } from '@jupyterlab/services';

import { requestJson } from '../common/request';

/** Verdict on a file, from harmless to harmful. */
export type Verdict = 'plain' | 'needs code' | 'not understood' | 'malicious';

/** One reason for a verdict. */
export interface IFinding {
  readonly path: string;
  readonly verdict: Verdict;
  readonly rule: string;
  readonly severity: 'low' | 'medium' | 'high' | 'critical';
  readonly message: string;
  readonly fix: string;
}

/** The result of a scan. */
export interface IScan {
  readonly verdict: Verdict;
  readonly findings: readonly IFinding[];
  readonly left_out: number;
  readonly not_judged: readonly string[];
  readonly excepted: readonly { readonly path: string; readonly rule: string; readonly until: string }[];
}

/** Requests to `gipfel/scan`. */
export class ScanRequests {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** Scan a file or a directory. */
  scan(path: string): Promise<IScan> {
    return requestJson(this.settings, 'scan', 'POST', { path });
  }

  /** Return the verdicts of files that were scanned before and have not changed since. */
  async kept(paths: readonly string[]): Promise<Readonly<Record<string, Verdict>>> {
    const answer = await requestJson<{ verdicts: Record<string, Verdict> }>(
      this.settings,
      'scan/kept',
      'POST',
      { paths }
    );
    return answer.verdicts;
  }
}
