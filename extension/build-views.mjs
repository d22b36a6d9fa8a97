/**
 * Build the views for widgets: a module and a style sheet each, from the files that the panel draws with.
 *
 * anywidget hosts one module without imports. Preact stands in for React, which JupyterLab has and other pages
 * have not, and is a tenth of its size.
 */
import { readdir } from 'node:fs/promises';
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
  // tsc has written the modules.
  entry: Object.fromEntries(
    names.map(name => [
      name,
      [
        `./style/views/palette.css`,
        `./style/views/base.css`,
        `./style/views/${name}.css`,
        `./lib/widgets/${name}.js`
      ]
    ])
  ),
  module: { rules: [{ test: /\.css$/, type: 'css' }] },
  output: {
    path: target,
    filename: '[name].js',
    cssFilename: '[name].css',
    module: true,
    library: { type: 'module' }
  },
  resolve: { alias: { react: 'preact/compat', 'react-dom': 'preact/compat' } },
  optimization: {
    minimizer: [
      new rspack.SwcJsMinimizerRspackPlugin({
        // Private members, which no other file or package reads.
        minimizerOptions: { mangle: { props: { regex: '^_[a-z]\\w+$' } } }
      }),
      // The sheets use color-mix: what these browsers know need not be written for older ones.
      new rspack.LightningCssMinimizerRspackPlugin({
        minimizerOptions: { targets: ['chrome >= 111', 'firefox >= 113', 'safari >= 16.2'] }
      })
    ]
  },
  // 60 kB for each file; a module and its sheet together may be a little more.
  performance: { hints: 'error', maxAssetSize: 60_000, maxEntrypointSize: 65_000 }
});

const stats = await new Promise((resolve, reject) => {
  compiler.run((error, result) => (error ? reject(error) : resolve(result)));
});
if (stats.hasErrors()) {
  process.stderr.write(`${stats.toString({ preset: 'errors-only' })}\n`);
  process.exit(1);
}
