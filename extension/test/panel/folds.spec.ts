import { Folds } from '../../src/panel/folds';

type State = NonNullable<ConstructorParameters<typeof Folds>[0]>;

const section = (folded = false): { id: string; title: string; folded: boolean; Body: () => null } => ({
  id: 'vetting',
  title: 'Vetting',
  folded,
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

describe('Folds', () => {
  it('opens sections as they begin', () => {
    const folds = new Folds(null);
    expect(folds.isOpen(section())).toBe(true);
    expect(folds.isOpen(section(true))).toBe(false);
  });

  it('keeps what the user closed for the next page', async () => {
    const { state } = stateOf();
    new Folds(state).set(section(), false);
    const next = new Folds(state);
    await next.load();
    expect(next.isOpen(section())).toBe(false);
  });

  it('saves nothing where nothing changed', () => {
    const { state, kept } = stateOf();
    new Folds(state).set(section(), true);
    expect(kept.size).toBe(0);
  });

  it('prefers what the user did before the state was read', async () => {
    const { state, kept } = stateOf();
    kept.set('@gipfel/extension:open-sections', { vetting: true });
    const folds = new Folds(state);
    const loaded = folds.load();
    folds.set(section(), false);
    await loaded;
    expect(folds.isOpen(section())).toBe(false);
  });
});
