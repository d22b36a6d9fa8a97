/** The browser side of `vetting.py`: nodes x checks, with the reason of the hovered or focused cell. */

const STEPS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1]
};

function make(tag, parent, text, className) {
  const node = parent.appendChild(document.createElement(tag));
  if (text !== undefined) {
    node.textContent = text;
  }
  if (className) {
    node.className = className;
  }
  return node;
}

const wordOf = verdict => ({ running: 'runs now', waiting: 'waits' })[verdict] ?? verdict.replace('_', ' ');

function drawTable(root, grid, shapes, place) {
  const table = make('table', make('div', root, undefined, 'gipfel-scroll'));
  table.setAttribute('role', 'grid');
  table.setAttribute('aria-label', 'Nodes and checks');
  const head = make('tr', make('thead', table));
  make('th', head, 'node').scope = 'col';
  for (const check of grid.checks) {
    make('span', make('th', head), check).parentElement.scope = 'col';
  }
  const body = make('tbody', table);
  const reason = make('p', root, '', 'gipfel-reason');
  const show = (row, check, cell) => {
    reason.dataset.verdict = cell.verdict;
    reason.textContent = `${shapes[cell.verdict]} ${row.node} · ${check}: ${wordOf(cell.verdict)}. ${inLocalTime(cell.reason)}`;
  };
  grid.rows.forEach((row, line) => {
    const tr = make('tr', body);
    tr.dataset.node = row.node;
    make('th', tr, row.node).scope = 'row';
    row.cells.forEach((cell, column) => {
      const td = make('td', tr, shapes[cell.verdict]);
      const check = grid.checks[column];
      td.dataset.verdict = cell.verdict;
      td.dataset.place = `${line}-${column}`;
      // Only one cell is a tab stop; arrow keys reach the others.
      td.tabIndex = line === place.row && column === place.column ? 0 : -1;
      td.setAttribute(
        'aria-label',
        `${row.node}, ${check}: ${wordOf(cell.verdict)}. ${inLocalTime(cell.reason)}`
      );
      td.addEventListener('mouseenter', () => show(row, check, cell));
      td.addEventListener('click', () => td.focus());
      td.addEventListener('focus', () => {
        table.querySelector('td[tabindex="0"]')?.setAttribute('tabindex', '-1');
        td.tabIndex = 0;
        Object.assign(place, { row: line, column, focused: true });
        show(row, check, cell);
      });
      td.addEventListener('blur', () => (place.focused = false));
    });
  });
  reason.textContent = 'Point at a cell, or move to it with the arrow keys, to read its reason.';
  table.addEventListener('keydown', event => {
    const step = STEPS[event.key];
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      const row = Math.max(0, Math.min(grid.rows.length - 1, place.row + step[0]));
      const column = Math.max(0, Math.min(grid.checks.length - 1, place.column + step[1]));
      table.querySelector(`[data-place="${row}-${column}"]`)?.focus();
    }
  });
  return table;
}

function drawRest(root, grid, shapes) {
  const more = Object.entries(grid.more).map(
    ([word, count]) => `${shapes[word]} ${count} more: ${wordOf(word)}`
  );
  if (more.length) {
    make('p', root, more.join(' · '));
  }
  const list = make('ul', root);
  for (const each of grid.culprits) {
    const item = make('li', list);
    item.dataset.verdict = each.verdict;
    make('strong', item, `${shapes[each.verdict]} ${each.who}`);
    const whose = each.owner && each.owner !== 'node' ? ` (${each.owner})` : '';
    item.append(` · ${each.checks}: ${wordOf(each.verdict)}${whose}. ${each.reason} ${each.fix}`);
  }
  if (grid.more_culprits) {
    make('p', root, `and ${grid.more_culprits} more reasons in the report`);
  }
  if (grid.outcome) {
    make('p', root, grid.outcome);
  }
  if (grid.exclude) {
    make('code', make('p', root), `--exclude=${grid.exclude}`);
  }
}

function render({ model, el }) {
  const root = make('div', el, undefined, 'gipfel-vetting-live');
  const place = { row: 0, column: 0, focused: false };
  const draw = () => {
    const grid = model.get('grid');
    const shapes = model.get('shapes');
    const focused = place.focused;
    root.replaceChildren();
    const title = make('p', root);
    title.setAttribute('role', 'status');
    if (!grid?.rows) {
      title.textContent = model.get('message');
      return;
    }
    const good = grid.ended_ns !== null && grid.complete && grid.vetted === grid.nodes;
    const shape = grid.ended_ns === null ? shapes.running : good ? shapes.pass : shapes.fail;
    const time = formatLocalTime(grid.started_ns / 1e6);
    make('strong', title, `${shape} Vetting: ${grid.heading}`);
    make('small', title, ` ${time}`);
    if (model.get('message')) {
      make('p', root, `▲ ${model.get('message')}`);
    }
    if (grid.rows.length) {
      const table = drawTable(root, grid, shapes, place);
      if (focused) {
        table.querySelector(`[data-place="${place.row}-${place.column}"]`)?.focus();
      }
    }
    drawRest(root, grid, shapes);
  };
  model.on('change:grid', draw);
  model.on('change:message', draw);
  draw();
  return () => {
    model.off('change:grid', draw);
    model.off('change:message', draw);
  };
}

export default { render };
