import { Signal } from '@lumino/signaling';

import type { JobModel } from '../../src/job/model';
import { PageOpener } from '../../src/job/opener';
import type { JobPage } from '../../src/job/page';
import { JobSelection } from '../../src/job/selection';

type Arguments = ConstructorParameters<typeof PageOpener>;

class OpenerOfNothing extends PageOpener {
  page(): JobPage {
    return { id: 'job', isAttached: true } as unknown as JobPage;
  }
}

function opened(selection: JobSelection): PageOpener {
  const tabs = { select: () => undefined } as unknown as Arguments[2];
  const changed = { changed: new Signal(tabs) };
  const shell = { activateById: () => undefined, currentWidget: null } as unknown as Arguments[0];
  const [tracker, trans] = [{}, {}] as unknown as [Arguments[3], Arguments[4]];
  return new OpenerOfNothing(
    shell,
    { selection } as unknown as JobModel,
    Object.assign(tabs, changed),
    tracker,
    trans
  );
}

describe('the URL of the job page', () => {
  it('undoes nothing that was chosen since it was opened, when JupyterLab routes late', () => {
    const selection = new JobSelection();
    const opener = opened(selection);
    const search = `?gipfel-job=${encodeURIComponent('tab=overview&run=a')}`;
    opener.begin(search);
    selection.setLast(60);
    opener.openUrl(search);
    expect([selection.run, selection.lastS]).toEqual(['a', 60]);
    opener.openUrl(search.replace('run%3Da', 'run%3Db'));
    expect([selection.run, selection.lastS]).toEqual(['b', null]);
  });
});
