import { OpenSections } from '../../src/panel/open-sections';

type State = NonNullable<ConstructorParameters<typeof OpenSections>[0]>;

const section = (collapsed = false): { id: string; title: string; collapsed: boolean; Body: () => null } => ({
  id: 'vetting',
  title: 'Vetting',
  collapsed,
  Body: () => null
});

/** The lab's state, kept between two pages. */
function stateOf(): { state: State; kept: Map<string, unknown> } {
  const kept = new Map<string, unknown>();
  const state = {
    fetch: (key: string) => Promise.resolve(kept.get(key)),
    save: (key: string, value: unknown) => Promise.resolve(void kept.set(key, value))
  };
  return { state: state as unknown as State, kept };
}

describe('OpenSections', () => {
  it('opens sections as they begin', () => {
    const openSections = new OpenSections(null);
    expect(openSections.isOpen(section())).toBe(true);
    expect(openSections.isOpen(section(true))).toBe(false);
  });

  it('keeps what the user closed for the next page', async () => {
    const { state } = stateOf();
    new OpenSections(state).set(section(), false);
    const next = new OpenSections(state);
    await next.load();
    expect(next.isOpen(section())).toBe(false);
  });

  it('saves nothing where nothing changed', () => {
    const { state, kept } = stateOf();
    new OpenSections(state).set(section(), true);
    expect(kept.size).toBe(0);
  });

  it('prefers what the user did before the state was read', async () => {
    const { state, kept } = stateOf();
    kept.set('@gipfel/extension:open-sections', { vetting: true });
    const openSections = new OpenSections(state);
    const loaded = openSections.load();
    openSections.set(section(), false);
    await loaded;
    expect(openSections.isOpen(section())).toBe(false);
  });
});
