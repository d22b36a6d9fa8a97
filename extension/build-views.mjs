/**
 * Build the views for widgets: a module and a style sheet each, from the files that the panel draws with.
 *
 * anywidget hosts one module without imports. Preact stands in for React, which JupyterLab has and other pages
 * have not, and is a tenth of its size.
 */
import { mkdir, readFile, readdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { rspack } from '@rspack/core';

const root = import.meta.dirname;
const target = path.join(root, '../widgets/gipfel_widgets/static');
const found = await readdir(path.join(root, 'src/widgets'));
const names = found
  .filter(each => each.endsWith('.tsx'))
  .map(each => path.parse(each).name)
  .filter(name => name !== 'host');

const compiler = rspack({
  context: root,
  mode: 'production',
  devtool: false,
  // tsc has written them.
  entry: Object.fromEntries(names.map(name => [name, `./lib/widgets/${name}.js`])),
  output: { path: target, filename: '[name].js', module: true, library: { type: 'module' } },
  resolve: { alias: { react: 'preact/compat', 'react-dom': 'preact/compat' } },
  performance: { hints: 'error', maxAssetSize: 50_000, maxEntrypointSize: 50_000 }
});

const stats = await new Promise((resolve, reject) => {
  compiler.run((error, result) => (error ? reject(error) : resolve(result)));
});
if (stats.hasErrors()) {
  process.stderr.write(`${stats.toString({ preset: 'errors-only' })}\n`);
  process.exit(1);
}

await mkdir(target, { recursive: true });
for (const name of names) {
  const sheets = await Promise.all(
    ['base', name].map(each => readFile(path.join(root, `style/views/${each}.css`), 'utf8'))
  );
  await writeFile(path.join(target, `${name}.css`), sheets.join('\n'));
}
