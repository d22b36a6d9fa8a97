import { GipfelPanel } from '../../src/panel/panel';
import { RunModel } from '../../src/panel/run';
import { SectionList } from '../../src/panel/section-list';
import { SelectedSection } from '../../src/panel/selected-section';
import { nullTranslator } from '../jupyterlab';
import { sectionsOf } from '../sections';

type Parameters = ConstructorParameters<typeof GipfelPanel>;

function panelOf(): GipfelPanel {
  const settings = {} as ConstructorParameters<typeof RunModel>[0];
  return new GipfelPanel(
    new RunModel(settings),
    new SectionList(new SelectedSection(null)),
    nullTranslator.load() as unknown as Parameters[1]
  );
}

const section = (id: string): { id: string; title: string; Body: () => null } => ({
  id,
  title: id,
  Body: () => null
});

describe('GipfelPanel', () => {
  it('shows sections by rank, those without one last', () => {
    const panel = panelOf();
    panel.addSection(section('last'));
    panel.addSection(section('second'), { rank: 200 });
    panel.addSection(section('first'), { rank: 100 });
    expect(sectionsOf(panel)).toEqual(['first', 'second', 'last']);
  });

  it('removes a section that its extension disposes', () => {
    const panel = panelOf();
    const added = panel.addSection(section('quota'));
    panel.addSection(section('other'));
    added.dispose();
    expect(sectionsOf(panel)).toEqual(['other']);
  });

  it('refuses a second section of the same ID', () => {
    const panel = panelOf();
    panel.addSection(section('quota'));
    expect(() => panel.addSection(section('quota'))).toThrow("already has a section 'quota'");
  });
});
