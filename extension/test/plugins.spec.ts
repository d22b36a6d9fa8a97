import { Token, PluginRegistry } from '@lumino/coreutils';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import plugins from '../src/index';
import { FakeSocket } from './common/fake-socket';
import * as lab from './jupyterlab';
import { sectionsOf } from './sections';

const FEATURES = plugins.map(each => each.id);

/** A lab with these plugins, as far as ours look at one. */
async function activate(
  ids: readonly string[]
): Promise<{ panel: Widget | undefined; commands: CommandRegistry }> {
  const added: Widget[] = [];
  const commands = new CommandRegistry();
  const app = {
    commands,
    restored: Promise.resolve(),
    serviceManager: { serverSettings: { wsUrl: 'ws://lab/', WebSocket: FakeSocket } },
    contextMenu: { addItem: (): void => undefined },
    docRegistry: { addWidgetExtension: (): void => undefined },
    shell: { currentWidget: null, add: (widget: Widget) => added.push(widget) }
  };
  const registry = new PluginRegistry();
  registry.application = app;
  const owner = {};
  const signal = new Signal<object, void>(owner);
  const core: [Token<unknown>, unknown][] = [
    [lab.IEditorServices, {}],
    [lab.IFileBrowserFactory, { tracker: { currentWidget: null } }],
    [lab.INotebookTracker, { currentWidget: null, currentChanged: signal, widgetAdded: signal }],
    [lab.IStatusBar, { registerStatusItem: (): void => undefined }],
    [lab.IRenderMimeRegistry, { addFactory: (): void => undefined }]
  ];
  for (const [token, service] of core) {
    registry.registerPlugin({ id: token.name, provides: token, activate: () => service });
  }
  registry.registerPlugins(plugins.filter(each => ids.includes(each.id)));
  await registry.activatePlugins('startUp');
  for (const id of ids) {
    await registry.activatePlugin(id);
  }
  return { panel: added[0], commands };
}

describe('the plugins', () => {
  it('have an ID of this extension and a description each', () => {
    for (const plugin of plugins) {
      expect(plugin.id).toMatch(/^@gipfel\/extension:[a-z-]+$/);
      expect(plugin.description).toMatch(/^[A-Z].*\.$/);
      expect(plugin.autoStart).toBe(true);
    }
    expect(new Set(FEATURES).size).toBe(FEATURES.length);
  });

  it('add their sections in the order of the panel', async () => {
    const { panel } = await activate(FEATURES);
    expect(sectionsOf(panel)).toEqual([
      'saturation',
      'workloads',
      'runs',
      'vetting',
      'job',
      'checkpoints',
      'network'
    ]);
  });

  it.each(['saturation', 'vetting'])('leave out %s alone where a site disables it', async name => {
    const { panel } = await activate(FEATURES.filter(each => each !== `@gipfel/extension:${name}`));
    expect(sectionsOf(panel)).toEqual(
      ['saturation', 'workloads', 'runs', 'vetting', 'job', 'checkpoints', 'network'].filter(
        each => each !== name
      )
    );
  });

  it.each(['launches', 'batch', 'notices', 'status-bar', 'notebooks', 'figures', 'outputs'])(
    'leave the panel as it is without %s',
    async name => {
      const { panel } = await activate(FEATURES.filter(each => each !== `@gipfel/extension:${name}`));
      expect(sectionsOf(panel)).toHaveLength(7);
    }
  );

  it('that need no panel work where a site disables it', async () => {
    const names = ['notices', 'notebooks', 'figures'].map(each => `@gipfel/extension:${each}`);
    const { panel, commands } = await activate(names);
    expect(panel).toBeUndefined();
    expect(commands.hasCommand('gipfel:open-notebook')).toBe(true);
  });
});
