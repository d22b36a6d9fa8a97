import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

const SOURCE = path.join(__dirname, '../../src');
const ROOTS = ['widgets', 'views'].flatMap(directory =>
  readdirSync(path.join(SOURCE, directory), { recursive: true, encoding: 'utf8' })
    .filter(name => /\.tsx?$/.test(name))
    .map(name => path.join(SOURCE, directory, name))
);

/** The modules that a file imports when it runs: types are erased. */
function importsOf(file: string): string[] {
  const text = readFileSync(file, 'utf8');
  return [...text.matchAll(/^(?:import|export)(?! type)[^'"]*?from '([^']+)'/gm)].map(
    found => found[1] ?? ''
  );
}

function resolve(from: string, name: string): string | undefined {
  const base = path.resolve(path.dirname(from), name);
  return [base, `${base}.ts`, `${base}.tsx`].find(file => /\.[jt]sx?$/.test(file) && exists(file));
}

function exists(file: string): boolean {
  return readdirSync(path.dirname(file)).includes(path.basename(file));
}

describe('the views and the widgets that host them', () => {
  it('import React and files of their own, and nothing of JupyterLab', () => {
    const packages = new Set<string>();
    const pending = [...ROOTS];
    const seen = new Set<string>();
    for (let file = pending.pop(); file !== undefined; file = pending.pop()) {
      if (seen.has(file)) {
        continue;
      }
      seen.add(file);
      for (const name of importsOf(file)) {
        const next = name.startsWith('.') ? resolve(file, name) : undefined;
        if (next === undefined) {
          packages.add(name);
        } else {
          pending.push(next);
        }
      }
    }
    expect([...packages].sort()).toEqual(['react', 'react-dom/client']);
    expect([...seen].some(file => file.endsWith('grid.tsx'))).toBe(true);
    expect([...seen].some(file => file.endsWith('views/figures/plot.ts'))).toBe(true);
  });
});
