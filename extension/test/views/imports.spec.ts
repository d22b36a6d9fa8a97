import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

const SOURCE = path.join(__dirname, '../../src');
const ROOTS = readdirSync(path.join(SOURCE, 'widgets')).map(name => path.join(SOURCE, 'widgets', name));

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

describe('the views of widgets', () => {
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
  });
});
