import { SelectedSection } from '../../src/panel/selected-section';

type State = NonNullable<ConstructorParameters<typeof SelectedSection>[0]>;

const KEY = '@gipfel/extension:selected-section';
const sections = ['saturation', 'vetting'].map(id => ({ id, title: id, Body: () => null }));

/** The lab's state, kept between two pages. */
function stateOf(): { state: State; saved: Map<string, unknown> } {
  const saved = new Map<string, unknown>();
  const state = {
    fetch: (key: string) => Promise.resolve(saved.get(key)),
    save: (key: string, value: unknown) => Promise.resolve(void saved.set(key, value))
  };
  return { state: state as unknown as State, saved };
}

describe('SelectedSection', () => {
  it('is the first section at first', () => {
    expect(new SelectedSection(null).of(sections)?.id).toBe('saturation');
    expect(new SelectedSection(null).of([])).toBeUndefined();
  });

  it('keeps what the user selected for the next page', async () => {
    const { state } = stateOf();
    new SelectedSection(state).select('vetting');
    const next = new SelectedSection(state);
    await next.load();
    expect(next.of(sections)?.id).toBe('vetting');
  });

  it('is the first section where the selected one was removed', () => {
    const selected = new SelectedSection(null);
    selected.select('quota');
    expect(selected.of(sections)?.id).toBe('saturation');
  });

  it('prefers what the user selected before the state was read', async () => {
    const { state, saved } = stateOf();
    saved.set(KEY, 'vetting');
    const selected = new SelectedSection(state);
    const loaded = selected.load();
    selected.select('saturation');
    await loaded;
    expect(selected.of(sections)?.id).toBe('saturation');
  });

  it('ignores a saved state of another shape', async () => {
    const { state, saved } = stateOf();
    saved.set(KEY, { vetting: true });
    const selected = new SelectedSection(state);
    await selected.load();
    expect(selected.of(sections)?.id).toBe('saturation');
  });
});
